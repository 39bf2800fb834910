"""Files of rows on their way to a topic, piece by piece, so that memory is bounded.

As batches, read here with the types that the topic has; or as bodies of requests, which whoever
takes them reads, and sets single bad rows of aside. Lines are passed on as they arrive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from calve.errors import InvalidRequest
from calve.ingest.formats.arrow_rows import ARROW
from calve.ingest.formats.blocks import MARK, first_record
from calve.ingest.formats.csv_rows import CSV
from calve.ingest.formats.json_rows import NDJSON, JsonReader
from calve.ingest.formats.types import KnownTypes
from calve.tables.inputs.files import InputFile, open_file, reading
from calve.tables.inputs.guess import guess_csv, guess_json
from calve.tables.inputs.sources import binary_reader, file_reader

PIECE_BYTES: Final = 1 << 20
RECORD_BYTES_MAX: Final = 32 << 20
_LOOK_BYTES: Final = 4096


class Body(NamedTuple):
    content: bytes
    media_type: str


def file_batches(
    source: object,
    format: str | None,  # noqa: A002
    types: KnownTypes,
) -> Iterator[pa.RecordBatch]:
    """The rows of a file; InvalidRequest names the first one that cannot be read."""
    return _batches(open_file(source, format), types)


def file_bodies(source: object, format: str | None) -> Iterator[Body]:  # noqa: A002
    """The same as bodies: of lines of JSON and of CSV as they are, of the rest as Arrow."""
    file = open_file(source, format)
    with reading(file.origin):
        if _is_lines(file):
            yield from (Body(piece, NDJSON) for piece in _pieces(file))
        elif file.format == "csv":
            yield from (Body(piece, CSV) for piece in _below_header(file))
        else:
            for batch in _batches(file, KnownTypes()):
                yield Body(_stream(batch), ARROW)


def _batches(file: InputFile, types: KnownTypes) -> Iterator[pa.RecordBatch]:
    if _is_lines(file):
        yield from _line_batches(file, types)
    elif file.format in {"parquet", "arrow"}:
        yield from binary_reader(file)
    else:
        with reading(file.origin):
            guessed = guess_json(file) if file.format == "json" else guess_csv(file)
        known = types.schema
        fields = [known.field(f.name) if f.name in known.names else f for f in guessed]
        yield from file_reader(file, pa.schema(fields))


def _line_batches(file: InputFile, types: KnownTypes) -> Iterator[pa.RecordBatch]:
    reader = JsonReader.of_lines(types)
    before = 0
    for piece in _pieces(file):
        try:
            batch = reader.read(piece, before)
        except InvalidRequest as error:
            raise InvalidRequest(
                f"{file.origin.label}, {error.message}",
                hint=error.hint,
                context={**error.context, "file": file.origin.label},
            ) from error
        if batch is not None:
            before += batch.num_rows
            yield batch


def _is_lines(file: InputFile) -> bool:
    """Whether it holds objects on lines: not an array of them, and not one over several lines."""
    if file.format != "json":
        return False
    line, ended, _ = file.stream.peek(_LOOK_BYTES).removeprefix(MARK).lstrip().partition(b"\n")
    return line.startswith(b"{") and (not ended or line.rstrip().endswith(b"}"))


def _pieces(file: InputFile, *, is_csv: bool = False) -> Iterator[bytes]:
    """The file cut where records end, in pieces of what is there, up to about a megabyte."""
    kept = b""
    while arrived := file.stream.read(PIECE_BYTES):
        kept += arrived
        end = kept.rfind(b"\n") + 1
        if end and not (is_csv and kept.count(b'"', 0, end) % 2):
            yield kept[:end].removeprefix(MARK)
            kept = kept[end:]
        elif len(kept) > RECORD_BYTES_MAX:
            raise file.origin.error(
                f"a row of more than {RECORD_BYTES_MAX:,} bytes",
                hint="check the format, and the quotes of CSV",
            )
    if kept.strip():
        yield kept.removeprefix(MARK)


def _below_header(file: InputFile) -> Iterator[bytes]:
    """Pieces of CSV, each with the header on top."""
    header = b""
    for piece in _pieces(file, is_csv=True):
        if header:
            yield header + piece
            continue
        header = first_record(piece.lstrip(b"\r\n"))
        if not header.endswith(b"\n"):
            header += b"\n"
        if piece.strip() != header.strip():
            yield piece


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content
