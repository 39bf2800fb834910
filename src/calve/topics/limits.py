"""How large the schema of a topic may become: a bound on what producers can make of it."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from calve.errors import InvalidRequest

FIELDS_MAX: Final = 5_000  # with those inside of others
DEPTH_MAX: Final = 32


def check_size(schema: pa.Schema) -> None:
    """Refuse a schema with too many fields, or with too many inside each other."""
    count = 0
    level: list[pa.DataType] = [field.type for field in schema]
    depth = 0
    while level:
        depth += 1
        count += len(level)
        if depth > DEPTH_MAX:
            raise InvalidRequest(
                f"more than {DEPTH_MAX} types lie inside each other",
                hint="store what is nested so deeply as text, such as JSON",
            )
        if count > FIELDS_MAX:
            raise InvalidRequest(
                f"a topic has at most {FIELDS_MAX:,} columns and fields",
                hint="names that are values belong into a column of type map<string, …>",
            )
        level = [inner for kind in level for inner in _inside(kind)]


def _inside(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _inside(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _inside(kind.storage_type)
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.field(place).type for place in range(kind.num_fields)]
