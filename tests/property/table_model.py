"""What a table should hold, in plain Python: columns with ids, rows by those ids, and snapshots.

Nothing here is Calve's. A row is kept by the ids of its columns, so that a rename changes no row
and a column that is dropped and added again begins empty.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

Row: TypeAlias = dict[int, Any]


@dataclass(frozen=True)
class Column:
    id: int
    name: str
    type: Kind
    required: bool = False


@dataclass(frozen=True)
class StructOf:
    fields: tuple[Column, ...]


@dataclass(frozen=True)
class ListOf:
    element: Column


@dataclass(frozen=True)
class MapOf:
    key: Column
    value: Column


Kind: TypeAlias = str | StructOf | ListOf | MapOf
Columns: TypeAlias = tuple[Column, ...]

PLAIN: dict[str, tuple[IcebergType, pa.DataType]] = {
    "boolean": (BooleanType(), pa.bool_()),
    "int": (IntegerType(), pa.int32()),
    "long": (LongType(), pa.int64()),
    "float": (FloatType(), pa.float32()),
    "double": (DoubleType(), pa.float64()),
    "decimal(9,2)": (DecimalType(9, 2), pa.decimal128(9, 2)),
    "decimal(18,2)": (DecimalType(18, 2), pa.decimal128(18, 2)),
    "decimal(38,2)": (DecimalType(38, 2), pa.decimal128(38, 2)),
    "date": (DateType(), pa.date32()),
    "time": (TimeType(), pa.time64("us")),
    "timestamp": (TimestampType(), pa.timestamp("us")),
    "timestamptz": (TimestamptzType(), pa.timestamp("us", "UTC")),
    "string": (StringType(), pa.string()),
    "uuid": (UUIDType(), pa.uuid()),
    "binary": (BinaryType(), pa.binary()),
    "fixed[4]": (FixedType(4), pa.binary(4)),
}
WIDER = {
    "int": ["long"],
    "float": ["double"],
    "decimal(9,2)": ["decimal(18,2)", "decimal(38,2)"],
    "decimal(18,2)": ["decimal(38,2)"],
}


def iceberg_type(kind: Kind) -> IcebergType:
    match kind:
        case StructOf():
            return StructType(*map(iceberg_field, kind.fields))
        case ListOf():
            element = kind.element
            return ListType(element.id, iceberg_type(element.type), element.required)
        case MapOf():
            return MapType(
                kind.key.id,
                iceberg_type(kind.key.type),
                kind.value.id,
                iceberg_type(kind.value.type),
                kind.value.required,
            )
    return PLAIN[kind][0]


def iceberg_field(column: Column) -> NestedField:
    return NestedField(column.id, column.name, iceberg_type(column.type), required=column.required)


def arrow_type(kind: Kind) -> pa.DataType:
    """The type that an answer has."""
    match kind:
        case StructOf():
            return pa.struct([(field.name, arrow_type(field.type)) for field in kind.fields])
        case ListOf():
            return pa.list_(arrow_type(kind.element.type))
        case MapOf():
            return pa.map_(arrow_type(kind.key.type), arrow_type(kind.value.type))
    return PLAIN[kind][1]


def children(kind: Kind) -> Columns:
    match kind:
        case StructOf():
            return kind.fields
        case ListOf():
            return (kind.element,)
        case MapOf():
            return (kind.key, kind.value)
    return ()


def with_children(kind: Kind, new: Columns) -> Kind:
    match kind:
        case StructOf():
            return StructOf(new)
        case ListOf():
            return ListOf(*new)
        case MapOf():
            return MapOf(*new)
    return kind


def walk(columns: Columns, path: tuple[Column, ...] = ()) -> Iterator[tuple[Column, ...]]:
    """Every column and every column inside of one, by its path from the top."""
    for column in columns:
        yield (*path, column)
        yield from walk(children(column.type), (*path, column))


def path_name(path: Sequence[Column]) -> str:
    return ".".join(column.name for column in path)


def changed(columns: Columns, column_id: int, **new: Any) -> Columns:
    """The columns with another name, type or requirement for one of them, however deep."""
    return tuple(
        replace(column, **new)
        if column.id == column_id
        else replace(
            column,
            type=with_children(column.type, changed(children(column.type), column_id, **new)),
        )
        for column in columns
    )


def dropped(columns: Columns, column_id: int) -> Columns:
    return tuple(
        replace(column, type=with_children(column.type, dropped(children(column.type), column_id)))
        for column in columns
        if column.id != column_id
    )


# Values


def named(value: Any, kind: Kind) -> Any:
    """A value as it is inserted, with names in place of ids."""
    if value is None:
        return None
    match kind:
        case StructOf():
            return {each.name: named(value.get(each.id), each.type) for each in kind.fields}
        case ListOf():
            return [named(each, kind.element.type) for each in value]
        case MapOf():
            return [(named(k, kind.key.type), named(v, kind.value.type)) for k, v in value]
    return value


def named_row(row: Row, columns: Columns) -> dict[str, Any]:
    return {column.name: named(row.get(column.id), column.type) for column in columns}


def as_seen(value: Any, kind: Kind) -> Hashable:
    """A named value in a form that is the same for every engine; -0.0 is not 0.0."""
    if value is None:
        return None
    match kind:
        case StructOf():
            return tuple(as_seen(value[each.name], each.type) for each in kind.fields)
        case ListOf():
            return tuple(as_seen(each, kind.element.type) for each in value)
        case MapOf():
            pairs = value.items() if isinstance(value, Mapping) else value
            return frozenset(
                (as_seen(k, kind.key.type), as_seen(v, kind.value.type)) for k, v in pairs
            )
    return _plain_as_seen(value, kind)


def _plain_as_seen(value: Any, kind: str) -> Hashable:
    match kind:
        case "float" | "double":
            return "nan" if math.isnan(value) else float(value).hex()
        case "timestamptz":
            assert value.tzinfo is not None
            shown: datetime = value.astimezone(UTC).replace(tzinfo=None)
            return shown
        case "uuid":
            return str(UUID(bytes=value) if isinstance(value, bytes) else value)
        case "binary" | "fixed[4]":
            return bytes(value)
    assert not isinstance(value, Decimal) or value.as_tuple().exponent == -2
    assert isinstance(value, Hashable)
    return value


def seen_rows(rows: Iterable[Mapping[str, Any]], columns: Columns) -> Counter[Hashable]:
    return Counter(
        tuple(as_seen(row[column.name], column.type) for column in columns) for row in rows
    )


def expected_rows(rows: Iterable[Row], columns: Columns) -> Counter[Hashable]:
    return seen_rows((named_row(row, columns) for row in rows), columns)


def order_key(value: Any) -> Any:
    """By which values of a type are ordered and equal: NaN above all, and -0.0 is 0.0."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value + 0.0)
    return value


