"""Has the rows of a topic come to its table before somebody changes rows of the table.

An update or a delete counts for every row that was acknowledged before it began. Those that are
still in the log are brought to the table first, by the pipeline that runs; where nobody brings
them, or nobody here can tell whether there are any, the change is refused.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from calve.errors import CalveError, InvalidRequest, Unavailable
from calve.sources.flushing import Awaited, behind, ends_everywhere, is_at_work, not_flushed
from calve.state import found_state
from calve.tables.feeding import feeding_topic
from calve.tables.positions import committed_positions
from calve.topics.registry import TopicRegistry

if TYPE_CHECKING:
    from calve.model import TableName
    from calve.settings import Settings
    from calve.state import State
    from calve.tables.catalog import LakeCatalog
    from calve.topics.topic import Topic

_LOG: Final = logging.getLogger(__name__)
_SECONDS_MAX: Final = 60.0
_IDLE_SECONDS_MAX: Final = 3.0  # for a pipeline that takes over from another
_POLL_SECONDS_MIN: Final = 0.01
_POLL_SECONDS_MAX: Final = 0.2
_ONLY_THE_TABLE: Final = "--no-flush (flush=False) changes only what the table has"


def flush_first(catalog: LakeCatalog, settings: Settings, name: TableName) -> None:
    """Return when a table has every row of its topic that was acknowledged before the call.

    Nothing happens to a table that no topic feeds. Unavailable if the rows do not come within a
    minute, or seconds if no pipeline is at work, and where the log cannot be looked at;
    InvalidRequest where the topic is not known.
    """
    table = catalog.find_table(name)
    fed_by = name.topic if table is None else feeding_topic(table)
    if fed_by != name.topic:
        return  # by nobody, or under a name that its topic does not know it by
    with found_state(settings) as state:
        topic = TopicRegistry(state).find(fed_by) if state is not None else None
        if state is not None and topic is not None:
            # The topic first: a partition is known to it before the partition has rows.
            _Flush(catalog, state, name, _awaited(settings, topic)).wait()
        elif table is not None:
            raise _unknown(fed_by)


@dataclass(frozen=True, slots=True)
class _Flush:
    catalog: LakeCatalog
    state: State
    name: TableName
    awaited: Awaited

    def wait(self) -> None:
        late = self._late()
        if not late:
            return
        for partition in late:
            end = self.awaited.ends[partition]
            self.state.request_flush(self.awaited.topic_id, partition, end)
        _LOG.info("%s: rows that are in the log come to the table first", self.awaited.name)
        begun, pause = time.monotonic(), _POLL_SECONDS_MIN
        while late := self._late():
            seconds = time.monotonic() - begun
            if seconds >= self._seconds_max():
                raise self._not_flushed(seconds, late)
            time.sleep(pause)
            pause = min(2 * pause, _POLL_SECONDS_MAX)

    def _seconds_max(self) -> float:
        return _SECONDS_MAX if is_at_work(self.state, self.awaited.topic_id) else _IDLE_SECONDS_MAX

    def _late(self) -> dict[int, int]:
        """How far those partitions are that have not reached their end."""
        if self.name.is_dead_letters:
            # They follow the topic's own table, and only when both have the rows is the state told.
            return behind(self.state, self.awaited)
        # The table alone decides what is in it.
        table = self.catalog.find_table(self.name)
        positions = committed_positions(table) if table is not None else {}
        reached = {partition: position.offset for partition, position in positions.items()}
        return {
            partition: reached.get(partition, 0)
            for partition, end in self.awaited.ends.items()
            if reached.get(partition, 0) < end
        }

    def _not_flushed(self, seconds: float, late: dict[int, int]) -> Unavailable:
        error = not_flushed(self.state, self.awaited, late, round(seconds), again="try again")
        return Unavailable(
            f"rows of the topic would be left out: {error.message}",
            hint=_or_only_the_table(error.hint),
            context=error.context,
        )


def _awaited(settings: Settings, topic: Topic) -> Awaited:
    try:
        return Awaited(topic.name, topic.id, ends_everywhere(settings, topic))
    except CalveError as error:
        raise Unavailable(
            f"whether the topic {topic.name} has rows that are not in the table yet cannot be "
            f"told: {error.message}",
            hint=_or_only_the_table(error.hint),
            context=error.context,
        ) from error


def _or_only_the_table(hint: str | None) -> str:
    return _ONLY_THE_TABLE if hint is None else f"{hint}. {_ONLY_THE_TABLE}"


def _unknown(topic: TableName) -> InvalidRequest:
    return InvalidRequest(
        f"the topic {topic} feeds the table, and is not known here: whether it has rows that are "
        "not in the table yet cannot be told",
        hint="change the table where the topic's service runs, or have state.dsn name its state. "
        f"If the topic was deleted, nothing more comes. {_ONLY_THE_TABLE}",
        context={"topic": str(topic)},
    )
