"""Dead letters as they are found in their table, and counted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from calve.ingest.dead_letters.selection import Matcher
from calve.ingest.dead_letters.views import Letter, LetterList, ReasonCount
from calve.tables.columns import OFFSET, PARTITION
from calve.tables.dead_letters import INGESTED_AT
from calve.tables.offset_scan import offset_files
from calve.tables.reading import FileReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyiceberg.table import Table

    from calve.ingest.dead_letters.views import Selection

REASONS_MAX: Final = 100
_REASONS_HELD_MAX: Final = 20_000
_SHOWN: Final = (PARTITION, OFFSET, INGESTED_AT, "reason", "content_type")


class LetterScan:
    """The dead letters that are meant, in one state of their table; memory is bounded."""

    def __init__(
        self, table: Table, selection: Selection, ends: Mapping[int, int] | None = None
    ) -> None:
        """With `ends`, only those before the end of their partition."""
        self._matcher = Matcher(selection, ends)
        self._runs = runs = self._matcher.runs
        found = offset_files(table, table.metadata.current_snapshot_id)
        self._files = [each for each in found if runs is None or each.may_hold(runs)]
        self._reader = FileReader(table, [each.task for each in self._files])

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """File by file, roughly by offset."""
        for number in range(len(self._files)):
            yield from self._of_file(number, columns)

    def lowest(self, columns: Sequence[str], rows_max: int) -> pa.Table:
        """Those with the lowest offsets, in their order, at most so many."""
        found: pa.Table | None = None
        for number, file in enumerate(self._files):
            is_full = found is not None and found.num_rows >= rows_max
            if is_full and file.first is not None and file.first > _last(found):
                break
            for batch in self._of_file(number, columns):
                part = pa.Table.from_batches([batch])
                found = part if found is None else pa.concat_tables([found, part])
                if found.num_rows > 2 * rows_max:
                    found = _sorted(found, rows_max)
        return _sorted(found, rows_max) if found is not None else pa.table({OFFSET: []})

    def _of_file(self, number: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        wanted = {*columns, *self._matcher.columns}
        task = self._files[number].task
        for batch in self._reader.batches(task, tuple(wanted), where=self._where()):
            rows = self._matcher.matching(batch)
            if rows.num_rows:
                yield rows.select(list(columns))

    def _where(self) -> str | None:
        """Lets whole parts of a file be left out."""
        if self._runs is None or not len(self._runs):
            return None
        return f"{OFFSET} >= {self._runs.firsts[0]} and {OFFSET} < {self._runs.ends[-1]}"


def list_letters(topic: str, table: Table | None, selection: Selection, limit: int) -> LetterList:
    """Count those that are meant, and list the first of them."""
    if table is None:
        return LetterList(topic=topic, count=0, reasons=[], other_reasons=0, letters=[])
    reasons = _Reasons()
    for batch in LetterScan(table, selection).batches(("reason",)):
        reasons.add(batch.column("reason"))
    rows = LetterScan(table, selection).lowest(_SHOWN, limit)
    return LetterList(
        topic=topic,
        count=reasons.count,
        reasons=[ReasonCount(reason=r, count=n) for r, n in reasons.most_common(REASONS_MAX)],
        other_reasons=reasons.count - sum(n for _, n in reasons.most_common(REASONS_MAX)),
        letters=[letter_of(row) for row in rows.to_pylist()],
    )


def letter_of(row: Mapping[str, object]) -> Letter:
    return msgspec.convert(
        {
            "partition": row[PARTITION],
            "offset": row[OFFSET],
            "ingested_at": row[INGESTED_AT],
            "reason": row["reason"],
            "content_type": row["content_type"],
        },
        Letter,
    )


class _Reasons:
    """Counts by reason. Of more reasons than can be held, the rarest are only counted."""

    def __init__(self) -> None:
        self.count = 0
        self._by_reason: Counter[str] = Counter()

    def add(self, reasons: pa.Array) -> None:
        self.count += len(reasons)
        for each in pc.value_counts(reasons).to_pylist():
            self._by_reason[each["values"]] += each["counts"]
        if len(self._by_reason) > _REASONS_HELD_MAX:
            self._by_reason = Counter(dict(self._by_reason.most_common(_REASONS_HELD_MAX // 2)))

    def most_common(self, count: int) -> list[tuple[str, int]]:
        return sorted(self._by_reason.most_common(count), key=lambda each: (-each[1], each[0]))


def _sorted(rows: pa.Table, rows_max: int) -> pa.Table:
    order = [(OFFSET, "ascending"), (PARTITION, "ascending")]
    return rows.take(pc.select_k_unstable(rows, rows_max, order)).combine_chunks()


def _last(rows: pa.Table) -> int:
    last: int = pc.max(rows.column(OFFSET)).as_py()
    return last
