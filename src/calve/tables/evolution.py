"""Changing a table's schema and partitioning; several changes are one commit.

Columns are found by name, nested ones by a dotted path. Old snapshots stay readable with the
columns of their time, because Iceberg keeps every schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyiceberg.exceptions import ValidationError
from pyiceberg.table import Table
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import IcebergType

from calve.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class AddColumn:
    path: str
    type: IcebergType
    doc: str | None = None


@dataclass(frozen=True, slots=True)
class RenameColumn:
    path: str
    new_name: str


@dataclass(frozen=True, slots=True)
class DropColumn:
    path: str


@dataclass(frozen=True, slots=True)
class WidenColumn:
    """Make the type wider: int to long, float to double, a decimal of more digits."""

    path: str
    type: IcebergType


@dataclass(frozen=True, slots=True)
class MakeOptional:
    path: str


SchemaChange: TypeAlias = AddColumn | RenameColumn | DropColumn | WidenColumn | MakeOptional


def evolve_schema(table: Table, changes: Sequence[SchemaChange]) -> None:
    """Apply all changes in one commit, or none."""
    if not changes:
        raise InvalidRequest("no change was given")
    try:
        with table.update_schema() as update:
            for change in changes:
                _apply(update, change)
    except (ValueError, KeyError, ValidationError) as error:
        raise InvalidRequest(
            f"the schema cannot be changed so: {error}",
            hint="`calve table describe` shows the columns",
        ) from error


def _apply(update: UpdateSchema, change: SchemaChange) -> None:
    path = tuple(change.path.split("."))
    match change:
        case AddColumn():
            update.add_column(path, change.type, doc=change.doc)
        case RenameColumn():
            update.rename_column(path, change.new_name)
        case DropColumn():
            update.delete_column(path)
        case WidenColumn():
            update.update_column(path, field_type=change.type)
        case MakeOptional():
            update.make_column_optional(path)
