"""Batches as a table wants them: its columns in its order and types, required values present.

Columns are matched by name, never by place. A missing nullable column is filled with null; an
unknown one, or a value that does not fit, is refused with its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa
from pyiceberg.schema import Schema

from calve.errors import InvalidRequest
from calve.tables.inputs.convert import Convert, converter, type_word
from calve.tables.inputs.origin import Origin, Unfit, first_unfit, require_values, shown
from calve.tables.nearest import meant
from calve.tables.schemas import arrow_schema

# Bounds the memory of a conversion, however large the batches are that come in.
ROWS_MAX: Final = 131_072
_COLUMNS_SHOWN: Final = 5

MakeConverter: TypeAlias = Callable[[pa.DataType, pa.DataType], Convert]


class ColumnPlan(NamedTuple):
    """Where a column of the table comes from and how it is converted."""

    field: pa.Field
    source: int | None
    convert: Convert


def conform(
    batches: pa.RecordBatchReader | pa.Table | Iterable[pa.RecordBatch],
    schema: Schema | pa.Schema,
    *,
    origin: str = "",
) -> pa.RecordBatchReader:
    """Batches that fit `schema` exactly, converted as they are read.

    Columns that cannot fit are refused at once, values when their batch is read: an InvalidRequest
    with row, column and value. `origin` names the source in messages.
    """
    reader = _reader(batches)
    return conform_reader(reader, target_schema(schema), Origin(origin))


def target_schema(schema: Schema | pa.Schema) -> pa.Schema:
    return arrow_schema(schema) if isinstance(schema, Schema) else schema


def conform_reader(
    reader: pa.RecordBatchReader,
    target: pa.Schema,
    origin: Origin,
    make: MakeConverter = converter,
) -> pa.RecordBatchReader:
    plans = plan_columns(reader.schema, target, origin, make)
    return pa.RecordBatchReader.from_batches(target, _conformed(reader, plans, target, origin))


def _reader(
    batches: pa.RecordBatchReader | pa.Table | Iterable[pa.RecordBatch],
) -> pa.RecordBatchReader:
    if isinstance(batches, pa.RecordBatchReader):
        return batches
    if isinstance(batches, pa.Table):
        return batches.to_reader()
    iterator = iter(batches)
    first = next(iterator, None)
    if first is None:
        raise InvalidRequest(
            "there are no batches", hint="give a RecordBatchReader, which has a schema when empty"
        )
    return pa.RecordBatchReader.from_batches(first.schema, chain([first], iterator))


def plan_columns(
    source: pa.Schema, target: pa.Schema, origin: Origin, make: MakeConverter = converter
) -> list[ColumnPlan]:
    match_names(source.names, target, origin)
    places = {name: place for place, name in enumerate(source.names)}
    return [_plan(field, places.get(field.name), source, origin, make) for field in target]


def match_names(names: Sequence[str], target: pa.Schema, origin: Origin) -> None:
    """Refuse names that are there twice, that the table lacks, or that it requires."""
    present = set(names)
    if len(present) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise origin.error(
            "the name is there twice", column=twice, hint="every column needs a name of its own"
        )
    known = set(target.names)
    if unknown := [name for name in names if name not in known]:
        raise origin.error(
            f"the table has no column {listed(unknown)}"
            f"{meant(unknown[0], [name for name in known if name not in present])}",
            hint=f"its columns are {listed(target.names)}; add one with `calve table add-column`",
        )
    if lacking := [f.name for f in target if not f.nullable and f.name not in present]:
        raise origin.error(
            f"the required column {listed(lacking)} is missing",
            hint=f"the data has {listed(list(names)) or 'no columns'}",
        )


def listed(names: Sequence[str]) -> str:
    more = len(names) - _COLUMNS_SHOWN
    quoted = ", ".join(shown(name) for name in names[:_COLUMNS_SHOWN])
    return f"{quoted} and {more:,} more" if more > 0 else quoted


def _plan(
    field: pa.Field, place: int | None, source: pa.Schema, origin: Origin, make: MakeConverter
) -> ColumnPlan:
    if place is None:
        return ColumnPlan(field, None, make(pa.null(), field.type))
    try:
        return ColumnPlan(field, place, make(source.field(place).type, field.type))
    except Unfit as error:
        raise origin.error(error.problem, column=field.name, hint=error.hint) from error


def _conformed(
    reader: pa.RecordBatchReader, plans: list[ColumnPlan], target: pa.Schema, origin: Origin
) -> Iterator[pa.RecordBatch]:
    done = 0
    for batch in reader:
        for start in range(0, batch.num_rows, ROWS_MAX):
            piece = batch.slice(start, ROWS_MAX)
            places = range(done + 1, done + 1 + piece.num_rows)
            yield conform_batch(piece, plans, target, origin, places)
            done += piece.num_rows


def conform_batch(
    batch: pa.RecordBatch,
    plans: list[ColumnPlan],
    target: pa.Schema,
    origin: Origin,
    places: Sequence[int],
) -> pa.RecordBatch:
    arrays = [_column(batch, plan, origin, places) for plan in plans]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def conform_array(
    array: pa.Array, field: pa.Field, origin: Origin, places: Sequence[int]
) -> pa.Array:
    """One column that fits a field of the table."""
    source = pa.schema([pa.field(field.name, array.type)])
    plan = _plan(field, 0, source, origin, converter)
    return _column(pa.RecordBatch.from_arrays([array], schema=source), plan, origin, places)


def _column(
    batch: pa.RecordBatch, plan: ColumnPlan, origin: Origin, places: Sequence[int]
) -> pa.Array:
    array = pa.nulls(batch.num_rows) if plan.source is None else batch.column(plan.source)
    try:
        converted = plan.convert(array)
    except Unfit:
        raise _unfit(array, plan, origin, places) from None
    require_values(converted, plan.field, origin, places)
    return converted


def _unfit(
    array: pa.Array, plan: ColumnPlan, origin: Origin, places: Sequence[int]
) -> InvalidRequest:
    row, problem = first_unfit(len(array), lambda n: plan.convert(array.slice(0, n)))
    return value_error(_value(array[row]), plan.field, problem, origin, places[row])


def value_error(
    value: object, field: pa.Field, problem: Unfit, origin: Origin, place: int
) -> InvalidRequest:
    seen = shown(value)
    word = type_word(field.type).removeprefix("a ")
    return origin.error(
        ": ".join(filter(None, [f"{seen} is not a valid {word}", problem.problem])),
        column=field.name,
        place=place,
        value=seen,
        hint=problem.hint or "give a value of the column's type, or change the column",
    )


def _value(scalar: pa.Scalar) -> object:
    if isinstance(scalar, pa.BinaryScalar | pa.LargeBinaryScalar):
        return _decoded(scalar.as_py())
    try:
        return scalar.as_py()
    except ValueError:
        # Nanoseconds have no Python value without pandas.
        return str(scalar)


def _decoded(value: bytes) -> str | bytes:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value
