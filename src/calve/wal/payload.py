"""Payloads: Arrow record batches and schemas to bytes, and back without copying.

A batch is one Arrow IPC message; its schema lies in a frame of its own and is named by a hash of
its bytes. Batches with dictionaries carry a whole IPC stream, because a message alone cannot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

from calve.errors import InvalidRequest
from calve.wal.frame import PAYLOAD_BYTES_MAX, ROWS_MAX, Flag, Kind, checksum, checksum_of_pieces
from calve.wal.pieces import LargeWriter

SCHEMA_BYTES_MAX: Final = 1 << 22  # some 30,000 columns; it is written twice per segment

_SMALL_BYTES: Final = 1 << 14
_LARGE_COLUMN_BYTES: Final = 1 << 16  # then a copy costs more than writing in pieces
_COLUMN_BYTES: Final = 200  # of Arrow's own metadata and padding

UNDECODABLE: Final = (pa.ArrowException, OSError)  # what Arrow raises for bytes it cannot read

REJECTED_SCHEMA: Final = pa.schema(
    [
        pa.field("original", pa.binary(), nullable=False),
        pa.field("content_type", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that could not be accepted. It is kept as it came, and takes an offset."""

    original: bytes
    content_type: str
    reason: str


Part: TypeAlias = pa.RecordBatch | Sequence[Rejected]


class EncodedSchema(NamedTuple):
    id: int
    payload: memoryview
    schema: pa.Schema
    has_dictionaries: bool


class EncodedPart(NamedTuple):
    """One frame's payload, ready to be written."""

    kind: Kind
    flags: int
    payload: Sequence[memoryview]  # in pieces: large columns are not copied
    payload_bytes: int
    payload_sum: int
    row_count: int
    schema: EncodedSchema


class SchemaCache:
    """Schemas by identity of their contents; the last one used is found without hashing."""

    _SIZE_MAX: Final = 4096
    _BYTES_MAX: Final = 1 << 26
    _LARGE_WRITERS_MAX: Final = 64

    def __init__(self) -> None:
        self._bytes = 0
        self._last: EncodedSchema | None = None
        self._by_bytes: dict[bytes, EncodedSchema] = {}
        self._large_writers: dict[int, LargeWriter] = {}

    def large_writer(self, schema: EncodedSchema, batch: pa.RecordBatch) -> LargeWriter:
        """The writer for batches of a schema, of which `batch` is one."""
        found = self._large_writers.get(schema.id)
        if found is None:
            if len(self._large_writers) >= self._LARGE_WRITERS_MAX:
                self._large_writers.clear()
            found = self._large_writers[schema.id] = LargeWriter(batch)
        return found

    def encoded(self, schema: pa.Schema) -> EncodedSchema:
        last = self._last
        if last is not None and last.schema.equals(schema, check_metadata=True):
            return last
        content = schema.serialize().to_pybytes()
        found = self._by_bytes.get(content)
        if found is None:
            found = _encode_schema(schema, content)
            self._bytes += len(content)
            if len(self._by_bytes) >= self._SIZE_MAX or self._bytes > self._BYTES_MAX:
                self._by_bytes.clear()
                self._bytes = len(content)
            self._by_bytes[content] = found
        self._last = found
        return found


def _encode_schema(schema: pa.Schema, content: bytes) -> EncodedSchema:
    if len(content) > SCHEMA_BYTES_MAX:
        raise InvalidRequest(
            f"a schema of {len(content)} bytes is too large",
            hint=f"{SCHEMA_BYTES_MAX} bytes are the most, its metadata included",
        )
    return EncodedSchema(
        schema_id(content),
        memoryview(content),
        schema,
        any(_has_dictionary(field.type) for field in schema),
    )


def schema_id(content: bytes | memoryview) -> int:
    """Never 0, which means none."""
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


def _has_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    return any(_has_dictionary(kind.field(i).type) for i in range(kind.num_fields))


def bytes_estimate(part: Part) -> int:
    """About how large the payload becomes; cheap, and before anything is encoded."""
    if isinstance(part, pa.RecordBatch):
        columns: int = part.num_columns
        total: int = part.get_total_buffer_size()
        # The total counts shared buffers once and slices whole. Telling better takes forty times
        # as long, more than a small batch is worth.
        is_small = total * columns <= _SMALL_BYTES
        size: int = total if is_small else part.nbytes
        return size + _COLUMN_BYTES * columns
    return sum(
        len(row.original) + _utf8_bytes(row.content_type) + _utf8_bytes(row.reason) for row in part
    )


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def require_count(count: int) -> None:
    if count == 0:
        raise InvalidRequest("an append needs at least one row")
    if count > ROWS_MAX:
        raise InvalidRequest("too many rows for one frame", hint="split the batch")


def encode(part: Part, schemas: SchemaCache) -> EncodedPart:
    try:
        if isinstance(part, pa.RecordBatch):
            return _encode(Kind.ROWS, part, schemas)
        return _encode(Kind.REJECTED, _rejected_batch(part), schemas)
    except UNDECODABLE as error:
        raise InvalidRequest(f"the rows cannot be written as Arrow: {error}") from error


def _rejected_batch(rows: Sequence[Rejected]) -> pa.RecordBatch:
    columns = [
        pa.array([row.original for row in rows], pa.binary()),
        pa.array([row.content_type for row in rows], pa.string()),
        pa.array([row.reason for row in rows], pa.string()),
    ]
    return pa.record_batch(columns, schema=REJECTED_SCHEMA)


def _encode(kind: Kind, batch: pa.RecordBatch, schemas: SchemaCache) -> EncodedPart:
    schema = schemas.encoded(batch.schema)
    flags = 0
    if schema.has_dictionaries:
        flags = Flag.STREAMED
        payload = _stream(batch)
    elif batch.get_total_buffer_size() < _LARGE_COLUMN_BYTES * batch.num_columns:
        payload = memoryview(batch.serialize())
    else:
        return _encode_large(kind, batch, schema, schemas)
    size = _require_size(len(payload))
    return EncodedPart(kind, flags, (payload,), size, checksum(payload), batch.num_rows, schema)


def _require_size(size: int) -> int:
    if size > PAYLOAD_BYTES_MAX:
        raise InvalidRequest(
            f"a batch of {size} bytes is too large for one frame",
            hint=f"split it; {PAYLOAD_BYTES_MAX} bytes are the most",
        )
    return size


def _stream(batch: pa.RecordBatch) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    payload = memoryview(sink.getvalue())
    # Arrow writes some streams that it cannot read: of a dictionary of a dictionary.
    decode_batch(payload, Flag.STREAMED, batch.schema)
    return payload


def _encode_large(
    kind: Kind, batch: pa.RecordBatch, schema: EncodedSchema, schemas: SchemaCache
) -> EncodedPart:
    payload = schemas.large_writer(schema, batch).write(batch)
    size = _require_size(sum(map(len, payload)))
    payload_sum = checksum_of_pieces(payload)
    return EncodedPart(kind, 0, payload, size, payload_sum, batch.num_rows, schema)


def decode_schema(payload: memoryview) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(payload))


def decode_batch(payload: memoryview, flags: int, schema: pa.Schema) -> pa.RecordBatch:
    """The batch, over the very bytes of `payload`."""
    if flags & Flag.STREAMED:
        with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
            return reader.read_next_batch()
    return pa.ipc.read_record_batch(pa.py_buffer(payload), schema)


def decode_rejected(batch: pa.RecordBatch) -> list[Rejected]:
    columns = (column.to_pylist() for column in batch.columns)
    return [Rejected(*row) for row in zip(*columns, strict=True)]
