"""How large the schema of a topic may become: a bound on what producers can make of it."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from calve.errors import InvalidRequest

FIELDS_MAX: Final = 5_000  # with those inside of others
DEPTH_MAX: Final = 32


def check_size(schema: pa.Schema) -> None:
    """Refuse a schema with too many fields, too many inside each other, or names not in UTF-8."""
    count = 0
    level: list[pa.Field] = list(schema)
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
            raise too_many_fields()
        level = [inner for field in level for inner in _inside(_checked(field).type)]


def too_many_fields() -> InvalidRequest:
    return InvalidRequest(
        f"a topic has at most {FIELDS_MAX:,} columns and fields",
        hint="names that are values belong into a column of type map<string, …>",
    )


def _checked(field: pa.Field) -> pa.Field:
    try:
        assert field.name is not None
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the name of a column is not UTF-8: {error.object!r}", hint="name it in UTF-8"
        ) from error
    return field


def _inside(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _inside(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _inside(kind.storage_type)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(place) for place in range(kind.num_fields)]
