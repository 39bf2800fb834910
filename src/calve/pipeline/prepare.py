"""Makes a topic ready to be written: its table looked at, its ranges cut, its pieces described.

Everything that would be refused at the commit, and can be known before, is refused here, so that a
topic that stopped leaves no files behind with every try.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from calve.pipeline.plan import cut, pieces_of, sample_bytes
from calve.pipeline.publish import forget_untold
from calve.pipeline.shapes import shape_of
from calve.pipeline.work import Piece
from calve.tables.offsets import LogRange, next_offset, range_operation_id
from calve.tables.own_files import are_there
from calve.tables.positions import committed_at, committed_position
from calve.tables.topic_tables import grown_for, target_file_bytes

if TYPE_CHECKING:
    from uuid import UUID

    from pyiceberg.table import Table

    from calve.access.tickets import TicketSigner
    from calve.clock import Clock
    from calve.pipeline.dead_letters import DeadLetterCommits
    from calve.pipeline.feed import Parcel, PartitionFeed
    from calve.pipeline.lane_work import PartitionWork, TopicWork
    from calve.pipeline.publish import Publishing
    from calve.pipeline.tables import TopicTables
    from calve.pipeline.work import TableShape
    from calve.tables.positions import Position
    from calve.topics.topic import Topic

# Less than the age at which files that no table knows are removed, unless somebody says otherwise.
PARCEL_SECONDS_MAX: Final = 24 * 3600.0
SKIPPED: Final = "skipped: the pipeline was told to set these rows aside"


class Preparation:
    def __init__(
        self,
        tables: TopicTables,
        letters: DeadLetterCommits,
        publishing: Publishing,
        *,
        tasks_max: int,
        clock: Clock,
        signer: TicketSigner | None = None,
    ) -> None:
        """`signer` signs the tickets of tasks, where services need tokens."""
        self._signer = signer
        self._tables = tables
        self._letters = letters
        self._publishing = publishing
        self._tasks_max = tasks_max
        self._clock = clock

    def prepare(self, work: TopicWork) -> bool:
        """Read the table, and describe what has to be written for it; whether anything has."""
        topic, feed = work.topic, work.feed
        makes = any(part.end > _begin(topic, part.feed) for part in work.parts)
        table = self._tables.table(feed, topic, makes=makes)
        if table is None:
            for part in work.parts:
                part.feed.committed = _begin(topic, part.feed)
            return False
        self._publishing.require_not_rewound(topic, feed, table)
        self._tables.look_for_dead_letters(feed, topic, table)
        work.table, work.schema = table, grown_for(table, topic.schema)
        shape = shape_of(table, work.schema)
        # Those of the others follow where it is known that their partition may go on.
        self._letters.settle_all(topic, table, but={part.feed.number for part in work.parts})
        for part in work.parts:
            self._prepare(work, part, table, shape)
        idle = [part.feed for part in work.parts if not part.pieces and not part.feed.parcel]
        is_ready = len(idle) < len(work.parts)
        untold = forget_untold(idle)
        if untold is not None and not is_ready:
            raise untold
        return is_ready

    def _prepare(
        self, work: TopicWork, part: PartitionWork, table: Table, shape: TableShape
    ) -> None:
        feed, log = part.feed, part.feed.log
        assert log is not None
        position = committed_position(table, feed.number)
        part.replaces = _replaced_log(work.topic, feed, position)
        if part.replaces is not None:
            # Or it takes the table from the topic that was given it meanwhile.
            self._tables.require_bound(work.topic, feed.number)
        start = next_offset(
            table,
            feed.number,
            log.place.stream_id,
            last_seen=feed.last_seen,
            replaces=part.replaces,
        )
        feed.committed = None
        self._letters.settle(work.topic, table, feed.number)
        if position is not None:
            self._publishing.tell(work.topic, feed, start)
        feed.committed, feed.last_seen = start, position or feed.last_seen
        if feed.committed_at is None and position is not None:
            feed.committed_at = committed_at(table, position)
        if feed.parcel is not None and not self._is_good(feed.parcel, work, part, start):
            feed.parcel = None
        if feed.parcel is None and start < part.end:
            log.require(start)
            self._cut(work, part, start, shape)

    def _is_good(self, parcel: Parcel, work: TopicWork, part: PartitionWork, start: int) -> bool:
        """Whether what was written before can still be committed; else it is written again."""
        assert work.table is not None
        is_wanted = parcel.is_skip or part.skip_to <= parcel.rows.start
        is_next = parcel.rows.start == start
        is_same = parcel.schema == work.schema and parcel.topic_version == work.topic.version
        # To whoever removes orphans its files are some, once they are old enough.
        is_young = self._clock.monotonic() - parcel.written_at < PARCEL_SECONDS_MAX
        # Whoever purges a table of dead letters deletes what was written for it, sooner or later.
        letters = work.feed.dead_letters
        is_kept = not parcel.dead_letters or bool(letters and letters.location == parcel.letters_at)
        is_good = is_wanted and is_next and is_same and is_young and is_kept
        return is_good and are_there(work.table.io, parcel.paths)

    def _cut(self, work: TopicWork, part: PartitionWork, start: int, shape: TableShape) -> None:
        """Describe the pieces of the next range."""
        feed, log, table = part.feed, part.feed.log, work.table
        assert log is not None
        assert table is not None
        end = min(part.end, part.skip_to) if part.skip_to > start else part.end
        waiting_bytes = log.extent(start, end).bytes
        target = target_file_bytes(table)
        sizes = self._sizes(work, part, min(waiting_bytes, part.bytes_max), target)
        ends = cut(log, start, end, sizes, waiting_bytes)
        rows = LogRange(feed.number, log.place.stream_id, start, ends[-1], "")
        part.operation_id = range_operation_id(rows)
        pieces = (
            Piece(
                number=0,
                topic=work.topic,
                partition=feed.number,
                place=log.place,
                start=first,
                end=last,
                table=shape,
                dead_letters=work.feed.dead_letters,
                operation_id=part.operation_id,
                file_bytes=target,
                log_bytes=waiting_bytes * (last - first) // (end - start),
                set_aside=SKIPPED if part.skip_to > start else "",
            )
            for first, last in pairwise(ends)
        )
        part.pieces = [self._with_ticket(piece) for piece in pieces]

    def _sizes(
        self, work: TopicWork, part: PartitionWork, log_bytes: int, target: int
    ) -> list[float]:
        ratio = work.feed.ratio.known
        sample = sample_bytes(log_bytes, ratio, target)
        part.is_sample = sample is not None
        return [sample] if sample else pieces_of(log_bytes, ratio or 1.0, target, self._tasks_max)

    def _with_ticket(self, piece: Piece) -> Piece:
        """A task has no token: it gets a ticket for its range alone, if it may need one."""
        if self._signer is None or piece.place.flight is None:
            return piece
        ticket = msgspec.json.encode(self._signer.signed(piece.span.range))
        return msgspec.structs.replace(piece, ticket=ticket)


def _replaced_log(topic: Topic, feed: PartitionFeed, position: Position | None) -> UUID | None:
    """The log that the partition's own takes over from, where somebody has decided that it does.

    A topic that is bound to a table, or that was given a new log, begins where the table ended.
    Its log is given the table then; but of two that are begun at once, the other may be the last.
    """
    log = feed.log
    if position is None or log is None or position.log == log.place.stream_id:
        return None
    begins = topic.first_offsets.get(feed.number)
    return position.log if begins == position.offset == log.begins_at else None


def _begin(topic: Topic, feed: PartitionFeed) -> int:
    return topic.first_offsets.get(feed.number, 0)
