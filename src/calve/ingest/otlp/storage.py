"""How the files of telemetry are written, as properties of its tables.

Times and counters are stored by their differences, ids of spans without a dictionary, which would
hold each of them, and texts compressed harder than usual. The reasons are measured:
`python -m benchmarks.otlp_storage --columns` shows what each column takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from calve.tables.parquet_options import BLOOM, DICTIONARY, ENCODING, LEVEL
from calve.topics.log_rows import OFFSET

# By a filter a reader knows of most files that they do not have a trace, or of some that they do
# not have a service, and leaves them alone.
_SOUGHT: Final = ("trace_id", "service_name")
_PROPERTIES: Final = {
    # Spark would take gzip, which knows no such level, for a table that names no codec.
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "9",
    # For what Spark compacts: its writer has differences in pages of version 2 only, and filters of
    # a megabyte each if it may not choose among several.
    "write.parquet.page-version": "v2",
    "write.parquet.bloom-filter-adaptive-enabled": "true",
}
# Matches that a compressor finds in random digits cost more than they spare.
_ID_LEVELS: Final = {"trace_id": "1", "span_id": "1", "parent_span_id": "6"}
_SPAN_IDS: Final = frozenset({"span_id", "parent_span_id"})
_COUNTERS: Final = frozenset({"value_int", "count", "zero_count", OFFSET})
_MEASURED: Final = frozenset({"value", "sum", "min", "max"})


def file_properties(schema: pa.Schema) -> dict[str, str]:
    """For a table with such columns."""
    columns = [*(found for field in schema for found in _leaves(field.name, field.type))]
    columns.append((OFFSET, pa.int64()))
    properties = dict(_PROPERTIES)
    properties |= {f"{BLOOM}{name}": "true" for name in _SOUGHT if name in schema.names}
    for path, kind in columns:
        name = path.rpartition(".")[2]
        if encoding := _encoding(name, kind):
            properties[f"{ENCODING}{path}"] = encoding
            if path in schema.names:
                properties[f"{DICTIONARY}{path}"] = "false"
        if level := _ID_LEVELS.get(name):
            properties[f"{LEVEL}{path}"] = level
    return properties


def _encoding(name: str, kind: pa.DataType) -> str | None:
    """None where a dictionary is right: what repeats, and numbers that hardly differ."""
    if pa.types.is_timestamp(kind) or name.endswith("_nano") or name in _COUNTERS:
        return "delta-binary-packed"
    if pa.types.is_floating(kind) and name in _MEASURED:
        return "byte-stream-split"
    if name in _SPAN_IDS:
        return "delta-length-byte-array"
    if name == "trace_id":
        # Named, so that Spark has none: it writes a filter only where a dictionary is not enough.
        return "dictionary"
    return "plain" if name == "body" else None


def _leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """What has values, under the names that Iceberg has for it."""
    if pa.types.is_map(kind):
        yield from _leaves(f"{path}.key", kind.key_type)
        yield from _leaves(f"{path}.value", kind.item_type)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.element", kind.value_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{path}.{field.name}", field.type)
    else:
        yield path, kind
