"""Names of partitions, for folders and for the summaries of snapshots: short ones for any value.

Nobody reads values from them. Like PyIceberg's, but its end with Python's calendar, and have the
length of the values, which file systems and stores bound.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote_plus

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import Transform
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType

_PATH_BYTES: Final = 512  # of all names of a path, about
_NAME_BYTES_MAX: Final = 128
_NAME_BYTES_MIN: Final = 32
_DIGEST_DIGITS: Final = 16


class PathSpec(PartitionSpec):
    """A table's partitioning, with such names."""

    def partition_to_path(self, data: Record, schema: Schema) -> str:
        return partition_path(self, data, schema)


def with_paths(spec: PartitionSpec) -> PathSpec:
    return PathSpec.model_validate({"spec-id": spec.spec_id, "fields": spec.fields})


def partition_path(spec: PartitionSpec, record: Record, schema: Schema) -> str:
    """The names of a partition's values, in the order of the fields."""
    if not spec.fields:
        return ""
    types = spec.partition_type(schema).fields
    length = min(_NAME_BYTES_MAX, max(_NAME_BYTES_MIN, _PATH_BYTES // len(spec.fields)))
    names = []
    for at, field in enumerate(spec.fields):
        text = _text(field.transform, types[at].field_type, record[at])
        name = f"{quote_plus(field.name, safe='')}={quote_plus(text, safe='')}"
        names.append(_shortened(name, length))
    return "/".join(names)


def _text(transform: Transform[Any, Any], kind: IcebergType, value: Any) -> str:
    try:
        return transform.to_human_string(kind, value)
    except (OverflowError, ValueError):  # beyond Python's calendar
        return str(value)


def _shortened(name: str, length: int) -> str:
    """Names that begin alike are told apart by a digest of the whole."""
    if len(name) <= length:
        return name
    digest = sha256(name.encode()).hexdigest()[:_DIGEST_DIGITS]
    return f"{name[: length - _DIGEST_DIGITS - 1]}-{digest}"
