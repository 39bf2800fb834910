"""The dead letters of one topic: listed, shown, sent again, discarded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Unpack

import msgspec

from calve.audit import audited
from calve.audit.actions import DEAD_LETTERS
from calve.errors import Conflict, InvalidRequest, NotFound
from calve.ingest.dead_letters.letters import LetterScan, letter_of, list_letters
from calve.ingest.dead_letters.original import shown
from calve.ingest.dead_letters.replay import REASONS_SHOWN, Replay
from calve.ingest.dead_letters.rounds import round_under_way
from calve.ingest.dead_letters.selection import selected
from calve.ingest.dead_letters.views import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    OFFSET_MAX,
    Discarded,
    Filters,
    LetterList,
    LetterView,
    Replayed,
    Selection,
    require_meant,
)
from calve.tables.columns import OFFSET, PARTITION
from calve.tables.dead_letters import INGESTED_AT, find_dead_letter_table
from calve.tables.offset_scan import offset_runs
from calve.tables.positions import committed_positions
from calve.tables.runs import Runs

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table

    from calve.audit import Trail
    from calve.ingest.intake import Intake
    from calve.model import TableName
    from calve.tables.catalog import LakeCatalog

_DISCARDED_MAX: Final = 1_000_000
_WAITING: Final = "the next commit brings what came since"
_COLUMNS: Final = (PARTITION, OFFSET, INGESTED_AT, "reason", "content_type", "original")


@audited(DEAD_LETTERS)
class DeadLetters:
    """The rows that a topic could not take, which lie in `<topic>__dead_letters`."""

    def __init__(
        self,
        catalog: Callable[[], LakeCatalog],
        topic: TableName,
        intake: Callable[[], Intake],
        require_topic: Callable[[TableName], object],
        *,
        trail: Trail,
    ) -> None:
        """Only a replay asks for the intake; `require_topic` says if there is none of a name."""
        self._open_catalog = catalog
        self._topic = topic.by_user()
        self._intake = intake
        self._require_topic = require_topic
        self._trail = trail
        self.audit_subject = str(self._topic)

    @classmethod
    def of(cls, intake: Intake, topic: TableName) -> DeadLetters:
        """Those of a service."""
        return cls(
            lambda: intake.catalog,
            topic,
            lambda: intake,
            intake.topics.topic,
            trail=intake.audit,
        )

    @property
    def _catalog(self) -> LakeCatalog:
        return self._open_catalog()

    def list(self, *, limit: int = LIMIT_DEFAULT, **filters: Unpack[Filters]) -> LetterList:
        """How many there are, by reason, and the first of them by offset."""
        return self.list_some(selected(filters), limit)

    def list_some(self, selection: Selection, limit: int = LIMIT_DEFAULT) -> LetterList:
        if not 1 <= limit <= LIMIT_MAX:
            raise InvalidRequest(f"the limit is {limit}", hint=f"it is from 1 to {LIMIT_MAX:,}")
        table = self._find_table()
        return list_letters(str(self._topic), table, selection, limit)

    def show(self, offset: int, partition: int | None = None) -> LetterView:
        """One of them, with what was sent so that a person can read it."""
        row = self._one(offset, partition)
        letter = letter_of(row)
        original = row["original"]
        assert isinstance(original, bytes)
        return LetterView(
            topic=str(self._topic),
            size_bytes=len(original),
            **msgspec.structs.asdict(letter),
            **shown(original, letter.content_type),
        )

    def original(self, offset: int, partition: int | None = None) -> bytes:
        """What was sent, byte for byte."""
        original = self._one(offset, partition)["original"]
        assert isinstance(original, bytes)
        return original

    def replay(
        self, *, dry_run: bool = False, give_up: bool = False, **filters: Unpack[Filters]
    ) -> Replayed:
        """Send all that are meant to the topic again, each once, and remove them here.

        What still does not fit becomes a dead letter again, at its new offset. Call it again if it
        was interrupted. `give_up` forgets an interrupted one whose log is lost.
        """
        selection = _meant(filters)
        done = self.replay_some(selection, dry_run=dry_run, give_up=give_up)
        while not (done.is_done or dry_run):
            more = self.replay_some(selection, ends=done.ends)
            reasons = [*dict.fromkeys([*done.reasons, *more.reasons])][:REASONS_SHOWN]
            done = msgspec.structs.replace(
                more,
                rows=done.rows + more.rows,
                rejected=done.rejected + more.rejected,
                reasons=reasons,
            )
        return done

    def replay_some(
        self,
        selection: Selection,
        *,
        ends: Mapping[int, int] | None = None,
        dry_run: bool = False,
        give_up: bool = False,
    ) -> Replayed:
        """The same for as many as one commit removes; `ends` are those that the first call told."""
        ends = self._ends() if ends is None else ends
        replay = Replay(self._intake(), self._catalog, self._topic, self._table)
        if dry_run:
            return replay.try_out(selection, ends)
        if give_up:
            replay.give_up_round()
        return replay.run_round(selection, ends)

    def discard(self, *, dry_run: bool = False, **filters: Unpack[Filters]) -> Discarded:
        """Remove all that are meant; it is recorded that it was on purpose."""
        selection = _meant(filters)
        done = self.discard_some(selection, dry_run=dry_run)
        while not (done.is_done or dry_run):
            more = self.discard_some(selection, ends=done.ends)
            done = msgspec.structs.replace(more, count=done.count + more.count)
        return done

    def discard_some(
        self,
        selection: Selection,
        *,
        ends: Mapping[int, int] | None = None,
        dry_run: bool = False,
    ) -> Discarded:
        """The same for as many as one commit removes."""
        table = self._table()
        ends = self._ends() if ends is None else ends
        rows = LetterScan(table, selection, ends).lowest((PARTITION, OFFSET), _DISCARDED_MAX)
        if rows.num_rows and not dry_run:
            self._remove(table, offset_runs([rows]))
        return Discarded(
            topic=str(self._topic),
            count=rows.num_rows,
            is_done=rows.num_rows < _DISCARDED_MAX,
            ends=dict(ends),
            dry_run=dry_run,
        )

    def _remove(self, table: Table, offsets: Mapping[int, Runs]) -> None:
        from calve.changes import delete_offsets

        under_way = round_under_way(table.properties)
        for partition, runs in under_way.offsets.items() if under_way else ():
            if len(runs.intersection(offsets.get(partition, Runs.empty()))):
                raise Conflict(
                    f"some of these dead letters of {self._topic} are being replayed",
                    hint=f"`calve dead-letter replay {self._topic} --all` finishes what was "
                    "interrupted; then discard what is left",
                )
        delete_offsets(self._catalog, self._topic.dead_letters, offsets, operation="discard")

    def _one(self, offset: int, partition: int | None) -> dict[str, object]:
        wanted = Selection(offsets=str(min(offset, OFFSET_MAX - 1)), partition=partition)
        found: list[pa.RecordBatch] = list(LetterScan(self._table(), wanted).batches(_COLUMNS))
        rows: list[dict[str, object]] = [row for batch in found for row in batch.to_pylist()]
        if not rows:
            raise NotFound(
                f"{self._topic} has no dead letter with offset {offset} in its table",
                hint=f"`calve dead-letter list {self._topic}` shows those there are; {_WAITING}",
            )
        if len(rows) > 1:
            partitions = sorted({str(each[PARTITION]) for each in rows})
            raise InvalidRequest(
                f"several partitions of {self._topic} have a dead letter with offset {offset}: "
                f"{', '.join(partitions)}",
                hint="name the partition",
            )
        return rows[0]

    def _find_table(self) -> Table | None:
        """None if the topic has none; a topic that was deleted may have left them."""
        table = find_dead_letter_table(self._catalog, self._topic)
        if table is None:
            self._require_topic(self._topic)
        return table

    def _table(self) -> Table:
        table = self._find_table()
        if table is None:
            raise NotFound(
                f"{self._topic} has no dead letters in its table",
                hint=f"{_WAITING}; `calve topic flush {self._topic}` waits for it",
            )
        return table

    def _ends(self) -> dict[int, int]:
        positions = committed_positions(self._table())
        return {partition: position.offset for partition, position in positions.items()}


def _meant(filters: Filters) -> Selection:
    selection = selected(filters)
    require_meant(selection, everything=filters.get("all", False))
    return selection