def same(left: Any, right: Any, kind: Kind) -> bool:
    """Whether two values are not distinct, as conditions see it."""
    if left is None or right is None:
        return left is right
    match kind:
        case StructOf():
            return all(same(left.get(f.id), right.get(f.id), f.type) for f in kind.fields)
        case ListOf():
            pairs = zip(left, right, strict=False)
            return len(left) == len(right) and all(same(*p, kind.element.type) for p in pairs)
        case MapOf():
            pairs = zip(left, right, strict=False)
            return len(left) == len(right) and all(
                same(a, c, kind.key.type) and same(b, d, kind.value.type)
                for (a, b), (c, d) in pairs
            )
    return bool(order_key(left) == order_key(right))


# Conditions


@dataclass(frozen=True)
class Ref:
    """A column, or one inside of structs."""

    path: tuple[Column, ...]

    @property
    def kind(self) -> str:
        kind = self.path[-1].type
        assert isinstance(kind, str)
        return kind

    def value(self, row: Row) -> Any:
        found: Any = row
        for column in self.path:
            found = None if found is None else found.get(column.id)
        return found

    def text(self) -> str:
        return ".".join(quoted(column.name) for column in self.path)


@dataclass(frozen=True)
class Comparison:
    ref: Ref
    operator: str
    operand: Any

    def holds(self, row: Row) -> bool | None:
        value = self.ref.value(row)
        if self.operator in {"IS DISTINCT FROM", "IS NOT DISTINCT FROM"}:
            is_same = same(value, self.operand, self.ref.kind)
            return is_same == (self.operator == "IS NOT DISTINCT FROM")
        if value is None or self.operand is None:
            return None
        left, right = order_key(value), order_key(self.operand)
        match self.operator:
            case "=":
                return bool(left == right)
            case "<>":
                return bool(left != right)
            case "<":
                return bool(left < right)
            case "<=":
                return bool(left <= right)
            case ">":
                return bool(left > right)
        assert self.operator == ">="
        return bool(left >= right)

    def text(self) -> str:
        return f"{self.ref.text()} {self.operator} {literal(self.operand, self.ref.kind)}"


