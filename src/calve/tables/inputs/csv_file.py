"""CSV: a header with the names, then rows in UTF-8.

Cells are read as bytes and then as the table's types, so that a cell that does not fit is named
with its row and column. An empty cell without quotes is null, one with quotes is the empty text.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from calve.tables.inputs.conform import ColumnPlan, conform_batch, plan_columns
from calve.tables.inputs.convert import Convert, Text
from calve.tables.inputs.files import InputFile, Stream
from calve.tables.inputs.origin import Origin, Unfit, shown
from calve.tables.inputs.rows import build_array
from calve.tables.inputs.text import parse_text
from calve.tables.types import is_text

# Arrow reads some thirty blocks ahead, which is what most of the memory goes to.
_BLOCK_BYTES: Final = 4 * 1024 * 1024
_HEADER_BYTES_MAX: Final = 4 * 1024 * 1024
_SEPARATORS: Final = {"csv": ",", "tsv": "\t"}
_WORDS: Final = {",": "a comma", "\t": "a tab", ";": "a semicolon"}
_OTHER_SEPARATORS: Final = (";", "\t", "|", ",")


def read_header(file: InputFile) -> list[str]:
    """The names in the first row, without consuming it."""
    beginning = file.stream.peek(_HEADER_BYTES_MAX)
    separator = _separator(file)
    text = beginning.decode("utf-8-sig", "surrogateescape")
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        names = next((row for row in rows if row), [])
    except csv.Error as error:
        raise file.origin.error(f"the header cannot be read: {error}") from error
    _check_header(names, file.origin)
    if file.delimiter is None and len(names) == 1:
        _refuse_other_separator(names[0], separator, file.origin)
    return names


def _separator(file: InputFile) -> str:
    return file.delimiter or _SEPARATORS[file.format]


def _check_header(names: list[str], origin: Origin) -> None:
    for place, name in enumerate(names, 1):
        try:
            name.encode("utf-8")
        except UnicodeEncodeError as error:
            raise origin.error(
                f"the header is not UTF-8, at name {place}", hint="convert the file to UTF-8"
            ) from error
        if not name.strip():
            raise origin.error(
                f"column {place} has no name", hint="the first row must name every column"
            )
    if not names:
        raise origin.error("the file has no header", hint="the first row must name the columns")


def _refuse_other_separator(name: str, separator: str, origin: Origin) -> None:
    other = [mark for mark in _OTHER_SEPARATORS if mark != separator and mark in name]
    if other:
        named = "tab" if other[0] == "\t" else other[0]
        raise origin.error(
            f"the only column is {shown(name)}: is the separator {other[0]!r}?",
            hint="separate cells with commas, or with tabs in a .tsv file; tables take others: "
            f"`calve table insert … --delimiter '{named}'`, delimiter={other[0]!r} in Python",
        )


def read_csv(file: InputFile, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows as batches of the table's schema."""
    names = read_header(file)
    cells = pa.schema([(name, pa.binary()) for name in names])
    plans = plan_columns(cells, target, file.origin, _cell_converter)
    return _converted(file, plans, target)


def read_cells(
    file: InputFile, stream: Stream | io.BytesIO, *, block_bytes: int = _BLOCK_BYTES
) -> Iterator[pa.RecordBatch]:
    """The rows as bytes, exactly as they stand in the file."""
    ragged: list[Any] = []

    def remember(row: Any) -> str:
        ragged.append(row)
        return "error"

    try:
        yield from _open(stream, _separator(file), block_bytes, remember)
    except pa.ArrowInvalid as error:
        if ragged:
            raise _ragged(ragged[0], _separator(file), file.origin) from None
        if "Empty CSV" in str(error):
            return
        if "straddling" in str(error):
            raise file.origin.error(
                f"a row is longer than {block_bytes // 1024 // 1024} MiB",
                hint="look for a quote that is never closed",
            ) from error
        raise


def _open(
    stream: Stream | io.BytesIO, separator: str, block_bytes: int, handler: Any
) -> Iterator[Any]:
    yield from arrow_csv.open_csv(
        stream,
        # With threads Arrow does not know the number of a row.
        read_options=arrow_csv.ReadOptions(block_size=block_bytes, use_threads=False),
        parse_options=arrow_csv.ParseOptions(
            delimiter=separator, newlines_in_values=True, invalid_row_handler=handler
        ),
        convert_options=arrow_csv.ConvertOptions(
            default_column_type=pa.binary(),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _ragged(row: Any, separator: str, origin: Origin) -> Exception:
    return origin.error(
        f"{row.actual_columns} cells where the header has {row.expected_columns}: "
        f"{shown(row.text)}",
        place=None if row.number is None else row.number - 1,
        hint=f"quote cells that hold {_WORDS.get(separator, separator)} or a line break",
    )


def _converted(
    file: InputFile, plans: list[ColumnPlan], target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    counted = _QuoteCounter(file.stream)
    stream = Stream(counted.read, file.stream.close)
    done = 0
    last: pa.RecordBatch | None = None
    for batch in read_cells(file, stream):
        places = range(done + 1, done + 1 + batch.num_rows)
        done += batch.num_rows
        if batch.num_rows:
            last = batch.slice(batch.num_rows - 1)
            yield conform_batch(batch, plans, target, file.origin, places)
    if counted.is_odd and last is not None and _has_line_break(last):
        raise file.origin.error(
            "a quote is not closed", place=done, hint="every quote needs its other one"
        )


class _QuoteCounter:
    """Counts quotes, because Arrow takes the rest of a file for one cell if one is not closed."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._quotes = 0

    def read(self, length: int) -> bytes:
        data = self._stream.read(length) or b""
        self._quotes += data.count(b'"')
        return data

    @property
    def is_odd(self) -> bool:
        return self._quotes % 2 == 1


def _has_line_break(row: pa.RecordBatch) -> bool:
    return any(b"\n" in (cell[0].as_py() or b"") for cell in row.columns)


def _cell_converter(source: pa.DataType, target: pa.DataType) -> Convert:
    if pa.types.is_null(source):
        return lambda array: pa.nulls(len(array), target)
    if pa.types.is_nested(target):
        return lambda array: _nested(decoded(array), target)
    if is_text(target):
        return lambda array: decoded(array).cast(target)
    return lambda array: parse_text(_blank_as_null(decoded(array)), target)


def decoded(array: pa.Array) -> pa.Array:
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise Unfit("not UTF-8", "convert the file to UTF-8, for example with iconv") from error


def _blank_as_null(text: pa.Array) -> pa.Array:
    """Quoted or not, an empty cell is no number and no date."""
    blank = pc.equal(pc.binary_length(text), 0)
    if not pc.any(blank).as_py():
        return text
    return pc.if_else(blank, pa.scalar(None, text.type), text)


def _nested(text: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        values = [msgspec.json.decode(cell) if cell else None for cell in text.to_pylist()]
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unfit(f"not JSON: {error}", "write lists, maps and structs as JSON") from error
    return build_array(values, target, Text.JSON)
