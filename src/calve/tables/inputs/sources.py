"""Whatever somebody calls data, as one stream of Arrow batches.

Frames, Arrow and everything that speaks its C interface, Python rows and columns, files. With a
schema the batches fit it exactly; without one they have the types that the data suggests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema

from calve.errors import InvalidRequest
from calve.tables.inputs.conform import ROWS_MAX, conform_reader, match_names, target_schema
from calve.tables.inputs.csv_file import read_csv
from calve.tables.inputs.files import InputFile, Tell, is_file, open_file, reading, seekable
from calve.tables.inputs.frames import frame_batches, frame_table, is_frame
from calve.tables.inputs.guess import guess_csv, guess_json, guess_rows, storable
from calve.tables.inputs.json_file import read_json
from calve.tables.inputs.origin import Origin
from calve.tables.inputs.rows import column_array, row_batches

_SAMPLE_ROWS: Final = 10_000
_HERE: Final = Origin()
_HINT: Final = (
    "give a pandas or Polars frame, Arrow data, a list of dicts, a dict of columns, "
    "or the path of a CSV, JSON, Parquet or Arrow file"
)


def open_input(
    data: object,
    *,
    schema: Schema | pa.Schema | None = None,
    format: str | None = None,  # noqa: A002
    delimiter: str | None = None,
    tell: Tell | None = None,
) -> pa.RecordBatchReader:
    """The rows of `data` as batches, read as they are asked for.

    With `schema`, the table's, the batches fit it: columns by name, missing ones null. Whatever
    does not fit is an InvalidRequest that names file, row, column and value, raised here for what
    the names and types tell, and by the reader for a single value. `delimiter` separates the cells
    of CSV. `tell` is called with how many bytes of a file have been read.
    """
    target = None if schema is None else target_schema(schema)
    if is_file(data):
        return file_reader(open_file(data, format, delimiter=delimiter, tell=tell), target)
    if format is not None:
        raise InvalidRequest("only a file has a format", hint="leave the format out")
    if delimiter is not None:
        raise InvalidRequest("only a file has a delimiter", hint="leave the delimiter out")
    if is_frame(data):
        return _frame_reader(data, target)
    if arrow := arrow_reader(data):
        return _conformed(arrow, target, _HERE)
    if isinstance(data, Mapping):
        return _columns_reader(data, target)
    if isinstance(data, Iterable):
        return _rows_reader(data, target)
    raise no_rows(data)


def no_rows(data: object) -> InvalidRequest:
    return InvalidRequest(f"rows cannot be read from {type(data).__name__}", hint=_hint(data))


def arrow_reader(data: Any) -> pa.RecordBatchReader | None:
    """Arrow data and whatever hands itself over as such; None for the rest."""
    try:
        if isinstance(data, pa.RecordBatchReader):
            return data
        if isinstance(data, pa.RecordBatch) or hasattr(data, "__arrow_c_array__"):
            batch = pa.record_batch(data)
            return pa.RecordBatchReader.from_batches(batch.schema, [batch])
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidRequest(f"not a table of Arrow: {error}", hint=_HINT) from error
    return None


def _conformed(
    reader: pa.RecordBatchReader, target: pa.Schema | None, origin: Origin
) -> pa.RecordBatchReader:
    return conform_reader(reader, target or storable(reader.schema, origin), origin)


def _frame_reader(frame: Any, target: pa.Schema | None) -> pa.RecordBatchReader:
    if target is None:
        return _conformed(frame_table(frame, _HERE).to_reader(), None, _HERE)
    return pa.RecordBatchReader.from_batches(target, frame_batches(frame, target, _HERE))


def _columns_reader(data: Mapping[Any, Any], target: pa.Schema | None) -> pa.RecordBatchReader:
    """A dict of columns: lists, or arrays, whose values follow the rules of rows."""
    columns = column_lists(data)
    if target is None:
        rows = ({name: values[i] for name, values in columns.items()} for i in range(_SAMPLE_ROWS))
        total = len(next(iter(columns.values()), []))
        target = guess_rows(list(islice(rows, min(total, _SAMPLE_ROWS))), _HERE)
    match_names(list(columns), target, _HERE)
    return pa.RecordBatchReader.from_batches(target, _column_batches(columns, target))


def column_lists(data: Mapping[Any, Any]) -> dict[str, list[Any]]:
    """A dict of columns with its values as lists of one length."""
    columns = {str(name): _values(name, values) for name, values in data.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name!r} {length:,}" for name, length in list(lengths.items())[:5])
        raise InvalidRequest(f"columns differ in length: {said}", hint="make them equally long")
    return columns


def _values(name: object, values: Any) -> list[Any]:
    if hasattr(values, "to_pylist"):
        return list(values.to_pylist())
    if hasattr(values, "tolist"):
        return list(values.tolist())
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidRequest(
            f"column {name!r} is a single value",
            hint="a dict holds columns; write one row as a list with one dict: [row]",
        )
    return list(values)


def _column_batches(columns: dict[str, list[Any]], target: pa.Schema) -> Iterator[pa.RecordBatch]:
    total = len(next(iter(columns.values()), []))
    for start in range(0, total, ROWS_MAX):
        end = min(start + ROWS_MAX, total)
        places = range(start + 1, end + 1)
        nothing: list[Any] = [None] * total
        arrays = [
            column_array(columns.get(field.name, nothing)[start:end], field, _HERE, places)
            for field in target
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=target)


def _rows_reader(data: Iterable[Any], target: pa.Schema | None) -> pa.RecordBatchReader:
    iterator = iter(data)
    first = list(islice(iterator, 1))
    if first and isinstance(first[0], pa.RecordBatch):
        batches = pa.RecordBatchReader.from_batches(first[0].schema, chain(first, iterator))
        return _conformed(batches, target, _HERE)
    if target is None:
        first += list(islice(iterator, _SAMPLE_ROWS))
        target = guess_rows(first, _HERE)
    rows = row_batches(chain(first, iterator), target, _HERE)
    return pa.RecordBatchReader.from_batches(target, rows)


def file_reader(file: InputFile, target: pa.Schema | None) -> pa.RecordBatchReader:
    """The rows of a file that fit a schema, or have the types that they suggest."""
    try:
        with reading(file.origin):
            if file.format in {"parquet", "arrow"}:
                return _conformed(binary_reader(file), target, file.origin)
            guess, read = (
                (guess_json, read_json) if file.format == "json" else (guess_csv, read_csv)
            )
            wanted = target or guess(file)
            batches = read(file, wanted)
    except BaseException:
        file.stream.close()
        raise
    return pa.RecordBatchReader.from_batches(wanted, _closing(batches, file))


def _closing(batches: Iterator[pa.RecordBatch], file: InputFile) -> Iterator[pa.RecordBatch]:
    try:
        with reading(file.origin):
            yield from batches
    finally:
        file.stream.close()


def binary_reader(file: InputFile) -> pa.RecordBatchReader:
    """The batches of a Parquet or Arrow file as they are."""
    batches = _parquet(file) if file.format == "parquet" else _arrow(file)
    with reading(file.origin):
        schema = next(batches)
    assert isinstance(schema, pa.Schema)
    return pa.RecordBatchReader.from_batches(schema, _closing(batches, file))


def _parquet(file: InputFile) -> Iterator[Any]:
    """The schema, then the batches."""
    with seekable(file) as source, pq.ParquetFile(source, pre_buffer=False) as parquet:
        yield parquet.schema_arrow
        rows, rows_all = 0, parquet.metadata.num_rows
        for batch in parquet.iter_batches(batch_size=65_536):
            yield batch
            rows += batch.num_rows
            file.reached(rows / rows_all)


def _arrow(file: InputFile) -> Iterator[Any]:
    """The schema, then the batches."""
    if file.stream.peek(6) != b"ARROW1":
        with pa.ipc.open_stream(pa.PythonFile(file.stream, "r")) as stream:
            yield stream.schema
            yield from stream
        return
    with seekable(file) as source, pa.ipc.open_file(source) as whole:
        yield whole.schema
        for number in range(whole.num_record_batches):
            yield whole.get_batch(number)
            file.reached((number + 1) / whole.num_record_batches)


def _hint(data: object) -> str:
    if hasattr(data, "toArrow"):
        return "hand over a Spark frame as frame.toArrow()"
    if hasattr(data, "collect"):
        return "collect the lazy frame first"
    return _HINT
