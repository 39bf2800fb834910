"""The intake: where rows come into a lake, whichever door they came through.

One per process and log. Rows are fitted to their topic, what the topic learns from them is made
durable first, and they are appended to the log, which acknowledges them. Every method may be
called from any thread.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from calve.access import Doorkeeper
from calve.access.limits import TenantLimits
from calve.audit import Trail, audited
from calve.audit.actions import TOPICS
from calve.clock import Clock, SystemClock
from calve.errors import CalveError, Conflict, Fenced, Unavailable, UnknownOutcome
from calve.ingest.admission import Admission
from calve.ingest.attached import Attached, Attachments
from calve.ingest.creation import TopicCreation
from calve.ingest.crowd import Crowd
from calve.ingest.keeper import Keeper
from calve.ingest.kept_log import KeptLog
from calve.ingest.log_shares import LogShares
from calve.ingest.prepare import Prepared, bytes_of, parts_of, prepare, rows_in
from calve.ingest.readers import ReaderPool
from calve.ingest.refusals import as_refusal, refusing
from calve.protocol import LogEnds
from calve.sources.flushing import Awaited, behind, ends_elsewhere, not_flushed
from calve.state import open_state
from calve.topics.control import PipelineControl
from calve.topics.registry import TopicRegistry
from calve.wal import LogOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Self

    from calve.ingest.admission import Admitted
    from calve.model import TableName
    from calve.query.queries import Queries
    from calve.settings import Settings
    from calve.state import State
    from calve.subscriptions.served import ServedSubscriptions
    from calve.tables.catalog import LakeCatalog
    from calve.topics.topic import Topic, TopicChange, TopicSpec
    from calve.wal import Acknowledgement, Entry, Files, Log, PendingAppend, Stream
    from calve.wal.payload import Part

_NOTHING: Final = nullcontext()
_POLL_SECONDS_MIN: Final = 0.01
_POLL_SECONDS_MAX: Final = 0.2


class TopicOffsets(NamedTuple):
    """Of this process's partition: what the log still holds, what is durable, what is in the
    table."""

    first: int
    durable: int
    committed: int


class TopicStats(NamedTuple):
    """What is known of a topic's partition. Bytes are those of the rows that were sent, in memory;
    after a crash those of the last seconds are not counted."""

    topic: str
    partition: int
    row_count: int
    bytes_appended: int
    first: int
    durable: int
    committed: int
    producer_count: int


@audited(TOPICS)
class Intake:
    """Takes rows into topics. A context manager; `close` gives every append its outcome."""

    def __init__(
        self,
        settings: Settings,
        *,
        partition: int | None = None,
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> None:
        """Open the log for writing and the registry; Conflict if another process has the log."""
        assert settings.wal.path is not None
        self.settings = settings
        self.partition = settings.ingest.partition if partition is None else partition
        self.admission = Admission(settings.ingest.memory_bytes_max)
        self.crowd = Crowd()
        self.verifying = threading.Lock()  # held by the one audit of a topic that is under way
        self._clock = clock or SystemClock()
        self.audit = self._trail = Trail.of(settings, clock=self._clock)
        self.limits = TenantLimits.of(settings, self._clock)
        self._is_ending = threading.Event()
        self._opening = threading.Lock()
        self._subscriptions: ServedSubscriptions | None = None
        self._queries: Queries | None = None
        with ExitStack() as opening:  # whatever was opened is closed again if the rest fails
            self._state = open_state(settings, clock=self._clock)
            opening.callback(self._state.close)
            options = LogOptions.of(settings.wal)
            self._kept = KeptLog(settings.wal.path, options, clock=self._clock, files=files)
            opening.callback(self._kept.close)
            self._set_up(settings)
            opening.pop_all()

    def _set_up(self, settings: Settings) -> None:
        self.doorkeeper = Doorkeeper(self._state, settings.auth, self._clock, trail=self.audit)
        self._registry = TopicRegistry(self._state, clock=self._clock)
        self._readers = ReaderPool(self._kept)
        self._creation = TopicCreation(settings, self._registry, self._clock, self.audit)
        stores = (self._state, self._registry, self._kept, self._readers)
        self._attachments = Attachments(*stores, self.partition, hand_over=self._creation.hand_over)
        self._attachments.attach_all()
        self._keeper = Keeper(self._kept, self._state, self._attachments, self.partition)
        if self.limits is not None and self.limits.bounds_log:
            self._keeper.measure_for(LogShares(self.limits, self._attachments, self._readers))

    @property
    def log(self) -> Log:
        """The log as it is open now; another one after it stopped and was opened again."""
        return self._kept.current

    @property
    def stopped(self) -> CalveError | None:
        """Why no rows are taken in for now, if the log has stopped and could not be opened."""
        return self._kept.stopped

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def topics(self) -> TopicRegistry:
        return self._registry

    @property
    def state(self) -> State:
        return self._state

    @property
    def catalog(self) -> LakeCatalog:
        """The lake's; opened at the first call."""
        return self._creation.catalog

    @property
    def subscriptions(self) -> ServedSubscriptions:
        """Those of the lake, for many consumers at once; opened at the first call."""
        with self._opening:
            self._require_open()
            if self._subscriptions is None:
                # Whoever only takes rows in need not load what reads tables.
                from calve.subscriptions.served import ServedSubscriptions

                self._subscriptions = ServedSubscriptions(
                    self.settings,
                    lambda: self.catalog,
                    bells=self._kept.bells,
                    limits=self.limits,
                )
            return self._subscriptions

    @property
    def queries(self) -> Queries:
        """Questions in SQL, of many clients at once; opened at the first call."""
        with self._opening:
            self._require_open()
            if self._queries is None:
                from calve.query.queries import Queries

                self._queries = Queries(self.settings, lambda: self.catalog, limits=self.limits)
            return self._queries

    @property
    def problems(self) -> Mapping[TableName, CalveError]:
        """Topics that do not go on here, and why; as they were found when the log was opened."""
        return self._attachments.problems

    @property
    def pipeline(self) -> PipelineControl:
        """The pipeline, to be watched and directed from here."""
        return PipelineControl(
            self._state, self._readers.reader, clock=self._clock, trail=self.audit
        )

    def create_topic(self, name: TableName, spec: TopicSpec, *, adopt: bool = False) -> Topic:
        """Make a topic; the same request again finds it. Its stream begins where its table ends.

        With `adopt` it takes over rows that the log holds under its name, and the registry does
        not know of: the state was lost.
        """
        stray = self._attachments.stray(name) if adopt else None
        with self._creation.creating(name, spec) as topic:
            if stray is not None:
                self._attachments.bind(topic, stray)
            return self._attach(name).topic

    def alter_topic(self, name: TableName, change: TopicChange) -> Topic:
        self._registry.alter(name, change)
        return self._renewed(name).topic

    def delete_topic(self, name: TableName) -> Topic:
        """Forget a topic and its rows in the logs; its table, if there is one, stays.

        Other processes that run know it afterwards, and take no rows for it any more.
        """
        topic = self._registry.delete(name)
        self._attachments.forget(name)
        with suppress(Fenced, UnknownOutcome):  # it goes with the next opening of the log
            self._attachments.end_deleted()
        self._attachments.await_ended(topic, self._is_ending)
        return topic

    def adopt_new_log(self, name: TableName) -> int:
        """Have a topic go on in this log, because its own is lost: from where its table ends.

        For an operator, never done by itself: rows that were in the lost log alone are gone, and
        rows that this log holds under the name from another life of it go. Returns the offset.
        Conflict if the topic's log is this one: its rows would go that are in no table yet.
        """
        topic = self._registry.topic(name)
        known = self._state.committed(topic.id, self.partition)
        reached = self._creation.committed_in_table(topic, self.partition)
        first = max(known.offset if known else 0, reached or 0)
        is_here = self._attachments.is_here(topic)
        if is_here and (known is None or known.log_id == self.log.log_id):
            raise _not_lost(name)
        with refusing():
            if not is_here:  # else it was begun anew, and whoever did that has died since
                self._attachments.begin_anew(topic, first)
        self._state.reset_committed(topic.id, self.partition, log_id=self.log.log_id, offset=first)
        # A range of the lost log may have come in meanwhile.
        return self._attach(name).stream.first_offset

    def submit(
        self,
        name: TableName,
        rows: Part | Sequence[Part],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        admitted: Admitted | None = None,
        is_counted: bool = False,
    ) -> PendingAppend:
        """Append rows to a topic, all or none; the handle tells when they are durable.

        A topic that is not there is made from the first batch, if `ingest.auto_create` allows it.
        What was `admitted` is released when the append is done, or refused here. With `is_counted`
        the rows have been taken off the tenant's limits already.
        """
        try:
            pending = self._submit(name, rows, producer, sequence, is_counted=is_counted)
        except Fenced as error:
            _release(admitted)
            raise as_refusal(error) from error
        except BaseException:
            _release(admitted)
            raise
        if admitted is not None:
            pending.add_done_callback(lambda _: admitted.release())
        return pending

    def repeated(
        self, name: TableName, producer: str | None, sequence: int | None
    ) -> Acknowledgement | None:
        """What a producer was told of an append, if it is in. For doors, before they refuse one:
        the topic may have changed since the rows went in, and they are in all the same."""
        attached = self._attachments.known(name)
        if attached is None or producer is None or sequence is None:
            return None
        with refusing():
            return self.log.repeated(attached.stream, producer, sequence)

    def _submit(
        self,
        name: TableName,
        rows: Part | Sequence[Part],
        producer: str | None,
        sequence: int | None,
        *,
        is_counted: bool,
    ) -> PendingAppend:
        attached = self._attachments.known(name) or self._attached_for(name, rows)
        if self.limits is not None and not is_counted:
            self.limits.require_room(name.tenant)
        attached, prepared = self._fitted(attached, rows)
        with self._counted(name, prepared.parts, is_counted=is_counted):
            pending = self.log.submit(
                attached.stream, prepared.parts, producer=producer, sequence=sequence
            )
        attached.meter.add(bytes_of(prepared.parts))
        return pending

    def require_fits(self, name: TableName, rows: Part | Sequence[Part]) -> None:
        """Raise what `submit` would say of rows that the topic cannot take, and append nothing.

        For doors whose requests fill several topics, and must not be half in.
        """
        self._fitted(self._attachments.known(name) or self._attached_for(name, rows), rows)

    def _fitted(self, attached: Attached, rows: Part | Sequence[Part]) -> tuple[Attached, Prepared]:
        """The rows as the topic takes them, which may have grown for it."""
        prepared = prepare(attached.fitter, rows)
        while prepared.topic is not attached.topic:
            attached = self._grown(attached, prepared.topic)
            prepared = prepare(attached.fitter, rows)
        return attached, prepared

    def _counted(
        self, name: TableName, parts: Part | Sequence[Part], *, is_counted: bool
    ) -> AbstractContextManager[None]:
        """Take rows off their tenant's limits, unless they are not appended inside."""
        if self.limits is None or is_counted:
            return _NOTHING
        return self.limits.counted(name.tenant, rows_in(parts), bytes_of(parts))

    def _attached_for(self, name: TableName, rows: Part | Sequence[Part]) -> Attached:
        self._require_open()
        if self._registry.find(name) is None:
            self._create_from(name, rows)
        return self._attachments.attach(name)

    def _create_from(self, name: TableName, rows: Part | Sequence[Part]) -> None:
        if not self.settings.ingest.auto_create:
            self._registry.topic(name)
        first = next((part for part in parts_of(rows) if isinstance(part, pa.RecordBatch)), None)
        if first is None:
            self._registry.topic(name)
        else:
            self._creation.create_from(name, first.schema)

    def _grown(self, attached: Attached, wanted: Topic) -> Attached:
        """The topic with what the rows need; as somebody else left it, if they were faster."""
        before = attached.topic
        now = self._registry.evolve(
            before.name,
            lambda topic: wanted if topic.version == before.version else topic,
            topic_id=before.id,
        )
        return self._attachments.replace(attached, now)

    def _renewed(self, name: TableName) -> Attached:
        return self._attachments.replace(self._attach(name), self._registry.topic(name))

    def _attach(self, name: TableName) -> Attached:
        with refusing():
            return self._attachments.attach(name)

    def offsets(self, name: TableName) -> TopicOffsets:
        attached = self._attach(name)
        with self._readers.reader() as reader:
            offsets = reader.offsets(attached.stream)
        return TopicOffsets(offsets.first, offsets.durable, self._committed(attached))

    def offsets_of(self, topic: Topic) -> TopicOffsets:
        """The same without beginning a stream: of a topic that has none here yet, where it would
        begin."""
        if self.partition in topic.partitions:
            return self.offsets(topic.name)
        first = topic.first_offsets.get(self.partition, 0)
        return TopicOffsets(first, first, first)

    def _committed(self, attached: Attached) -> int:
        known = self._state.committed(attached.topic.id, self.partition)
        return known.offset if known else attached.stream.first_offset

    def log_ends(self) -> LogEnds:
        """How far the log is, of all topics at once."""
        with self._readers.reader() as reader:
            offsets = {each.id: reader.offsets(each) for each in reader.streams}
        ends = {stream: (each.first, each.durable) for stream, each in offsets.items()}
        return LogEnds(self.log.log_id, ends)

    def read(self, name: TableName, start: int, end: int | None = None) -> Iterator[Entry]:
        """The log's entries from `start` up to `end`, or to what is durable now."""
        return self._entries(self._attach(name).stream, start, end)

    def _entries(self, stream: Stream, start: int, end: int | None) -> Iterator[Entry]:
        with self._readers.reader() as reader:
            yield from reader.read(stream, start, end)

    def flush(self, name: TableName, timeout_seconds: float) -> TopicOffsets:
        """Return when every row that was acknowledged before the call is in the table, also those
        of other partitions whose end is known here.

        Unavailable after the time-out, with how far each is.
        """
        awaited = self.request_flush(name)
        deadline = self._clock.monotonic() + timeout_seconds
        pause = _POLL_SECONDS_MIN
        while late := behind(self._state, awaited):
            remaining = deadline - self._clock.monotonic()
            if remaining <= 0:
                raise not_flushed(self._state, awaited, late, timeout_seconds)
            if self._is_ending.wait(min(pause, remaining)):
                raise _closed()
            pause = min(2 * pause, _POLL_SECONDS_MAX)
        return self.offsets(name)

    def sync(self) -> None:
        """Return when whatever was submitted is on the disk, whatever the log's mode of syncing."""
        with refusing():
            self.log.flush()

    def request_flush(self, name: TableName) -> Awaited:
        """Have the pipeline bring what was acknowledged before the call to the table, at once.

        Returns the end of it: what a flush waits for.
        """
        attached = self._attach(name)
        self.sync()
        topic = self._registry.topic(name)  # others may have begun partitions meanwhile
        ends = ends_elsewhere(self.settings, topic, self.partition)
        durable = self.offsets(name).durable
        if durable > attached.stream.first_offset:
            ends[self.partition] = durable
        for partition, end in ends.items():
            self._state.request_flush(topic.id, partition, end)
        return Awaited(name, topic.id, ends)

    def topic(self, name: TableName) -> Topic | None:
        """The topic as it is known here, at the cost of one look-up once rows of it came in."""
        known = self._attachments.known(name)
        return known.topic if known else self._registry.find(name)

    def stats(self, name: TableName) -> TopicStats:
        attached = self._attach(name)
        offsets = self.offsets(name)
        kept = self._state.bytes_appended(attached.topic.id, self.partition)
        return TopicStats(
            topic=str(name),
            partition=self.partition,
            row_count=offsets.durable - attached.stream.first_offset,
            bytes_appended=kept + attached.meter.pending_bytes,
            first=offsets.first,
            durable=offsets.durable,
            committed=offsets.committed,
            producer_count=self.log.producer_count(attached.stream),
        )

    def trim(self) -> int:
        """Let go now of what is in the tables and old enough; how many segments went."""
        with refusing():
            return self._keeper.trim()

    def close(self) -> None:
        """Finish what was submitted, every handle with its outcome, and let go of everything."""
        if self._is_ending.is_set():
            return
        with self._opening:
            self._is_ending.set()
        with ExitStack() as closing:  # each of them, also when another fails
            closing.callback(self._state.close)
            closing.callback(self._creation.close)
            closing.callback(self._readers.close)
            closing.callback(self._kept.close)
            if self._subscriptions is not None:
                closing.callback(self._subscriptions.close)
            if self._queries is not None:
                closing.callback(self._queries.close)
            self._keeper.close()
            self._keeper.save_counts()

    def _require_open(self) -> None:
        if self._is_ending.is_set():
            raise _closed()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _release(admitted: Admitted | None) -> None:
    if admitted is not None:
        admitted.release()


def _not_lost(name: TableName) -> Conflict:
    return Conflict(
        f"the log of topic {name} is not lost: it is the one that is here",
        hint=f"leave --new-log out; `calve topic verify {name}` tells what table and log hold",
        context={"topic": str(name)},
    )


def _closed() -> Unavailable:
    return Unavailable("the intake is closed", hint="open it again")
