"""Types for data that has none, from a sample of it.

A guess is narrow enough to be useful and never loses anything: numbers that begin with a zero stay
text, and a column without a value in the sample is text. Rows beyond the sample that do not fit are
refused when they are read.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from calve.errors import InvalidRequest
from calve.tables.columns import is_writable
from calve.tables.inputs.csv_file import decoded, read_cells, read_header
from calve.tables.inputs.files import InputFile, Stream
from calve.tables.inputs.json_file import json_rows
from calve.tables.inputs.origin import NO_UNICODE, Origin, Unfit, shown
from calve.tables.inputs.rows import check_row
from calve.tables.inputs.text import ZONED, parse_text
from calve.tables.schemas import arrow_schema, schema_from_arrow

_SAMPLE_BYTES: Final = 4 * 1024 * 1024
_SAMPLE_ROWS: Final = 10_000
_NOT_A_NUMBER: Final = r"^[+-]?0\d"
_TRUE_OR_FALSE: Final = r"^(?i:true|false)$"
_LOOKS_DATED: Final = r"^\d{4}-\d{2}-\d{2}"
_DEPTH_MAX: Final = 64  # far below what Python's and Rust's stacks allow
_NO_ROWS_HINT: Final = "give a file with rows, or a schema"


def storable(schema: pa.Schema, origin: Origin) -> pa.Schema:
    """The nearest schema that an Iceberg table can have."""
    try:
        return arrow_schema(schema_from_arrow(schema))
    except InvalidRequest as error:
        raise origin.error(error.message, hint=error.hint) from error


def guess_csv(file: InputFile) -> pa.Schema:
    names = read_header(file)
    sample = file.stream.peek(_SAMPLE_BYTES)
    batches = _cells(file, sample)
    if not sum(batch.num_rows for batch in batches):
        raise file.origin.error("the file has a header and no rows", hint=_NO_ROWS_HINT)
    cells = pa.Table.from_batches(batches)
    fields = []
    for place, name in enumerate(names):
        try:
            column = decoded(cells.column(place).combine_chunks())
        except Unfit as error:
            raise file.origin.error(error.problem, column=name, hint=error.hint) from error
        fields.append(pa.field(name, _cell_type(column)))
    return storable(pa.schema(fields), file.origin)


def _cells(file: InputFile, sample: bytes) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = []
    try:
        batches.extend(read_cells(file, io.BytesIO(sample), block_bytes=_SAMPLE_BYTES // 4))
    except InvalidRequest:
        # The sample ends somewhere in the middle of a row.
        if len(sample) < _SAMPLE_BYTES or not batches:
            raise
    return batches


def _cell_type(column: pa.Array) -> pa.DataType:
    values = column.filter(pc.greater(pc.binary_length(column), 0))
    if not len(values):
        return pa.string()
    if _all_match(values, _TRUE_OR_FALSE):
        return pa.bool_()
    if not _any_match(values, _NOT_A_NUMBER):
        for candidate in (pa.int64(), pa.float64()):
            if _fits(values, candidate) and not _loses_digits(values, candidate):
                return candidate
    return _dated_type(values) or (
        pa.time64("us") if _fits(values, pa.time64("us")) else pa.string()
    )


def _loses_digits(values: pa.Array, candidate: pa.DataType) -> bool:
    """Whole numbers too long for a double, such as an id of 20 digits, stay text."""
    return bool(pa.types.is_floating(candidate)) and _any_match(values, r"^[+-]?\d{16,}$")


def _dated_type(values: pa.Array) -> pa.DataType | None:
    if not _all_match(values, _LOOKS_DATED):
        return None
    stamp = pa.timestamp("us", "UTC" if _any_match(values, ZONED) else None)
    return next((kind for kind in (pa.date32(), stamp) if _fits(values, kind)), None)


def _fits(values: pa.Array, candidate: pa.DataType) -> bool:
    try:
        parse_text(values, candidate)
    except Unfit:
        return False
    return True


def _all_match(values: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(values, pattern)).as_py())


def _any_match(values: pa.Array, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(values, pattern)).as_py())


def guess_json(file: InputFile) -> pa.Schema:
    """From a copy of the beginning, so that the rows themselves stay to be read."""
    beginning = file.stream.peek(_SAMPLE_BYTES)
    whole = len(beginning) < _SAMPLE_BYTES
    copy = io.BytesIO(beginning)
    sample = InputFile(Stream(copy.read, copy.close), file.origin, file.format)
    rows: list[Any] = []
    try:
        for piece in json_rows(sample):
            rows += piece.rows
            if len(rows) >= _SAMPLE_ROWS:
                break
    except InvalidRequest:
        # The sample ends somewhere in the middle of a row.
        if whole or not rows:
            raise
    return guess_rows(rows[:_SAMPLE_ROWS], file.origin, dated_text=True)


def guess_rows(rows: Sequence[Any], origin: Origin, *, dated_text: bool = False) -> pa.Schema:
    """The columns of rows. With `dated_text`, text that is all dates or timestamps is such."""
    for place, row in enumerate(rows, 1):
        check_row(row, origin, place)
    names = dict.fromkeys(str(name) for row in rows for name in row)
    if not names:
        raise origin.error("there are no rows", hint=_NO_ROWS_HINT)
    fields = []
    for name in names:
        try:
            kind = _value_type([row.get(name) for row in rows], dated_text=dated_text)
            fields.append(pa.field(_encodable(name), kind))
        except Unfit as error:
            raise origin.error(error.problem, column=name, hint=error.hint) from error
    return storable(pa.schema(fields), origin)


def guess_values(values: list[Any], *, dated_text: bool = False) -> pa.DataType | None:
    """The type of one column's values, None if there is no value; Unfit if they have several."""
    if all(value is None for value in values):
        return None
    return _value_type(values, dated_text=dated_text)


