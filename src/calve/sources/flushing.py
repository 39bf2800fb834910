"""What a flush waits for: the rows of all partitions in the table, wherever their logs are."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from calve.errors import CalveError, Unavailable
from calve.sources.logs import log_finder
from calve.state import PIPELINE_LEASE, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from calve.model import TableName
    from calve.settings import Settings
    from calve.sources.source_log import ReadableLog
    from calve.state import State
    from calve.topics.topic import Topic


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
    ends: dict[int, int] = {}
    if not others:
        return ends
    with log_finder(settings, topic) as find:
        for partition in others:
            with suppress(CalveError):
                ends |= _end(partition, find(partition))
    return ends


def ends_everywhere(settings: Settings, topic: Topic) -> dict[int, int]:
    """Where all partitions end that have rows; the error of a log that cannot be looked at."""
    ends: dict[int, int] = {}
    with log_finder(settings, topic) as find:
        for partition in topic.partitions:
            ends |= _end(partition, find(partition))
    return ends


def _end(partition: int, log: ReadableLog) -> dict[int, int]:
    durable = log.durable
    return {partition: durable} if durable > log.begins_at else {}


def behind(state: State, awaited: Awaited) -> dict[int, int]:
    """How far those partitions are that have not reached their end."""
    found = {}
    for partition, end in awaited.ends.items():
        reached = state.reached(awaited.topic_id, partition)
        if reached < end:
            found[partition] = reached
    return found


def is_at_work(state: State, topic_id: UUID) -> bool:
    """Whether a pipeline runs that is not told to leave the topic alone."""
    is_running = state.lease(PIPELINE_LEASE) is not None
    return is_running and not state.pipeline_orders().holds_back(topic_id)


def not_flushed(
    state: State,
    awaited: Awaited,
    late: Mapping[int, int],
    timeout_seconds: float,
    *,
    again: str = "flush again",
) -> Unavailable:
    """With how far the late partitions are, and what keeps them; `again` is what to do then."""
    waits = "; ".join(
        f"partition {each}: the table has reached offset {at}, and {awaited.ends[each]} was asked "
        "for"
        for each, at in late.items()
    )
    return Unavailable(
        f"{awaited.name} is not flushed after {round(timeout_seconds, 1):g} s: {waits}",
        hint=_hint(state, awaited, late, again),
        context={
            "committed": ",".join(str(at) for at in late.values()),
            "wanted": ",".join(str(awaited.ends[each]) for each in late),
            "partitions": ",".join(map(str, late)),
        },
    )


def _hint(state: State, awaited: Awaited, late: Mapping[int, int], again: str) -> str:
    progress = state.progress().partitions
    told = (progress.get(TopicPartition(awaited.topic_id, each)) for each in late)
    errors = [each.error for each in told if each and each.error]
    orders = state.pipeline_orders()
    if orders.is_paused:
        return f"the pipeline is paused: `calve pipeline resume` has it go on; then {again}"
    if orders.holds_back(awaited.topic_id):
        resume = f"calve pipeline resume {awaited.name}"
        return f"the topic is paused: `{resume}` has the pipeline go on with it; then {again}"
    if state.lease(PIPELINE_LEASE) is None:
        # Whole, it would be refused beside a service that takes rows in.
        run = "calve up --only pipeline"
        return f"the pipeline brings rows into tables: `{run}` runs it; then {again}"
    if errors:
        return f"the last attempt failed: {errors[0]}; `calve pipeline status` tells more"
    return f"the pipeline is at it: {again}, or with more time"
