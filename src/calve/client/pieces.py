"""Rows of any kind as pieces of bounded size, and pieces as the batches that are sent.

Values without types get those of the topic, where it has them, when they are sent; so many small
pieces cost one conversion. A piece whose values do not fit fails alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from calve.errors import CalveError, InvalidRequest
from calve.tables.inputs.fitting import RowFitter
from calve.tables.inputs.parts import Columns, Part, read_parts
from calve.tables.schemas import schema_from_arrow

if TYPE_CHECKING:
    from calve.client.delivery import Delivery

_SAMPLED: Final = 8
_VALUE_BYTES: Final = 8
_UNBOUNDED: Final = 1 << 60


class Piece(NamedTuple):
    """Rows of one call of `produce`, or a part of them."""

    part: Part
    size_bytes: int
    delivery: Delivery
    sequence: int | None
    since: float


class Share(NamedTuple):
    """How many rows of a batch are whose."""

    piece: Piece
    row_count: int


class Batch(NamedTuple):
    rows: pa.RecordBatch
    shares: Sequence[Share]


def whole(rows: Any) -> Part:
    """The rows as one part, for an append that has a sequence of its own."""
    parts = list(read_parts(rows, rows_max=_UNBOUNDED, bytes_max=_UNBOUNDED))
    if len(parts) == 1:
        return parts[0]
    batches = [part for part in parts if isinstance(part, pa.RecordBatch)]
    if not batches:
        raise InvalidRequest("there are no rows", hint="give at least one")
    try:
        return pa.concat_batches(batches)
    except pa.ArrowInvalid as error:
        raise InvalidRequest(f"the rows are not of one kind: {error}") from error


def size_of(part: Part) -> int:
    """About how much memory a part takes."""
    if isinstance(part, pa.RecordBatch):
        size: int = part.nbytes
        return size
    return sum(_values_bytes(values) for values in part.values.values())


def _values_bytes(values: Any) -> int:
    if isinstance(values, pa.Array):
        size: int = values.nbytes
        return size
    sample = values[:_SAMPLED]
    return len(values) * (_VALUE_BYTES + sum(len(repr(v)) for v in sample) // max(len(sample), 1))


class BatchMaker:
    """Makes batches for one topic. Not safe to share between threads."""

    def __init__(self, known: Callable[[], pa.Schema | None]) -> None:
        """`known` asks for the topic's columns; None if it is not there."""
        self._known = known
        self._fitter: RowFitter | None = None
        self._given: set[str] = set()

    def forget(self) -> None:
        """The topic may have changed: ask again."""
        self._fitter = None

    def batches(
        self, pieces: Sequence[Piece], failed: Callable[[Piece, CalveError], None]
    ) -> Iterator[Batch]:
        """Pieces that follow each other, as few batches; those that do not fit, to `failed`."""
        for group in _alike(pieces):
            try:
                yield self._batch(group)
            except InvalidRequest:
                self.forget()
                for piece in group:
                    yield from self._alone(piece, failed)

    def _alone(self, piece: Piece, failed: Callable[[Piece, CalveError], None]) -> Iterator[Batch]:
        try:
            yield self._batch([piece])
        except InvalidRequest as error:
            failed(piece, error)

    def _batch(self, group: Sequence[Piece]) -> Batch:
        rows = self._rows([piece.part for piece in group])
        return Batch(rows, [Share(piece, piece.part.num_rows) for piece in group])

    def _rows(self, parts: Sequence[Part]) -> pa.RecordBatch:
        batches = [part for part in parts if isinstance(part, pa.RecordBatch)]
        if batches:
            return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        columns = [part for part in parts if isinstance(part, Columns)]
        merged = columns[0] if len(columns) == 1 else _merged(columns)
        fitted = self._fitted_by().fit(merged)
        # The same columns each time, once they were given: one stream has one schema.
        self._given |= merged.values.keys()
        return fitted.select([name for name in fitted.schema.names if name in self._given])

    def _fitted_by(self) -> RowFitter:
        if self._fitter is None:
            schema = self._known()
            self._fitter = RowFitter(schema_from_arrow(schema)) if schema else RowFitter()
        return self._fitter


def _alike(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Runs of pieces that go into one batch."""
    group: list[Piece] = []
    for piece in pieces:
        if group and not _is_alike(group[-1], piece):
            yield group
            group = []
        group.append(piece)
    if group:
        yield group


def _is_alike(one: Piece, other: Piece) -> bool:
    if one.sequence is not None or other.sequence is not None:
        return False
    if isinstance(one.part, pa.RecordBatch) and isinstance(other.part, pa.RecordBatch):
        return bool(one.part.schema.equals(other.part.schema, check_metadata=True))
    return _has_lists(one.part) and _has_lists(other.part)


def _has_lists(part: Part) -> bool:
    return isinstance(part, Columns) and all(isinstance(v, list) for v in part.values.values())


def _merged(parts: Sequence[Columns]) -> Columns:
    names = dict.fromkeys(name for part in parts for name in part.values)
    values: dict[str, list[Any]] = {name: [] for name in names}
    for part in parts:
        for name, merged in values.items():
            merged.extend(part.values.get(name) or [None] * part.num_rows)
    return Columns(values, sum(part.num_rows for part in parts))
