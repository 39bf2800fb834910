"""PyIceberg's Avro schema of a manifest, mended: no type in it is defined twice.

Two partitions of one fixed or decimal type would make a file that no strict reader of Avro takes,
and on which DuckDB ends the process. The mend is for the whole process.
"""

from __future__ import annotations

from typing import Any, Final

from pyiceberg.types import NestedField
from pyiceberg.utils.schema_conversion import ConvertSchemaToAvro

_field: Final[Any] = ConvertSchemaToAvro.field


def _named_field(self: ConvertSchemaToAvro, field: NestedField, kind: Any) -> Any:
    if isinstance(kind, dict) and kind.get("type") == "fixed":
        kind = {**kind, "name": f"{kind['name']}_{field.field_id}"}
    return _field(self, field, kind)


def mend_manifest_schema() -> None:
    """Have PyIceberg name each such type for its field; once is enough."""
    visitor: Any = ConvertSchemaToAvro
    visitor.field = _named_field
