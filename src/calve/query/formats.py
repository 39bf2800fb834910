"""Writes an answer as table, JSON, lines of JSON, CSV, Parquet or Arrow; batch by batch.

How values look in JSON is in `cells`. In CSV they look the same, except that a null is empty, texts
are in quotes and numbers are not; lists, structs and maps are JSON. Parquet and Arrow keep types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from calve.errors import InvalidRequest
from calve.query.cells import cell_text, column_values, json_converter, json_rows
from calve.query.rows import Rows
from calve.query.text_table import column_widths, is_plan, is_right, line, plan_lines
from calve.tables.nearest import meant

_WIDTH_ROWS: Final = 1000
# Small enough that a batch as Python objects is no burden.
_TEXT_ROWS: Final = 10_000


class _Counted:
    """Rows on their way out, and how many there were."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.schema = rows.schema
        self.columns = rows.columns
        self.count = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._rows.batches():
            self.count += len(batch)
            yield batch


def write_rows(rows: Rows, out: BinaryIO, kind: str) -> int:
    """Write all rows to a binary file and count them; `kind` is one of `FORMATS`.

    Memory stays bounded.
    """
    write = FORMATS.get(kind)
    if write is None:
        raise InvalidRequest(
            f"there is no format {kind!r}{meant(kind, FORMATS)}",
            hint=f"one of {', '.join(FORMATS)}",
        )
    counted = _Counted(rows)
    write(counted, out)
    return counted.count


def _write_table(rows: _Counted, out: BinaryIO) -> None:
    """Columns are as wide as the first rows need, and grow where later ones need more."""
    if is_plan(rows.schema):
        for batch in rows.batches():
            out.writelines(f"{each}\n".encode() for each in plan_lines(batch))
        return
    right = [is_right(field.type) for field in rows.schema]
    widths: list[int] | None = None
    for batch in _pieces(rows, _WIDTH_ROWS):
        cells = [[cell_text(value) for value in column_values(column)] for column in batch.columns]
        if widths is None:
            widths = _write_head(rows, cells, out)
        widths = list(map(max, widths, column_widths(rows.schema, cells)))
        out.writelines(_line(row, widths, right) for row in zip(*cells, strict=True))
    if widths is None:
        _write_head(rows, [[] for _ in rows.columns], out)


def _write_head(rows: _Counted, cells: list[list[str]], out: BinaryIO) -> list[int]:
    widths = column_widths(rows.schema, cells)
    left = [False] * len(widths)
    out.write(_line(rows.columns, widths, left))
    out.write(_line(["-" * width for width in widths], widths, left))
    return widths


def _line(cells: list[str] | tuple[str, ...], widths: list[int], right: list[bool]) -> bytes:
    return line(cells, widths, right).encode("utf-8", "replace") + b"\n"


def _write_json(rows: _Counted, out: BinaryIO) -> None:
    between = b"["
    for encoded in _json_objects(rows):
        out.write(between + b"\n  " + encoded)
        between = b","
    out.write(b"[]\n" if between == b"[" else b"\n]\n")


def _write_ndjson(rows: _Counted, out: BinaryIO) -> None:
    out.writelines(encoded + b"\n" for encoded in _json_objects(rows))


def _json_objects(rows: _Counted) -> Iterator[bytes]:
    encoder = msgspec.json.Encoder()
    for batch in _pieces(rows, _TEXT_ROWS):
        yield from map(encoder.encode, json_rows(_printable(batch), rows.columns))


def _write_csv(rows: _Counted, out: BinaryIO) -> None:
    schema = pa.schema([(field.name, _csv_type(field.type)) for field in rows.schema])
    options = pyarrow.csv.WriteOptions(quoting_style="needed")
    with pyarrow.csv.CSVWriter(pa.PythonFile(out, mode="w"), schema, write_options=options) as csv:
        for batch in _pieces(rows, _TEXT_ROWS):
            columns = [
                column if column.type == kind else _csv_texts(column)
                for column, kind in zip(_printable(batch).columns, schema.types, strict=True)
            ]
            csv.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def _csv_type(kind: pa.DataType) -> pa.DataType:
    plain = (
        *(pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
        *(pa.types.is_boolean, pa.types.is_date32),
    )
    return kind if any(is_one(kind) for is_one in plain) else pa.string()


def _csv_texts(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):
        return column
    convert = json_converter(column.type)
    return pa.array([_csv_text(convert(value)) for value in column_values(column)], pa.string())


def _csv_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def _write_parquet(rows: _Counted, out: BinaryIO) -> None:
    with pyarrow.parquet.ParquetWriter(
        pa.PythonFile(out, mode="w"), rows.schema, compression="zstd"
    ) as writer:
        for batch in rows.batches():
            writer.write_batch(batch)


def _write_arrow(rows: _Counted, out: BinaryIO) -> None:
    with pa.ipc.new_stream(pa.PythonFile(out, mode="w"), rows.schema) as writer:
        for batch in rows.batches():
            writer.write_batch(batch)


def _pieces(rows: _Counted, size: int) -> Iterator[pa.RecordBatch]:
    for batch in rows.batches():
        for start in range(0, len(batch), size):
            yield batch.slice(start, size)


def _printable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Nanoseconds as text: Python's own times have none."""
    columns = [
        _iso(column)
        if column.type == pa.timestamp("ns", getattr(column.type, "tz", None))
        else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _iso(column: pa.Array) -> pa.Array:
    return pc.replace_substring(column.cast(pa.string()), " ", "T")


FORMATS: Final[dict[str, Callable[[_Counted, BinaryIO], None]]] = {
    "table": _write_table,
    "json": _write_json,
    "ndjson": _write_ndjson,
    "csv": _write_csv,
    "parquet": _write_parquet,
    "arrow": _write_arrow,
}