@dataclass(frozen=True)
class IsNull:
    ref: Ref

    def holds(self, row: Row) -> bool | None:
        return self.ref.value(row) is None

    def text(self) -> str:
        return f"{self.ref.text()} IS NULL"


@dataclass(frozen=True)
class In:
    ref: Ref
    operands: tuple[Any, ...]

    def holds(self, row: Row) -> bool | None:
        return any_of(Comparison(self.ref, "=", each).holds(row) for each in self.operands)

    def text(self) -> str:
        listed = ", ".join(literal(each, self.ref.kind) for each in self.operands)
        return f"{self.ref.text()} IN ({listed})"


@dataclass(frozen=True)
class StartsWith:
    ref: Ref
    prefix: str

    def holds(self, row: Row) -> bool | None:
        value = self.ref.value(row)
        return None if value is None else bool(value.startswith(self.prefix))

    def text(self) -> str:
        return f"starts_with({self.ref.text()}, {literal(self.prefix, 'string')})"


@dataclass(frozen=True)
class Not:
    inner: Condition

    def holds(self, row: Row) -> bool | None:
        inner = self.inner.holds(row)
        return None if inner is None else not inner

    def text(self) -> str:
        return f"NOT ({self.inner.text()})"


@dataclass(frozen=True)
class Both:
    left: Condition
    right: Condition

    def holds(self, row: Row) -> bool | None:
        return Not(Either(Not(self.left), Not(self.right))).holds(row)

    def text(self) -> str:
        return f"({self.left.text()}) AND ({self.right.text()})"


@dataclass(frozen=True)
class Either:
    left: Condition
    right: Condition

    def holds(self, row: Row) -> bool | None:
        return any_of([self.left.holds(row), self.right.holds(row)])

    def text(self) -> str:
        return f"({self.left.text()}) OR ({self.right.text()})"


Condition: TypeAlias = Comparison | IsNull | In | StartsWith | Not | Both | Either


def any_of(claims: Iterable[bool | None]) -> bool | None:
    known = list(claims)
    return True if True in known else None if None in known else False


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(value: Any, kind: str) -> str:
    if value is None:
        return "NULL"
    match kind:
        case "boolean":
            return "TRUE" if value else "FALSE"
        case "int" | "long":
            return str(value)
        case "float" | "double":
            return f"CAST('{value!r}' AS {kind})"
        case "binary" | "fixed[4]":
            return f"unhex('{value.hex()}')"
        case "timestamptz":
            return f"CAST('{value.astimezone(UTC).replace(tzinfo=None)}+00' AS TIMESTAMPTZ)"
        case "string":
            return "'" + str(value).replace("'", "''") + "'"
    return f"CAST('{value}' AS {kind})"


# Snapshots


@dataclass(frozen=True)
class State:
    """A snapshot: the rows, and the columns of its time."""

    columns: Columns
    rows: tuple[Row, ...]
    parent: int | None


@dataclass
class TableModel:
    columns: Columns
    # (column, transform) of the partitioning and the sorting, as they are now.
    partitions: list[tuple[int, str]] = field(default_factory=list)
    sorted_by: list[int] = field(default_factory=list)
    # Columns by which rows were ever divided.
    partition_sources: set[int] = field(default_factory=set)
    snapshots: dict[int, State] = field(default_factory=dict)
    branches: dict[str, int] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    # Which snapshot was current from which time on.
    history: list[tuple[datetime, int]] = field(default_factory=list)

    @property
    def current(self) -> int | None:
        return self.branches.get("main")

    def rows(self, branch: str = "main") -> tuple[Row, ...]:
        head = self.branches.get(branch)
        return () if head is None else self.snapshots[head].rows

    def commit(self, branch: str, snapshot_id: int, rows: Iterable[Row]) -> None:
        parent = self.branches.get(branch)
        self.snapshots[snapshot_id] = State(self.columns, tuple(rows), parent)
        self.branches[branch] = snapshot_id

    def ancestors(self, snapshot_id: int | None) -> list[int]:
        """The kept snapshots from which one came, itself first."""
        found = []
        while snapshot_id in self.snapshots:
            found.append(snapshot_id)
            snapshot_id = self.snapshots[snapshot_id].parent
        return found

    def unpublished(self) -> set[int]:
        """The newest snapshot of each branch, and those before it that main does not have."""
        published = set(self.ancestors(self.current))
        return {
            each
            for head in self.branches.values()
            for each in self.ancestors(head)
            if each == head or each not in published
        }

    def is_used(self, column_id: int) -> bool:
        """Whether the table is divided or sorted by a column."""
        return column_id in {*(source for source, _ in self.partitions), *self.sorted_by}
