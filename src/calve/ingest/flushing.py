"""What a flush waits for: the rows of all partitions in the table, wherever their logs are."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from calve.errors import CalveError, Unavailable
from calve.sources.logs import Logs
from calve.state import PIPELINE_LEASE, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from calve.model import TableName
    from calve.settings import Settings
    from calve.sources.source_log import ReadableLog
    from calve.state import State
    from calve.topics.topic import Topic

_ANSWER_SECONDS: Final = 2.0  # for a service elsewhere to tell how far its log is
_POLL_SECONDS: Final = 0.05


class Awaited(NamedTuple):
    """The offsets that a topic's table has to reach, by partition."""

    name: TableName
    topic_id: UUID
    ends: Mapping[int, int]


def ends_elsewhere(settings: Settings, topic: Topic, own: int) -> dict[int, int]:
    """Where the partitions end that other processes take in, by the logs of `pipeline.logs`.

    One whose log is not there is left out: nobody here knows what was acknowledged in it.
    """
    others = [partition for partition in topic.partitions if partition != own]
    if not others:
        return {}
    with closing(Logs(settings)) as logs:
        deadline = time.monotonic() + _ANSWER_SECONDS
        found = {each: _durable(logs, topic, each, deadline) for each in others}
    return {each: end for each, end in found.items() if end is not None}


def _durable(logs: Logs, topic: Topic, partition: int, deadline: float) -> int | None:
    try:
        logs.refresh()
        while (log := logs.log(topic, partition)) is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            logs.refresh()
    except CalveError:
        return None
    return None if log is None else _end(log)


def _end(log: ReadableLog) -> int | None:
    try:
        return log.durable
    except CalveError:
        return None


def behind(state: State, awaited: Awaited) -> dict[int, int]:
    """How far those partitions are that have not reached their end."""
    found = {}
    for partition, end in awaited.ends.items():
        known = state.committed(awaited.topic_id, partition)
        committed = known.offset if known else 0
        if committed < end:
            found[partition] = committed
    return found


def not_flushed(state: State, awaited: Awaited, timeout_seconds: float) -> Unavailable:
    """With what is waited for, and what keeps it."""
    late = behind(state, awaited)
    waits = "; ".join(
        f"partition {each}: the table has reached offset {at}, and {awaited.ends[each]} was asked "
        "for"
        for each, at in late.items()
    )
    return Unavailable(
        f"{awaited.name} is not flushed after {timeout_seconds:g} s: {waits}",
        hint=_hint(state, awaited, late),
        context={
            "committed": ",".join(str(at) for at in late.values()),
            "wanted": ",".join(str(awaited.ends[each]) for each in late),
            "partitions": ",".join(map(str, late)),
        },
    )


def _hint(state: State, awaited: Awaited, late: Mapping[int, int]) -> str:
    progress = state.progress().partitions
    told = (progress.get(TopicPartition(awaited.topic_id, each)) for each in late)
    errors = [each.error for each in told if each and each.error]
    if state.pipeline_orders().holds_back(awaited.topic_id):
        return "the pipeline is paused: `calve pipeline resume` has it go on; then flush again"
    if state.lease(PIPELINE_LEASE) is None:
        return "the pipeline brings rows into tables: `calve up` runs it; then flush again"
    if errors:
        return f"the last attempt failed: {errors[0]}; `calve pipeline status` tells more"
    return "the pipeline is at it: flush again, or with more time"
