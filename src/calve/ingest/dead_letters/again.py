"""Dead letters read again, with the types that their topic has now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from calve.errors import InvalidRequest
from calve.ingest.formats import decode
from calve.ingest.formats.arrow_rows import ARROW
from calve.ingest.formats.blocks import csv_records, first_record
from calve.ingest.formats.csv_rows import CSV
from calve.ingest.formats.json_rows import JSON, NDJSON
from calve.ingest.otlp.tables import REJECTED_TYPE
from calve.parts import load_part
from calve.wal import Rejected

if TYPE_CHECKING:
    from calve.ingest.formats import KnownTypes
    from calve.wal.payload import Part

_BREAKS: Final = (b"\n", b"\r")
_KNOWN: Final = (NDJSON, JSON, CSV, ARROW)


class ReadAgain:
    """What became of some dead letters: the rows that fit now, and what is to be set aside anew."""

    def __init__(self, types: KnownTypes, bytes_max: int) -> None:
        self._types = types
        self._bytes_max = bytes_max
        self._batches: list[pa.RecordBatch] = []
        self.rejected: list[Rejected] = []

    @property
    def parts(self) -> list[Part]:
        return [*self._batches, self.rejected] if self.rejected else list(self._batches)

    @property
    def row_count(self) -> int:
        return sum(batch.num_rows for batch in self._batches)

    def add(self, originals: Sequence[bytes], content_type: str) -> None:
        """Read some of one type; none is lost, whatever it is."""
        if content_type.startswith(REJECTED_TYPE):
            for original in originals:
                self._read_telemetry(original, content_type)
            return
        if content_type not in _KNOWN:
            reason = f"rows of the type {content_type!r} cannot be read again"
            self.rejected += [Rejected(each, content_type, reason) for each in originals]
            return
        for group in _groups(originals, content_type):
            self._read(group, content_type)

    def _read(self, originals: Sequence[bytes], content_type: str) -> None:
        """All at once; where that fails, or one has run into the next, in halves."""
        body, media_type = _body(originals, content_type)
        try:
            found = decode(
                body,
                media_type,
                self._types,
                sets_aside=True,
                bytes_max=max(self._bytes_max, 2 * len(body)),
            )
        except InvalidRequest as error:
            if len(originals) == 1:
                self.rejected.append(Rejected(originals[0], content_type, error.message))
            else:
                self._halve(originals, content_type)
            return
        if len(originals) not in {1, found.row_count + len(found.rejected)}:
            self._halve(originals, content_type)
            return
        self._batches += found.batches
        self.rejected += found.rejected

    def _read_telemetry(self, original: bytes, content_type: str) -> None:
        read_again = load_part("otlp", "calve.ingest.otlp.again").read_again
        try:
            parts = read_again(original, content_type)
        except InvalidRequest as error:
            self.rejected.append(Rejected(original, content_type, error.message))
            return
        self._batches += [part.rows for part in parts if part.rows is not None]
        self.rejected += [each for part in parts for each in part.rejected]
        if not parts:
            self.rejected.append(Rejected(original, content_type, "it holds no record"))

    def _halve(self, originals: Sequence[bytes], content_type: str) -> None:
        half = len(originals) // 2
        self._read(originals[:half], content_type)
        self._read(originals[half:], content_type)


def _groups(originals: Sequence[bytes], content_type: str) -> Iterator[Sequence[bytes]]:
    """Those that can be read as one body, without one running into the next."""
    by_kind: defaultdict[object, list[bytes]] = defaultdict(list)
    for number, original in enumerate(originals):
        by_kind[_kind(original, content_type) or number].append(original)
    yield from by_kind.values()


def _kind(original: bytes, content_type: str) -> object | None:
    """What originals must share to be read together; None for one that stands alone."""
    if content_type == CSV:
        header = first_record(original)
        records = csv_records(original[len(header) :])
        is_plain = len(records) == 1 and original == _csv(header, records)
        return header if is_plain and original.count(b'"') % 2 == 0 else None
    if content_type == ARROW:
        return _schema_of(original)
    is_line = original.lstrip().startswith(b"{") and not any(b in original for b in _BREAKS)
    return NDJSON if is_line else None


def _body(originals: Sequence[bytes], content_type: str) -> tuple[bytes, str]:
    if content_type == ARROW:
        return (originals[0] if len(originals) == 1 else _one_stream(originals)), ARROW
    if content_type == CSV:
        header = first_record(originals[0])
        return header + b"\n".join(each[len(header) :] for each in originals), CSV
    # An element of an array was kept by itself.
    is_array = content_type == JSON and not originals[0].lstrip().startswith(b"{")
    return b"\n".join(originals), JSON if is_array else NDJSON


def _csv(header: bytes, records: Sequence[bytes]) -> bytes:
    return header + b"\n".join(records)


def _schema_of(original: bytes) -> object | None:
    try:
        with pa.ipc.open_stream(pa.py_buffer(original)) as stream:
            schema: pa.Schema = stream.schema
    except (pa.ArrowException, OSError, EOFError):
        return None
    if any(pa.types.is_dictionary(each.type) for each in schema):
        return None
    content: bytes = schema.serialize().to_pybytes()
    return content


def _one_stream(originals: Sequence[bytes]) -> bytes:
    """Streams of one schema as one; InvalidRequest if a part of one cannot be read."""
    batches: list[pa.RecordBatch] = []
    try:
        for original in originals:
            with pa.ipc.open_stream(pa.py_buffer(original)) as stream:
                for batch in stream:
                    batch.validate(full=True)
                    batches.append(batch)
        rows = pa.Table.from_batches(batches).combine_chunks()
    except (pa.ArrowException, OSError, EOFError) as error:
        raise InvalidRequest(f"an Arrow stream cannot be read: {error}") from error
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    body: bytes = sink.getvalue().to_pybytes()
    return body
