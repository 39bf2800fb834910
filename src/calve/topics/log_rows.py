"""Rows of the log, of any age, under the columns that are wanted now: a topic's, or its table's.

What to do is decided once for an Arrow schema, by name: what was dropped since is left out, what
was renamed gets its name of now, what is missing is null. Columns that are wanted as they are stay
uncopied. A row that cannot be had so is found, and stands alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from calve.errors import InvalidRequest
from calve.tables.inputs.conform import ColumnPlan, conform_batch
from calve.tables.inputs.convert import converter
from calve.tables.inputs.origin import Origin, Unfit
from calve.topics.reshape import Shaper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from calve.tables.column_memory import Path
    from calve.tables.inputs.convert import Convert
    from calve.tables.partitions import Room
    from calve.wal import Entry

    Place: TypeAlias = Callable[[Path], Path | None]

# Where and when each row came.
PLACE_FIELDS: Final = (
    pa.field("_calve_partition", pa.int32(), nullable=False),
    pa.field("_calve_offset", pa.int64(), nullable=False),
    pa.field("_calve_ingested_at", pa.timestamp("us", tz="UTC"), nullable=False),
)
OFFSET: Final = PLACE_FIELDS[1].name
_PLACE_NAMES: Final = tuple(field.name for field in PLACE_FIELDS)
_CACHED_MAX: Final = 256
_HERE: Final = Origin()


class Refused(NamedTuple):
    """Rows that cannot be had as they are wanted; with their own columns and `PLACE_FIELDS`."""

    rows: pa.RecordBatch
    reason: str


def placed(entries: Sequence[Entry], partition: int) -> pa.Table:
    """The rows of entries of one schema, uncopied, with where and when each came."""
    rows = pa.Table.from_batches([entry.batch for entry in entries])
    counts = [entry.end_offset - entry.first_offset for entry in entries]
    offsets = [np.arange(entry.first_offset, entry.end_offset) for entry in entries]
    times = np.repeat([entry.ingested_at_us for entry in entries], counts)
    arrays = (
        pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows),
        pa.array(offsets[0] if len(offsets) == 1 else np.concatenate(offsets)),
        pa.array(times).view(PLACE_FIELDS[2].type),
    )
    for field, array in zip(PLACE_FIELDS, arrays, strict=True):
        rows = rows.append_column(field, array)
    return rows


class LogRows:
    """Knows how rows of every schema become rows of `wanted`, which may have `PLACE_FIELDS`.

    `place` says where a column of the log belongs, or that it was dropped. A value in a column that
    is not wanted at all is left out, or with `keeps_unknown` a reason to refuse its row. With
    `room`, so is a value that has no place in the table's partitions.
    """

    def __init__(
        self,
        wanted: pa.Schema,
        place: Place,
        *,
        keeps_unknown: bool = False,
        room: Room | None = None,
    ) -> None:
        self.schema = wanted
        self._place = place
        self._keeps_unknown = keeps_unknown
        self._room = room
        self._last: tuple[pa.Schema, LogPlan] | None = None
        self._plans: dict[pa.Schema, LogPlan] = {}

    def plan(self, source: pa.Schema) -> LogPlan:
        """For tables that `placed` made."""
        # Arrow compares schemas in a fraction of the time that it needs to hash one.
        if self._last is not None and self._last[0].equals(source):
            return self._last[1]
        found = self._plans.get(source)
        if found is None:
            if len(self._plans) >= _CACHED_MAX:
                self._plans.clear()
            found = self._plans[source] = self._planned(source)
        self._last = source, found
        return found

    def _planned(self, source: pa.Schema) -> LogPlan:
        planning = _Planning(self.schema, source, self._place)
        return planning.result(keeps_unknown=self._keeps_unknown, room=self._room)


@dataclass(frozen=True, slots=True)
class LogPlan:
    """How rows of one schema become those that are wanted."""

    _columns: list[ColumnPlan]
    _wanted: pa.Schema
    _set_aside: tuple[tuple[int, str], ...]  # a value in such a column refuses its row
    _refusal: str | None  # of every row
    _room: Room | None

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """All rows; InvalidRequest if one of them cannot be had so."""
        if self._refusal is not None:
            raise InvalidRequest(self._refusal)
        places = range(1, 1 + batch.num_rows)
        return conform_batch(batch, self._columns, self._wanted, _HERE, places)

    def split(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | Refused]:
        """The rows that can be had, and those that cannot."""
        for place, reason in self._set_aside:
            column = batch.column(place)
            if column.null_count < len(column):
                has_value = column.is_valid()
                yield Refused(batch.filter(has_value), reason)
                batch = batch.filter(pc.invert(has_value))
        if batch.num_rows and self._refusal is not None:
            yield Refused(batch, self._refusal)
        elif batch.num_rows:
            yield from self._sorted_out(batch)

    def _sorted_out(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | Refused]:
        """Halve what cannot be had, until the rows that are to blame stand alone."""
        try:
            rows = self.rows(batch)
        except InvalidRequest as error:
            if batch.num_rows == 1:
                yield Refused(batch, error.message)
                return
            half = batch.num_rows // 2
            yield from self._sorted_out(batch.slice(0, half))
            yield from self._sorted_out(batch.slice(half))
        else:
            yield from self._with_room(batch, rows)

    def _with_room(
        self, batch: pa.RecordBatch, rows: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch | Refused]:
        """Of rows that come from a batch, those that some partition can hold."""
        while self._room and (found := self._room.unheld(pa.Table.from_batches([rows]))):
            marks = found.marks.combine_chunks()
            yield Refused(batch.filter(marks), found.reason)
            kept = pc.invert(marks)
            batch, rows = batch.filter(kept), rows.filter(kept)
        if rows.num_rows:
            yield rows


class _Planning:
    def __init__(self, wanted: pa.Schema, source: pa.Schema, place: Place) -> None:
        self._wanted = wanted
        self._source = source
        self._shaper = Shaper(place, adds=False)
        self._known = pa.schema([field for field in wanted if field.name not in _PLACE_NAMES])
        self._set_aside: dict[int, str] = {}
        self._sources: dict[str, tuple[int, Convert]] = {}

    def result(self, *, keeps_unknown: bool, room: Room | None) -> LogPlan:
        for at, field in enumerate(self._source):
            if field.name in _PLACE_NAMES:
                self._sources[field.name] = at, converter(field.type, field.type)
            else:
                self._take(at, field)
        if keeps_unknown:
            for path in self._shaper.unknown:
                at = self._source.get_field_index(path[0])
                self._set_aside.setdefault(at, f"the table has no column {'.'.join(path)!r}")
        lacking = [
            field.name
            for field in self._wanted
            if not field.nullable and field.name not in self._sources
        ]
        refusal = f"the required column {lacking[0]!r} is missing" if lacking else None
        columns = [self._column(field) for field in self._wanted]
        return LogPlan(columns, self._wanted, tuple(self._set_aside.items()), refusal, room)

    def _take(self, at: int, field: pa.Field) -> None:
        name = self._shaper.name((field.name,), field.type, self._known)
        if name is None:
            return
        if name in self._sources:
            self._set_aside[at] = f"column {name!r} is there twice: also as {field.name!r}"
            return
        wanted = self._known.field(name).type
        shaped = self._shaper.shape(field.type, wanted, (field.name,))
        try:
            convert = converter(shaped.type, wanted)
        except Unfit as error:
            self._set_aside[at] = f"column {name!r}: {error.problem}"
            return
        self._sources[name] = at, shaped.then(convert)

    def _column(self, field: pa.Field) -> ColumnPlan:
        if field.name not in self._sources:
            return ColumnPlan(field, None, converter(pa.null(), field.type))
        at, convert = self._sources[field.name]
        return ColumnPlan(field, at, convert)
