"""The newest rows of topics: those that are durable in a log, and not yet in a table's snapshot.

The order of looks makes table and log one relation. The tables come first; then, once for all of
them, how far the logs are durable; then the topics, so that no row is newer than its columns. From
a table's committed offset to that end, every row is in the log, or the log has let go of it because
a newer snapshot has it: then all is looked at again. The rows are held from there on, so that a log
which is trimmed meanwhile changes nothing.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from calve.errors import Conflict, NotFound, Unavailable
from calve.query.tail_rows import KeptRows, StreamedRows, Wanted
from calve.sources.joining import gap, log_behind
from calve.sources.logs import Logs
from calve.sources.source_log import Trimmed
from calve.state import open_state
from calve.tables.column_history import memory_marks
from calve.tables.feeding import feeding_topic
from calve.tables.positions import committed_positions
from calve.topics.registry import TopicRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Self

    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from calve.model import TableName
    from calve.settings import Settings
    from calve.sources.source_log import ReadableLog
    from calve.state import State
    from calve.topics.topic import Topic

_LOOKS_MAX: Final = 100
_HEARING_SECONDS: Final = 0.02


class Span(NamedTuple):
    """The offsets of a partition from `committed`, where the table ends, up to `durable`."""

    committed: int
    durable: int


class _Extent(NamedTuple):
    """What is to be read of a topic's logs, and as what."""

    wanted: Wanted
    spans: Mapping[int, Span]
    logs: Mapping[int, ReadableLog]


@dataclass(frozen=True, slots=True)
class Tail:
    """What a topic has beyond its table: rows under the columns that the table is to have."""

    schema: Schema
    spans: Mapping[int, Span] = field(default_factory=dict)
    rows: pa.Table | StreamedRows | None = None


class Tails:
    """Those of an open lake. Safe to share between threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._logs = Logs(settings)
        self._kept = KeptRows(self._lock)
        self._state: State | None = None
        self._topics: tuple[int, dict[TableName, Topic]] | None = None

    def close(self) -> None:
        with self._lock:
            self._kept.clear()
            self._logs.close()
            if self._state is not None:
                self._state.close()
                self._state = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def forget(self) -> None:
        """Let go of the rows that are kept for the next query, and of the log's files with them."""
        with self._lock:
            self._kept.clear()

    def topics(self) -> list[TableName]:
        """The names of all topics."""
        with self._lock:
            return sorted(self._known_topics()[1])

    def joined(
        self, names: Iterable[TableName], find: Callable[[TableName], Table | None]
    ) -> dict[TableName, tuple[Table | None, Tail | None]]:
        """Each table, as `find` sees it, with its topic's tail, all at one point in time.

        A name that is no topic's has no tail; one without a table yet has only that.
        """
        wanted = list(dict.fromkeys(names))
        gaps: list[_Gap] = []
        looks = 0
        while looks < _LOOKS_MAX:
            tables = {name: find(name) for name in wanted}
            for each in gaps:
                each.require_filled(tables[each.name])
            try:
                with self._lock:
                    tails = self._look(tables)
            except _LetGo as gone:
                gaps = [gone.gap]
                looks += 1
            except _Unheard:
                time.sleep(_HEARING_SECONDS)  # the service has its own time-out
            else:
                return {name: (tables[name], tails.get(name)) for name in wanted}
        raise Unavailable(
            "rows go from the log to the table faster than both can be looked at", hint="ask again"
        )

    def _look(self, tables: Mapping[TableName, Table | None]) -> dict[TableName, Tail]:
        """Where all of them end is decided before the first row is read."""
        known = self._settled()
        found = [
            self._extent(known[name], table) for name, table in tables.items() if name in known
        ]
        return {each.wanted.topic.name: self._tail(each) for each in found}

    def _settled(self) -> dict[TableName, Topic]:
        """The topics, with logs that were looked at while nobody changed a topic.

        Then every row has its columns, and every topic its stream.
        """
        count, topics = self._known_topics()
        for _ in range(_LOOKS_MAX):
            self._logs.refresh(ask=True)
            before = count
            count, topics = self._known_topics()
            if count == before:
                return topics
        raise Unavailable("topics are being changed all the time", hint="ask again in a moment")

    def _known_topics(self) -> tuple[int, dict[TableName, Topic]]:
        if self._state is None:
            try:
                self._state = open_state(self._settings, create=False)
            except NotFound:
                return 0, {}  # nobody ever made a topic here
        count = self._state.change_count()
        if self._topics is None or self._topics[0] != count:
            listed = TopicRegistry(self._state).list()
            self._topics = count, {topic.name: topic for topic in listed}
        return self._topics

    def _extent(self, topic: Topic, table: Table | None) -> _Extent:
        _require_own(topic, table)
        positions = {} if table is None else committed_positions(table)
        spans: dict[int, Span] = {}
        logs: dict[int, ReadableLog] = {}
        for partition in sorted(topic.partitions):
            position = positions.get(partition)
            log = log_behind(self._logs, topic, partition, position)
            if log is None:
                raise _Unheard
            start = max(position.offset if position else 0, log.begins_at)
            self._require_there(topic, table, partition, log, start)
            spans[partition] = Span(start, log.durable)
            logs[partition] = log
        return _Extent(_wanted(topic, table), spans, logs)

    def _require_there(
        self, topic: Topic, table: Table | None, partition: int, log: ReadableLog, start: int
    ) -> None:
        """All rows from `start` on, and before it none that only a table can have."""
        if start < log.first:
            raise _LetGo(_Gap(topic.name, partition, start, log.first))
        if table is not None:
            return
        assert self._state is not None
        known = self._state.committed(topic.id, partition)
        if known is not None and known.offset > log.begins_at:
            raise _LetGo(_Gap(topic.name, partition, start, known.offset))

    def _tail(self, found: _Extent) -> Tail:
        try:
            rows = self._kept.rows(found.wanted, found.spans, found.logs)
        except Trimmed:
            raise self._let_go(found) from None
        return Tail(found.wanted.schema, found.spans, rows)

    def _let_go(self, found: _Extent) -> _LetGo:
        self._logs.refresh()
        name = found.wanted.topic.name
        gaps = [
            _Gap(name, partition, span.committed, found.logs[partition].first)
            for partition, span in found.spans.items()
        ]
        return _LetGo(max(gaps, key=lambda each: each.end - each.start))