def _value_type(values: list[Any], *, dated_text: bool, depth: int = 0) -> pa.DataType:
    present = [value for value in values if value is not None]
    if not present:
        return pa.string()
    if depth > _DEPTH_MAX:
        raise Unfit(
            f"more than {_DEPTH_MAX} values lie inside each other",
            "store what is nested so deeply as text, such as JSON",
        )
    if all(isinstance(value, Mapping) for value in present):
        return _struct_type(present, dated_text=dated_text, depth=depth)
    if all(isinstance(value, list | tuple) for value in present):
        inside = [item for value in present for item in value]
        return pa.list_(_value_type(inside, dated_text=dated_text, depth=depth + 1))
    kinds = {type(value) for value in present}
    kind = _common_type(present, kinds)
    if dated_text and pa.types.is_string(kind):
        return _dated_type(pa.array(present)) or kind
    return kind


def _struct_type(values: list[Mapping[Any, Any]], *, dated_text: bool, depth: int) -> pa.DataType:
    names = dict.fromkeys(str(name) for value in values for name in value)
    fields = []
    for name in names:
        inside = [value.get(name) for value in values]
        kind = _value_type(inside, dated_text=dated_text, depth=depth + 1)
        fields.append((_encodable(name), kind))
    return pa.struct(fields)


def _encodable(name: str) -> str:
    if not is_writable(name):
        raise Unfit(f"the name {shown(name)} cannot be written", "take out what is no character")
    return name


def _common_type(values: list[Any], kinds: set[type]) -> pa.DataType:
    if kinds == {int, float}:
        return pa.float64()
    if kinds == {date, datetime}:
        return pa.timestamp("us")
    if len(kinds) == 1 or kinds == {int, Decimal}:
        try:
            return pa.array(values).type
        except UnicodeEncodeError as error:
            raise Unfit(*NO_UNICODE) from error
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise Unfit(f"{shown(values[0])} has no type that a table knows") from error
    words = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise Unfit(f"values are of several types: {words}", "give a schema, or make them one type")
