"""Commits what was written: one range of a partition after the other, each once.

A parcel whose commit may or may not have happened is kept and sent again with the same files. One
that the table has no place for any more is let go: the range is read and written again.
"""

from __future__ import annotations

import logging
import pickle
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from calve.errors import CalveError, Conflict, Corruption, NotFound, Unavailable
from calve.pipeline.dead_letters import naming
from calve.pipeline.due import FlushLimits
from calve.pipeline.feed import Parcel
from calve.pipeline.waits import BRIEF_RETRY
from calve.protocol import error_of
from calve.tables.dead_letters import LET_GO
from calve.tables.expiry import clear_away
from calve.tables.offsets import LogRange, commit_range
from calve.tables.positions import committed_position
from calve.tables.ranges import Ranges
from calve.tables.staging import Edit
from calve.tables.topic_tables import lacking_properties, require_topic_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from calve.clock import Clock
    from calve.pipeline.dead_letters import DeadLetterCommits
    from calve.pipeline.lane_work import PartitionWork, TopicWork
    from calve.pipeline.publish import Publishing
    from calve.pipeline.tables import TopicTables
    from calve.pipeline.work import PieceDone
    from calve.settings import Settings
    from calve.topics.topic import Topic

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Commits:
    settings: Settings
    tables: TopicTables
    letters: DeadLetterCommits
    publishing: Publishing
    clock: Clock
    reach: Callable[[str], None]

    def finish(self, work: TopicWork) -> None:
        """Commit what was written for a topic, then say what could not be written."""
        # All of it is taken in first: what fails here is sent again with the same files.
        problems = [self._take_in(work, part) for part in work.parts]
        for part in work.parts:
            if part.feed.parcel is not None:
                self._commit(work, part)
        for problem in problems:
            if problem is not None:
                raise problem

    def _take_in(self, work: TopicWork, part: PartitionWork) -> CalveError | None:
        """Make a parcel of what was written without a gap; why it is not all, if it is not."""
        if not part.pieces:
            return None
        failed = next((n for n, each in enumerate(part.done) if not _is_good(each)), None)
        good = part.done[:failed]
        if failed is not None:
            self._clear(work, part.done[failed:])
        for piece, each in zip(part.pieces, good, strict=False):
            work.feed.ratio.learn(piece.log_bytes, each.file_bytes)
        if good and part.is_sample and work.feed.ratio.known is not None:
            self._clear(work, good)
            work.feed.is_due_now = True
        elif good:
            part.feed.parcel = _parcel(work, part, good, self.clock.monotonic())
        if failed is None:
            return None
        return self._problem(work, part.done[failed])

    def _problem(self, work: TopicWork, done: PieceDone) -> CalveError | None:
        if done.problem is not None:
            return error_of(done.problem)
        assert work.table is not None
        try:
            self.tables.make_dead_letters(work.feed, work.topic, work.table)
        except Unavailable as error:
            return error  # What was written before it, and of other partitions, is committed.
        work.feed.is_due_now = True
        return None

    @staticmethod
    def _clear(work: TopicWork, done: Sequence[PieceDone]) -> None:
        """Delete files behind a gap, or of a sample: nobody was ever asked to commit them."""
        assert work.table is not None
        for each in done:
            for files in (each.files, each.dead_letters):
                clear_away(work.table.io, [file.file_path for file in _unpacked(files)])

    def _commit(self, work: TopicWork, part: PartitionWork) -> None:
        feed, parcel = part.feed, part.feed.parcel
        assert parcel is not None
        assert work.table is not None
        self.reach("before commit")
        try:
            done = commit_range(
                work.table,
                parcel.rows,
                Edit(added=parcel.files, schema=parcel.schema),
                operation_id=parcel.operation_id,
                last_seen=feed.last_seen,
                replaces=part.replaces,
                retry=BRIEF_RETRY,
                properties_for=partial(self._properties, work.topic, parcel),
            )
        except (Conflict, Corruption, NotFound):
            # Somebody else has changed the table or was faster; what it is now has to be read.
            feed.forget_position()
            raise
        self.reach("committed")
        work.table = done.table
        # Until the rest is done too, somebody has to look again.
        feed.parcel = feed.committed = None
        feed.last_seen, feed.committed_at = done.position, self.clock.now()
        if done.is_new:
            self._count(work, part, parcel)
        self.letters.settle(work.topic, done.table, feed.number, parcel)
        self.reach("dead letters committed")
        self.publishing.tell(work.topic, feed, done.position.offset, is_commit=done.is_new)
        feed.committed = feed.published
        self.reach("published")

    def _properties(self, topic: Topic, parcel: Parcel, table: Table) -> dict[str, str]:
        """What the commit of a parcel sets in a table that is still the topic's."""
        require_topic_table(table, topic.name, is_bound=topic.is_bound)
        if committed_position(table, parcel.rows.partition) is None:
            # Made for the topic, but maybe after that was deleted, and another begun at offset 0.
            self.tables.require_bound(topic, parcel.rows.partition)
        return {**lacking_properties(table, topic.name), **naming(table, parcel)}

    def _count(self, work: TopicWork, part: PartitionWork, parcel: Parcel) -> None:
        limits = FlushLimits.of(self.settings, work.topic)
        part.feed.pace.flushed(parcel.log_bytes, limits, by_age=parcel.by_age)
        work.commits += 1
        work.rows += parcel.row_count
        work.dead_letters += parcel.dead_letter_count
        _LOG.info(
            "%s/%s: committed %s",
            work.topic.name, part.feed.number, parcel.rows,
            extra={"rows": parcel.row_count, "files": len(parcel.files)},
        )  # fmt: skip


def _is_good(done: PieceDone) -> bool:
    return done.problem is None and not done.needs_dead_letters


def _unpacked(files: bytes) -> list[DataFile]:
    found: list[DataFile] = pickle.loads(files) if files else []  # noqa: S301
    return found


def _parcel(
    work: TopicWork, part: PartitionWork, done: Sequence[PieceDone], written_at: float
) -> Parcel:
    assert work.schema is not None
    assert work.table is not None
    pieces = part.pieces[: len(done)]
    lost = Ranges.exact(*(pair for each in done for pair in each.lost))
    rows = LogRange(
        part.feed.number,
        pieces[0].place.stream_id,
        pieces[0].start,
        pieces[-1].end,
        done[-1].checksum,
        lost,
    )
    return Parcel(
        rows=rows,
        operation_id=part.operation_id,
        files=[file for each in done for file in _unpacked(each.files)],
        dead_letters=[file for each in done for file in _unpacked(each.dead_letters)],
        schema=work.schema,
        topic_version=work.topic.version,
        log_bytes=sum(piece.log_bytes for piece in pieces),
        row_count=sum(each.rows for each in done),
        dead_letter_count=sum(each.dead_letter_rows for each in done),
        ingested_until_us=max(each.ingested_until_us for each in done),
        by_age=part.by_age,
        is_skip=bool(pieces[0].set_aside),
        written_at=written_at,
        let_go=work.table.properties.get(LET_GO, ""),
        letters_at=pieces[0].dead_letters.location if pieces[0].dead_letters else "",
    )
