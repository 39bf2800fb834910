"""How a table's properties want the columns of its Parquet files written.

Iceberg's own properties say whether a column has a dictionary or a bloom filter:
`write.parquet.dict-encoding-enabled.column.<name>`,
`write.parquet.bloom-filter-enabled.column.<name>`, `write.parquet.bloom-filter-fpp.column.<name>`.
Calve's own, in the same spelling, choose for one column what Iceberg has for all or not at all:
`write.parquet.encoding.column.<name>`, `write.parquet.compression-level.column.<name>`. A name is a
column's or, with dots, that of something inside: `attributes.value`, `events.element.time`.

What a column cannot have, or no column has the name of, is left out: a property outlives a column.
Other writers do not know Calve's properties, and every reader reads what they make.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.types import (
    BinaryType,
    DateType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from calve.errors import InvalidRequest

ENCODING: Final = "write.parquet.encoding.column."
LEVEL: Final = "write.parquet.compression-level.column."
DICTIONARY: Final = "write.parquet.dict-encoding-enabled.column."
BLOOM: Final = "write.parquet.bloom-filter-enabled.column."
_BLOOM_FPP: Final = "write.parquet.bloom-filter-fpp.column."
_BLOOM_FPP_DEFAULT: Final = 0.01
_BY_COLUMN: Final = (ENCODING, DICTIONARY, LEVEL, BLOOM)
# The codecs that have levels, and the highest of each.
_LEVELS: Final = {"zstd": 22, "gzip": 9, "brotli": 11}

_WHOLE: Final = (IntegerType, LongType, DateType, TimeType, TimestampType, TimestamptzType)
_TEXT: Final = (StringType, BinaryType)
_FLOATING: Final = (FloatType, DoubleType)
# DuckDB reads byte-stream-split of floats only, so that other numbers cannot have it here.
_ENCODINGS: Final[Mapping[str, tuple[type[IcebergType], ...]]] = {
    "dictionary": (IcebergType,),
    "plain": (IcebergType,),
    "delta-binary-packed": _WHOLE,
    "delta-length-byte-array": _TEXT,
    "delta-byte-array": _TEXT,
    "byte-stream-split": _FLOATING,
}


def check_parquet_property(key: str, value: str) -> None:
    """InvalidRequest if it is one of those above and its value means nothing."""
    if key.startswith(ENCODING) and value.lower() not in _ENCODINGS:
        raise InvalidRequest(
            f"property {key!r} is {value!r}", hint=f"it can be {', '.join(_ENCODINGS)}"
        )
    if key.startswith(_BLOOM_FPP) and not _is_share(value):
        raise InvalidRequest(f"property {key!r} is {value!r}", hint="write it as 0.01")
    if key.startswith(LEVEL) and not _is_level(value):
        raise InvalidRequest(
            f"property {key!r} is {value!r}", hint="write a whole number from 1 to 22"
        )


def _is_level(text: str) -> bool:
    return text.isdecimal() and 0 < int(text) <= max(_LEVELS.values())


def _share(text: str) -> float:
    return float(text) if _is_share(text) else _BLOOM_FPP_DEFAULT


def _is_share(text: str) -> bool:
    try:
        return 0 < float(text) < 1
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """What pyarrow's writer is told, besides what PyIceberg tells it."""

    settings: Mapping[str, Any]
    filters: Mapping[str, float]  # the columns that have one, and how often it may be wrong
    encoded: Collection[str]  # those for which properties say how to encode

    def for_rows(self, rows: pa.Table) -> dict[str, Any]:
        """The same for a file with such rows, to the number of whose values filters are made."""
        if not self.filters:
            return dict(self.settings)
        filters = {
            name: {"ndv": max(_different(rows.column(name)), 1), "fpp": fpp}
            for name, fpp in self.filters.items()
        }
        return {**self.settings, "bloom_filter_options": filters}


def _different(column: pa.ChunkedArray) -> int:
    """How many values there are; of parts with dictionaries no fewer than that."""
    if pa.types.is_dictionary(column.type):
        return sum(len(each.dictionary) for each in column.chunks)
    count: int = pc.count_distinct(column).as_py()
    return count


def parquet_options(
    schema: Schema, file_schema: Schema, properties: Mapping[str, str]
) -> ParquetOptions:
    """`schema` has the names that properties use, `file_schema` those in the file."""
    if not any(name.startswith(_BY_COLUMN) for name in properties):
        return ParquetOptions({}, {}, frozenset())
    # Whoever only checks properties need not load what writes files.
    from pyiceberg.io.pyarrow import parquet_path_to_id_mapping

    wanted = {
        schema.find_column_name(field_id): (path, schema.find_type(field_id))
        for path, field_id in parquet_path_to_id_mapping(file_schema).items()
    }
    encodings = {
        path: encoding
        for name, (path, kind) in wanted.items()
        if (encoding := _encoding(properties, name or "")) in _ENCODINGS
        and isinstance(kind, _ENCODINGS[encoding])
    }
    plain = {path: name for path, name in encodings.items() if name != "dictionary"}
    settings: dict[str, Any] = {}
    if plain:
        settings["use_dictionary"] = [path for path, _ in wanted.values() if path not in plain]
        settings["column_encoding"] = {
            path: name.upper().replace("-", "_") for path, name in plain.items()
        }
    levels = _levels({name or "": path for name, (path, _) in wanted.items()}, properties)
    if levels:
        settings["compression_level"] = levels
    filters = {
        path: _share(properties.get(f"{_BLOOM_FPP}{name}", ""))
        for name, (path, kind) in wanted.items()
        if properties.get(f"{BLOOM}{name}", "").lower() == "true"
        and isinstance(kind, (*_WHOLE, *_TEXT))
        and "." not in path
    }
    encoded = {
        path
        for name, (path, _) in wanted.items()
        if f"{ENCODING}{name}" in properties or f"{DICTIONARY}{name}" in properties
    }
    return ParquetOptions(settings, filters, encoded)


def _encoding(properties: Mapping[str, str], name: str) -> str:
    has_dictionary = properties.get(f"{DICTIONARY}{name}", "").lower() != "false"
    chosen = properties.get(f"{ENCODING}{name}", "").lower()
    return chosen or ("" if has_dictionary else "plain")


def _levels(paths: Mapping[str, str], properties: Mapping[str, str]) -> dict[str, int]:
    """Of every column, if any has one of its own: pyarrow takes one for all or one for each."""
    codec = properties.get(
        TableProperties.PARQUET_COMPRESSION, TableProperties.PARQUET_COMPRESSION_DEFAULT
    )
    if codec.lower() not in _LEVELS or not any(f"{LEVEL}{name}" in properties for name in paths):
        return {}
    default = properties.get(TableProperties.PARQUET_COMPRESSION_LEVEL, "")
    wanted = {path: properties.get(f"{LEVEL}{name}", default) for name, path in paths.items()}
    most = _LEVELS[codec.lower()]
    return {path: min(int(level), most) for path, level in wanted.items() if _is_level(level)}
