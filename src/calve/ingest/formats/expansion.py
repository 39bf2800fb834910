"""How large Arrow data becomes: compressed buffers, and encodings that name a value many times.

A few bytes can stand for many gigabytes. These are the sizes before anything is unpacked.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from calve.tables.types import is_list_like

# The places of fields in Arrow's flatbuffers: Message.fbs.
_HEADER_TYPE: Final = 1
_HEADER: Final = 2
_BUFFERS: Final = 2
_COMPRESSION: Final = 3
_DICTIONARY_DATA: Final = 1
_DICTIONARY_BATCH: Final = 2
_RECORD_BATCH: Final = 3


def compressed_bytes(body: bytes) -> int:
    """What the buffers of a stream say that they are when decompressed; 0 for plain ones."""
    total = 0
    try:
        for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)):
            if message.body is not None:
                total += _message_bytes(memoryview(message.metadata), memoryview(message.body))
    except struct.error as error:
        raise pa.ArrowInvalid("a message is damaged") from error
    return total


def _message_bytes(metadata: memoryview, body: memoryview) -> int:
    message = struct.unpack_from("<I", metadata)[0]
    kind_at = _field(metadata, message, _HEADER_TYPE)
    header_at = _field(metadata, message, _HEADER)
    if not kind_at or not header_at:
        return 0
    kind = metadata[kind_at]
    header = _follow(metadata, header_at)
    if kind == _DICTIONARY_BATCH:
        header = _follow(metadata, _field(metadata, header, _DICTIONARY_DATA))
    elif kind != _RECORD_BATCH:
        return 0
    if not _field(metadata, header, _COMPRESSION):
        return 0
    buffers = _follow(metadata, _field(metadata, header, _BUFFERS))
    count = struct.unpack_from("<I", metadata, buffers)[0]
    total = 0
    for number in range(count):
        offset, length = struct.unpack_from("<qq", metadata, buffers + 4 + 16 * number)
        if length:
            declared = struct.unpack_from("<q", body, offset)[0]
            total += length if declared < 0 else declared  # -1: this one is not compressed
    return total


def _field(data: memoryview, table: int, number: int) -> int:
    """Where a table's field lies; 0 if it is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    place = 4 + 2 * number
    if place >= struct.unpack_from("<H", data, vtable)[0]:
        return 0
    offset: int = struct.unpack_from("<H", data, vtable + place)[0]
    return table + offset if offset else 0


def _follow(data: memoryview, at: int) -> int:
    offset: int = struct.unpack_from("<I", data, at)[0]
    return at + offset


def plain_bytes(array: pa.Array) -> int:
    """About what an array takes once every value of it stands for itself."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return plain_bytes(array.storage)
    if pa.types.is_dictionary(kind):
        return _chosen_bytes(array.dictionary, np.bincount(_numbers(array.indices)))
    if pa.types.is_run_end_encoded(kind):
        ends = np.clip(_numbers(array.run_ends) - array.offset, 0, len(array))
        return _chosen_bytes(array.values, np.diff(ends, prepend=0))
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return int(_view_lengths(array).sum(dtype=np.int64)) + 8 * len(array)
    if pa.types.is_struct(kind):
        return sum(plain_bytes(child) for child in array.flatten())
    if pa.types.is_map(kind):
        return plain_bytes(array.keys) + plain_bytes(array.items) + 8 * len(array)
    if is_list_like(kind):
        return _list_bytes(array)
    return int(array.nbytes)


def _numbers(array: pa.Array) -> Any:
    return pc.fill_null(array, 0).to_numpy(zero_copy_only=False).astype(np.int64)


def _chosen_bytes(values: pa.Array, counts: Any) -> int:
    """Of values of which each is there so many times."""
    counts = counts[: len(values)]
    if not len(counts):
        return 0
    sizes = _sizes(values)[: len(counts)]
    return int(np.dot(sizes.astype(np.float64), counts.astype(np.float64)))


def _sizes(values: pa.Array) -> Any:
    kind = values.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return _view_lengths(values) + 8
    if (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    ):
        return _numbers(pc.binary_length(values)) + 8
    # Nested ones are rare here: each is taken to be as large as all.
    each = plain_bytes(values) if pa.types.is_nested(kind) else 16
    return np.full(len(values), each, dtype=np.int64)


def _view_lengths(array: pa.Array) -> Any:
    """A view is 16 bytes, of which the first four are its length."""
    views = np.frombuffer(array.buffers()[1], dtype=np.int32)
    lengths = views[4 * array.offset : 4 * (array.offset + len(array)) : 4]
    return np.where(array.is_valid().to_numpy(zero_copy_only=False), lengths, 0)


def _list_bytes(array: pa.Array) -> int:
    kind = array.type
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        inside = int(_numbers(array.sizes).sum(dtype=np.int64))
        each = plain_bytes(array.values) / max(1, len(array.values))
        return int(inside * each) + 8 * len(array)
    return plain_bytes(array.flatten()) + 8 * len(array)
