"""Bloom filters in Parquet files: whether a file cannot hold a text in one of its columns.

Read by whoever chooses files before anybody opens them. The layout is Parquet's split block filter
with XXH64, which is the only one that it defines.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh64_intdigest

from calve.tables.translate import reading_file, translating

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

_FIELD_ID: Final = b"PARQUET:field_id"
_BLOCK: Final = struct.Struct("<8I")
_SALTS: Final = (
    *(0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D),
    *(0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31),
)
_LENGTH: Final = struct.Struct("<I")
_SIZE_FIELD: Final = 0x15  # the first of a header: a number, which says how long the filter is


def read_filters(io: FileIO, path: str, field_id: int) -> bytes:
    """A file's filters of a column, one of each row group; nothing if a row group has none."""
    with translating(), reading_file(path), io.new_input(path).open() as stream:
        footer = pq.read_metadata(stream)
        place = _place(footer.schema, field_id)
        parts: list[bytes] = []
        for group in range(footer.num_row_groups):
            found = None if place is None else footer.row_group(group).column(place)
            if found is None or not found.bloom_filter_offset or not found.bloom_filter_length:
                return b""
            stream.seek(found.bloom_filter_offset)
            bits = _bits(stream.read(found.bloom_filter_length))
            if bits is None:
                return b""
            parts += [_LENGTH.pack(len(bits)), bits]
        return b"".join(parts)


def may_hold(filters: bytes, texts: frozenset[str]) -> bool:
    """Whether a file with such filters may have one of the texts; without any it may."""
    hashes = [xxh64_intdigest(text.encode()) for text in texts]
    at = 0
    while at < len(filters):
        (length,) = _LENGTH.unpack_from(filters, at)
        at += _LENGTH.size
        if any(_may_have(filters, at, length, each) for each in hashes):
            return True
        at += length
    return not filters


def _may_have(filters: bytes, at: int, length: int, hashed: int) -> bool:
    block = ((hashed >> 32) * (length // _BLOCK.size)) >> 32
    words = _BLOCK.unpack_from(filters, at + block * _BLOCK.size)
    key = hashed & 0xFFFFFFFF
    return all(
        word >> ((key * salt & 0xFFFFFFFF) >> 27) & 1
        for word, salt in zip(words, _SALTS, strict=True)
    )


def _place(schema: pq.ParquetSchema, field_id: int) -> int | None:
    """The column by its id: after renames another one may have its name."""
    wanted = str(field_id).encode()
    for field in schema.to_arrow_schema():
        if (field.metadata or {}).get(_FIELD_ID) == wanted and not pa.types.is_nested(field.type):
            return next(n for n in range(len(schema)) if schema.column(n).path == field.name)
    return None


def _bits(content: bytes) -> bytes | None:
    """A filter without its header, which is Thrift's; None for another layout."""
    if content[:1] != bytes([_SIZE_FIELD]):
        return None
    coded, shift, at = 0, 0, 1
    while True:
        coded |= (content[at] & 0x7F) << shift
        if content[at] < 0x80:
            break
        shift, at = shift + 7, at + 1
    length = coded >> 1
    is_whole = 0 < length < len(content) and length % _BLOCK.size == 0
    return content[-length:] if is_whole else None
