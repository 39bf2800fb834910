"""Partition and sort expressions: `day(created_at)`, `bucket(16, id)`, `amount desc nulls last`.

What Iceberg allows but PyIceberg cannot write is refused here, before there is a table that nobody
can insert into.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, make_compatible_name
from pyiceberg.table.sorting import (
    UNSORTED_SORT_ORDER,
    NullOrder,
    SortDirection,
    SortField,
    SortOrder,
)
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TimeTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import BinaryType, FixedType, IcebergType, NestedField, TimeType, UUIDType

from calve.errors import InvalidRequest
from calve.tables.nearest import meant
from calve.tables.types import type_name

_TIMES: Final[dict[str, Callable[[], Transform[Any, Any]]]] = {
    "year": YearTransform,
    "years": YearTransform,
    "month": MonthTransform,
    "months": MonthTransform,
    "day": DayTransform,
    "days": DayTransform,
    "hour": HourTransform,
    "hours": HourTransform,
}
_COUNTED: Final[dict[str, Callable[[int], Transform[Any, Any]]]] = {
    "bucket": BucketTransform,
    "truncate": TruncateTransform,
}
_WORDS: Final = (*_TIMES, *_COUNTED, "identity")
_SUFFIXES: Final[dict[type[Transform[Any, Any]], str]] = {
    YearTransform: "_year",
    MonthTransform: "_month",
    DayTransform: "_day",
    HourTransform: "_hour",
    BucketTransform: "_bucket",
    TruncateTransform: "_trunc",
}
_COUNT_MAX: Final = 2**31 - 1
_UNWRITABLE: Final = re.compile(r"^[^A-Za-z_]|[^A-Za-z0-9_]")

_CALL: Final = re.compile(r"(\w+)\s*(?:\[\s*(\d+)\s*\]\s*)?\((.*)\)", re.DOTALL)
_COUNT_FIRST: Final = re.compile(r"(\d+)\s*,\s*(.+)", re.DOTALL)
_COUNT_LAST: Final = re.compile(r"(.+?)\s*,\s*(\d+)", re.DOTALL)
_ORDER: Final = re.compile(
    r"(.*?)(?:\s+(asc|desc))?(?:\s+nulls\s+(first|last))?", re.IGNORECASE | re.DOTALL
)
_HINT: Final = (
    "write a column, or year(c), month(c), day(c), hour(c), bucket(16, c) or truncate(4, c)"
)

Term = tuple[Transform[Any, Any], NestedField]


def partition_spec(expressions: Sequence[str], schema: Schema) -> PartitionSpec:
    fields: list[PartitionField] = []
    for expression in expressions:
        transform, column = partition_term(expression, schema)
        refuse_redundant(transform, column, fields, expression)
        taken = {field.name for field in fields} | {field.name for field in schema.fields}
        fields.append(
            PartitionField(
                column.field_id,
                PARTITION_FIELD_ID_START + len(fields),
                transform,
                field_name(transform, column, taken),
            )
        )
    return PartitionSpec(*fields)


def partition_term(expression: str, schema: Schema) -> Term:
    """The transform and the column that an expression names, if rows can be written so."""
    transform, column = _term(expression, schema, what="partition_by")
    _refuse_unwritable(transform, column, expression)
    return transform, column


def sort_order(expressions: Sequence[str], schema: Schema) -> SortOrder:
    fields: list[SortField] = []
    for expression in expressions:
        field = _sort_field(expression, schema)
        if any(
            (field.source_id, field.transform) == (other.source_id, other.transform)
            for other in fields
        ):
            raise InvalidRequest(
                f"sort_by {expression!r}: the table is sorted by this already",
                hint="name each column once",
            )
        fields.append(field)
    return SortOrder(*fields) if fields else UNSORTED_SORT_ORDER


def _sort_field(expression: str, schema: Schema) -> SortField:
    matched = None if _column(expression, schema) else _ORDER.fullmatch(expression.strip())
    text, direction, nulls = matched.groups() if matched else (expression, None, None)
    transform, column = _term(text, schema, what="sort_by")
    if not isinstance(transform, IdentityTransform):
        _refuse_unwritable(transform, column, expression)
    descending = (direction or "").lower() == "desc"
    # Iceberg's own rule: a missing value counts as the smallest.
    last = nulls.lower() == "last" if nulls else descending
    return SortField(
        source_id=column.field_id,
        transform=transform,
        direction=SortDirection.DESC if descending else SortDirection.ASC,
        null_order=NullOrder.NULLS_LAST if last else NullOrder.NULLS_FIRST,
    )


def _term(expression: str, schema: Schema, *, what: str) -> Term:
    text = expression.strip()
    if column := _column(text, schema):
        transform: Transform[Any, Any] = IdentityTransform()
    else:
        transform, name = _call(text, what=what)
        column = _known_column(name, schema, expression, what=what)
    if not transform.can_transform(column.field_type):
        raise InvalidRequest(
            f"{what} {expression!r}: {_word(transform)} does not work on column {column.name!r}, "
            f"which is {type_name(column.field_type)}",
            hint=_HINT,
            context={"column": column.name},
        )
    return transform, column


def _call(text: str, *, what: str) -> tuple[Transform[Any, Any], str]:
    matched = _CALL.fullmatch(text)
    if matched is None:
        return IdentityTransform(), text
    word, bracketed, inside = matched.groups()
    name, count = _arguments(inside, bracketed)
    word = word.lower()
    if word not in _WORDS:
        raise InvalidRequest(
            f"{what} {text!r}: there is no transform {word!r}{meant(word, _WORDS)}", hint=_HINT
        )
    if word in _COUNTED:
        if count is None or not 1 <= count <= _COUNT_MAX:
            raise InvalidRequest(
                f"{what} {text!r}: {word} needs a number of at least 1",
                hint=f"write {word}(16, {name})",
            )
        return _COUNTED[word](count), name
    if count is not None:
        raise InvalidRequest(f"{what} {text!r}: {word} takes no number", hint=_HINT)
    return (_TIMES[word]() if word in _TIMES else IdentityTransform()), name


def _arguments(inside: str, bracketed: str | None) -> tuple[str, int | None]:
    """The column and the number, which may stand first, last, or in brackets before."""
    text = inside.strip()
    if bracketed is not None:
        return text, int(bracketed)
    if matched := _COUNT_FIRST.fullmatch(text):
        return matched[2].strip(), int(matched[1])
    if matched := _COUNT_LAST.fullmatch(text):
        return matched[1].strip(), int(matched[2])
    return text, None


def _column(name: str, schema: Schema) -> NestedField | None:
    spellings = {name, name.strip(), _unquoted(name.strip())}
    return next((field for field in schema.fields if field.name in spellings), None)


def _known_column(name: str, schema: Schema, expression: str, *, what: str) -> NestedField:
    if column := _column(name, schema):
        return column
    names = [field.name for field in schema.fields]
    if any(name.startswith(f"{known}.") for known in names):
        problem = f"{name!r} lies inside another column; only whole columns can be used"
    else:
        problem = f"there is no column {name!r}{meant(name, names)}"
    raise InvalidRequest(f"{what} {expression!r}: {problem}", hint=_HINT, context={"column": name})


def _unquoted(name: str) -> str:
    for quote in ('"', "`"):
        if len(name) > 2 and name[0] == name[-1] == quote:
            return name[1:-1].replace(quote * 2, quote)
    return name


def _refuse_unwritable(
    transform: Transform[Any, Any], column: NestedField, expression: str
) -> None:
    if cannot_write(transform, column.field_type):
        raise InvalidRequest(
            f"{expression!r}: {_word(transform)} of {type_name(column.field_type)} cannot be "
            f"written yet (column {column.name!r})",
            hint="use bucket(16, c) for a uuid or a fixed, the column itself for a time, or "
            "another column",
            context={"column": column.name},
        )


def cannot_write(transform: Transform[Any, Any], source: IcebergType) -> bool:
    """Whether PyIceberg's writer fails on this pair; a test tries every other pair.

    It writes partitions of a fixed column, but so that Spark cannot read the table.
    """
    return (
        (isinstance(transform, IdentityTransform) and isinstance(source, UUIDType | FixedType))
        or (isinstance(transform, BucketTransform) and isinstance(source, TimeType))
        or (isinstance(transform, TruncateTransform) and isinstance(source, BinaryType))
    )


def is_manifest_name(name: str) -> bool:
    """Whether a partition field of this name ends up in a manifest as plain Avro.

    Iceberg writes other characters as their numbers, but leaves the letters of all languages.
    """
    return make_compatible_name(name).isascii()


def refuse_redundant(
    transform: Transform[Any, Any],
    column: NestedField,
    fields: Sequence[PartitionField],
    expression: str,
) -> None:
    for field in fields:
        same = field.transform == transform
        nested = isinstance(field.transform, TimeTransform) and isinstance(transform, TimeTransform)
        if field.source_id == column.field_id and (same or nested):
            raise InvalidRequest(
                f"partition_by {expression!r}: column {column.name!r} is partitioned by "
                f"{_word(field.transform)} already",
                hint="keep the finer of the two",
                context={"column": column.name},
            )


def field_name(transform: Transform[Any, Any], column: NestedField, taken: Collection[str]) -> str:
    """The name of a partition field: one that every reader of a manifest takes."""
    name = column.name
    if not is_manifest_name(name):
        name = _UNWRITABLE.sub(lambda found: f"_x{ord(found[0]):X}", name)
    if isinstance(transform, IdentityTransform) and name == column.name:
        return name
    name += _SUFFIXES.get(type(transform), "")
    while name in taken:
        name += "_part"
    return name


def _word(transform: Transform[Any, Any]) -> str:
    return str(transform).partition("[")[0]
