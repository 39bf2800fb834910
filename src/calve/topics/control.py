"""Watching and directing the pipeline, through the state that it looks at in each cycle.

Works from any process of the machine, with and without a pipeline that runs: orders are kept
until there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from calve.audit import audited
from calve.audit.actions import PIPELINE
from calve.errors import InvalidRequest
from calve.model import TableName
from calve.topics.lag import PipelineStatus, pipeline_status
from calve.topics.registry import TopicRegistry

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from calve.audit import Trail
    from calve.clock import Clock
    from calve.state import State
    from calve.topics.lag import PartitionLag
    from calve.wal import LogReader


class Skip(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets that become dead letters instead of rows of the table."""

    topic: str
    partition: int
    start: int
    end: int


@audited(PIPELINE)
class PipelineControl:
    """Safe to share between threads if what opens readers is."""

    def __init__(
        self,
        state: State,
        open_reader: Callable[[], AbstractContextManager[LogReader | None]],
        *,
        clock: Clock,
        trail: Trail,
    ) -> None:
        """`open_reader` gives a reader of this machine's log, or None where there is none."""
        self._state = state
        self._registry = TopicRegistry(state, clock=clock)
        self._open_reader = open_reader
        self._clock = clock
        self._trail = trail
        self.audit_subject = "*"  # unless a topic is named

    def status(self, topic: str | None = None) -> PipelineStatus:
        topic_id = None if topic is None else self._registry.topic(TableName.parse(topic)).id
        with self._open_reader() as reader:
            return pipeline_status(self._state, reader, now=self._clock.now(), topic_id=topic_id)

    def pause(self, topic: str | None = None) -> PipelineStatus:
        """Leave a topic alone, or all of them, until `resume`; its rows wait in the log."""
        found = None if topic is None else self._registry.topic(TableName.parse(topic))
        self._state.pause_pipeline(found.id if found else None)
        return self.status(topic)

    def resume(self, topic: str | None = None) -> PipelineStatus:
        """Go on with a topic; without one with all, also with those that were paused alone."""
        found = None if topic is None else self._registry.topic(TableName.parse(topic))
        self._state.resume_pipeline(found.id if found else None)
        return self.status(topic)

    def skip(self, topic: str, to: int, partition: int | None = None) -> Skip:
        """Have the rows below an offset that are in no table yet become dead letters.

        What an earlier order says stays: the one that goes further holds, and is answered.
        """
        found = self._registry.topic(TableName.parse(topic))
        at = _chosen(self.status(topic).partitions, topic, partition)
        if not at.committed < to or at.durable is None or to > at.durable:
            raise _not_to_skip(at, to)
        end = self._state.request_skip(found.id, at.partition, to)
        return Skip(topic=at.topic, partition=at.partition, start=at.committed, end=end)


def _chosen(found: list[PartitionLag], topic: str, partition: int | None) -> PartitionLag:
    numbers = sorted(each.partition for each in found)
    if not numbers:
        raise InvalidRequest(f"topic {topic} has no rows yet", hint="there is nothing to skip")
    if partition is None and len(numbers) > 1:
        raise InvalidRequest(
            f"topic {topic} has the partitions {', '.join(map(str, numbers))}", hint="name one"
        )
    for each in found:
        if partition in {None, each.partition}:
            return each
    raise InvalidRequest(
        f"topic {topic} has no partition {partition}",
        hint=f"it has {', '.join(map(str, numbers))}",
    )


def _not_to_skip(at: PartitionLag, to: int) -> InvalidRequest:
    if at.durable is None:
        return InvalidRequest(
            f"the log of {at.topic}, partition {at.partition}, is not on this machine",
            hint="ask the service that takes its rows in, with --server",
        )
    if at.committed >= at.durable:
        return InvalidRequest(
            f"nothing of {at.topic} waits: its table and its log have reached {at.committed}",
            hint="what comes from now on can be skipped once it is in the log",
            context={"committed": str(at.committed), "durable": str(at.durable)},
        )
    return InvalidRequest(
        f"{to} is not between {at.committed}, which the table of {at.topic} has reached, and "
        f"{at.durable}, where its log ends",
        hint="the rows before the offset that you give become dead letters",
        context={"committed": str(at.committed), "durable": str(at.durable)},
    )
