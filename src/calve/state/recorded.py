"""A state made of records: what each call of `State` means, whatever keeps the records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, TypeVar
from uuid import UUID, uuid4

from calve.errors import CalveError, NotFound, Unavailable
from calve.model import TableName
from calve.state import recorded_offsets as offsets
from calve.state import recorded_work as work
from calve.state.recorded_access import RecordedAccess
from calve.state.recorded_offsets import Kept, Published, key_of
from calve.state.records import APPENDED, ENDED, FLUSHES, KEEPERS, SKIPS, Records, number, text
from calve.state.store import CommittedOffset, TopicRecord
from calve.state.subscribing import RecordedSubscriptions
from calve.state.work import Lease, PipelineOrders, Progress, ProgressReport, TopicPartition

_T = TypeVar("_T")

_KEPT_SECONDS_MAX: Final = 30.0
_KEPT_POLL_SECONDS: Final = 0.05
_TOPICS: Final = "topics"
_ORDERS: Final = "orders"


class RecordedState(RecordedSubscriptions, RecordedAccess):
    """A `State`; see there. Safe to share between threads."""

    def create_topic(self, name: TableName, content: bytes) -> TopicRecord | None:
        return self._change(
            [_TOPICS],
            lambda found: work.create_topic(found, name, content),
            is_repeatable=False,
        )

    def topic(self, name: TableName) -> TopicRecord | None:
        return self._read(lambda found: work.topic(found, name))

    def topics(self, tenant: str | None = None) -> list[TopicRecord]:
        return self._read(lambda found: work.topics(found, tenant))

    def replace_topic(self, expected: TopicRecord, content: bytes) -> TopicRecord | None:
        return self._change(
            [_TOPICS],
            lambda found: work.replace_topic(found, expected, content),
            is_repeatable=False,
        )

    def delete_topic(
        self, expected: TopicRecord, topic_id: UUID, ended_streams: Sequence[UUID]
    ) -> bool:
        return self._change(
            [_TOPICS],
            lambda found: work.delete_topic(found, expected, topic_id, ended_streams),
            is_repeatable=False,
        )

    def ended_streams(self) -> set[UUID]:
        return self._read(lambda found: {UUID(text(row[0])) for row in found.scan(ENDED)})

    def forget_ended(self, stream_id: UUID) -> None:
        self._change([_TOPICS], lambda found: found.drop(ENDED, (str(stream_id),)))

    def change_count(self) -> int:
        return self._read(work.change_count)

    def committed(self, topic_id: UUID, partition: int) -> CommittedOffset | None:
        return self._read(
            lambda found: offsets.committed(found, TopicPartition(topic_id, partition))
        )

    def reached(self, topic_id: UUID, partition: int) -> int:
        return self._read(lambda found: offsets.reached(found, TopicPartition(topic_id, partition)))

    def all_committed(self, partition: int) -> dict[UUID, CommittedOffset]:
        return self._read(lambda found: offsets.all_committed(found, partition))

    @contextmanager
    def keeping_committed(self, partition: int) -> Iterator[dict[UUID, CommittedOffset]]:
        """One keeper of a partition after the other, as a log has one writer.

        A keeper that dies is in the way of whoever wants to set an offset back, until the next
        keeper of the partition: nobody can know what the dead one was about to let go of.
        """
        keeper = str(uuid4())
        scopes = [_offsets_of(partition)]
        self._change(scopes, lambda found: found.put(KEEPERS, (partition,), keeper))
        try:
            # Read after the keeper is known: from then on nobody sets an offset back.
            yield self.all_committed(partition)
        finally:
            with suppress(CalveError):  # the next keeper takes its place
                self._change(scopes, partial(_forget_keeper, partition=partition, keeper=keeper))

    def publish_committed(
        self,
        topic_id: UUID,
        partition: int,
        *,
        log_id: UUID,
        offset: int,
        resets: int | None = None,
        is_commit: bool = False,
    ) -> CommittedOffset:
        at = TopicPartition(topic_id, partition)
        said = Published(log_id, offset, resets, is_commit)
        return self._change(
            [_offsets_of(partition)], lambda found: offsets.publish(found, at, said)
        )

    def reset_committed(
        self, topic_id: UUID, partition: int, *, log_id: UUID, offset: int
    ) -> CommittedOffset:
        at = TopicPartition(topic_id, partition)
        return self._set_back(partition, lambda found: offsets.reset(found, at, log_id, offset))

    def hold_committed(
        self, topic_id: UUID, partition: int, *, log_id: UUID, offset: int, seconds: float
    ) -> CommittedOffset:
        at = TopicPartition(topic_id, partition)
        return self._set_back(
            partition,
            lambda found: offsets.hold(found, at, log_id, offset=offset, seconds=seconds),
        )

    def note_rewound(
        self, topic_id: UUID, partition: int, *, log_id: UUID, offset: int, resets: int
    ) -> bool:
        at = TopicPartition(topic_id, partition)
        said = Published(log_id, offset, resets, is_commit=False)
        return self._change(
            [_offsets_of(partition)], lambda found: offsets.note_rewound(found, at, said)
        )

    def release_committed(self, topic_id: UUID, partition: int, *, resets: int) -> None:
        at = TopicPartition(topic_id, partition)
        self._change(
            [_offsets_of(partition)], lambda found: offsets.release(found, at, resets=resets)
        )

    def take_lease(self, name: str, owner: str, seconds: float) -> bool:
        return self._change(
            [f"lease {name}"], lambda found: work.take_lease(found, name, owner, seconds=seconds)
        )

    def release_lease(self, name: str, owner: str) -> None:
        self._change([f"lease {name}"], lambda found: work.release_lease(found, name, owner))

    def lease(self, name: str) -> Lease | None:
        return self._read(lambda found: work.lease(found, name))

    def request_flush(self, topic_id: UUID, partition: int, offset: int) -> None:
        at = TopicPartition(topic_id, partition)
        self._change(
            [_offsets_of(partition)],
            lambda found: offsets.raise_request(found, FLUSHES, at, offset),
        )

    def flush_requests(self) -> dict[TopicPartition, int]:
        return self._read(lambda found: offsets.requests(found, FLUSHES))

    def pause_pipeline(self, topic_id: UUID | None = None) -> None:
        self._change([_ORDERS], lambda found: work.pause(found, topic_id))

    def resume_pipeline(self, topic_id: UUID | None = None) -> None:
        self._change([_ORDERS], lambda found: work.resume(found, topic_id))

    def request_skip(self, topic_id: UUID, partition: int, end: int) -> int:
        at = TopicPartition(topic_id, partition)
        return self._change(
            [_offsets_of(partition)], lambda found: offsets.raise_request(found, SKIPS, at, end)
        )

    def pipeline_orders(self) -> PipelineOrders:
        return self._read(work.orders)

    def publish_progress(self, changed: Sequence[Progress]) -> None:
        for part in _parts(changed, self.changes_max) or [()]:
            self._change(["progress"], partial(work.publish_progress, changed=part))

    def progress(self) -> ProgressReport:
        return self._read(work.progress)

    def add_bytes(self, partition: int, more_bytes: Mapping[UUID, int]) -> None:
        for part in _parts(list(more_bytes.items()), self.changes_max):
            self._change(
                [f"bytes {partition}"],
                partial(_add_bytes, partition=partition, more=part),
                is_repeatable=False,
            )

    def bytes_appended(self, topic_id: UUID, partition: int) -> int:
        key = key_of(TopicPartition(topic_id, partition))
        row = self._read(lambda found: found.find(APPENDED, key))
        return 0 if row is None else number(row[0])

    def _set_back(self, partition: int, change: Callable[[Records], _T]) -> _T:
        """Wait for the keeper of a partition's offsets, then change them."""
        deadline = time.monotonic() + _KEPT_SECONDS_MAX
        while True:
            try:
                return self._change([_offsets_of(partition)], change)
            except Kept as kept:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"the log of partition {partition} is being trimmed, or its service died "
                        "while it was",
                        hint="start the service of that partition if it does not run, and try "
                        "again after some seconds",
                    ) from kept
                time.sleep(_KEPT_POLL_SECONDS)


def not_made(place: str) -> NotFound:
    return NotFound(
        f"there is no state at {place} yet",
        hint="it is made with the first topic",
        context={"not_made": place},
    )


def _offsets_of(partition: int) -> str:
    return f"offsets {partition}"


def _forget_keeper(records: Records, *, partition: int, keeper: str) -> None:
    if records.find(KEEPERS, (partition,)) == (keeper,):
        records.drop(KEEPERS, (partition,))


def _add_bytes(records: Records, *, partition: int, more: Sequence[tuple[UUID, int]]) -> None:
    for topic_id, count in more:
        key = key_of(TopicPartition(topic_id, partition))
        row = records.find(APPENDED, key)
        records.put(APPENDED, key, count + (0 if row is None else number(row[0])))


def _parts(all_of_them: Sequence[_T], size: int) -> list[Sequence[_T]]:
    return [all_of_them[at : at + size] for at in range(0, len(all_of_them), size)]