class _Unheard(Exception):
    """A service elsewhere that may have a log has not answered yet."""


class _LetGo(Exception):
    """The table that was looked at is older than what the log has let go of."""

    def __init__(self, found: _Gap) -> None:
        self.gap = found


@dataclass(frozen=True, slots=True)
class _Gap:
    """Offsets that a table must have, looked at later: the log has let go of them."""

    name: TableName
    partition: int
    start: int
    end: int

    def require_filled(self, table: Table | None) -> None:
        if table is None:
            raise NotFound(
                f"the table of topic {self.name} is gone: it was dropped or renamed",
                hint="give the table its name back; the log alone does not have all rows",
            )
        position = committed_positions(table).get(self.partition)
        committed = position.offset if position else 0
        if committed < self.end:
            raise gap(
                self.name,
                self.partition,
                offset=max(committed, self.start),
                first=self.end,
                committed=committed,
            )


def _require_own(topic: Topic, table: Table | None) -> None:
    owner = None if table is None else feeding_topic(table)
    if owner not in {None, topic.name}:
        raise Conflict(
            f"the table {topic.name} is not that of topic {topic.name}: topic {owner} feeds it",
            hint="--committed (fresh=False) asks the table alone; `calve status` says what to do",
            context={"table": str(topic.name), "topic": str(topic.name)},
        )


def _wanted(topic: Topic, table: Table | None) -> Wanted:
    # Loading it waits until there is a topic.
    from calve.tables.topic_tables import grown_for, with_system_columns

    if table is None:
        schema = with_system_columns(topic.schema, topic.last_column_id)
        return Wanted(topic, schema, None, (topic.version, None))
    schema = grown_for(table, topic.schema)
    key = (topic.version, table.schema(), table.spec(), memory_marks(table))
    return Wanted(topic, schema, table, key)
