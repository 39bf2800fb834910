"""Changing a table's schema and partitioning; several changes are one commit.

Columns are found by name, nested ones by a dotted path. Old snapshots stay readable with the
columns of their time, because Iceberg keeps every schema. What comes out must be a table that
everybody can still read and write, so the rules of creation hold here too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyiceberg.exceptions import ResolveError, ValidationError
from pyiceberg.schema import Schema, promote
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import IdentityTransform, Transform, VoidTransform
from pyiceberg.types import IcebergType, NestedField

from calve.errors import InvalidRequest
from calve.tables.column_history import memory_of
from calve.tables.column_memory import ColumnMemory
from calve.tables.columns import OWN_PREFIX
from calve.tables.commit import Committed, TableCommit
from calve.tables.feeding import feeding_topic, is_letter_column
from calve.tables.nearest import meant
from calve.tables.outcome import commit_metadata
from calve.tables.schemas import check_schema
from calve.tables.staging import Edit
from calve.tables.transaction import LeanTransaction
from calve.tables.transforms import field_name, is_manifest_name, partition_term, refuse_redundant
from calve.tables.types import parse_type

TypeSource: TypeAlias = str | IcebergType | pa.DataType


@dataclass(frozen=True, slots=True)
class AddColumn:
    path: str
    type: TypeSource
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
    type: TypeSource


@dataclass(frozen=True, slots=True)
class MakeOptional:
    path: str


@dataclass(frozen=True, slots=True)
class Describe:
    """Say what a column holds."""

    path: str
    doc: str


SchemaChange: TypeAlias = (
    AddColumn | RenameColumn | DropColumn | WidenColumn | MakeOptional | Describe
)


def evolve_schema(table: Table, changes: Sequence[SchemaChange], *, dry_run: bool = False) -> None:
    """Apply all changes in one commit, or none; a dry run only finds out whether they can be.

    Of a table that a topic feeds, the columns dropped and renamed are remembered with it.
    """
    if not changes:
        raise InvalidRequest("no change was given", hint="name at least one")
    with _reasons():
        transaction = _changed(table, changes)
        if dry_run:
            return
        if _remembered(table, changes) is None:
            _commit(transaction, table)
        else:
            _commit_remembering(table, changes)


def _commit_remembering(table: Table, changes: Sequence[SchemaChange]) -> None:
    """Commit the changes and what is to be remembered of them, with a snapshot that adds nothing.

    A property of Calve's never changes without one, so that no offset commit misses it.
    """
    commit = TableCommit(table)

    def attempt() -> Committed:
        updates = _changed(commit.table, changes)._updates  # noqa: SLF001
        memory = _remembered(commit.table, changes)
        properties = memory.entries() if memory else {}
        return commit.attempt(Edit(columns=updates, properties=properties))

    commit.repeat(attempt)
    table.refresh()


def _remembered(table: Table, changes: Sequence[SchemaChange]) -> ColumnMemory | None:
    """What the table is to remember after the changes; None if that is nothing new."""
    if feeding_topic(table) is None:
        return None
    before = memory = memory_of(table)
    schema = table.schema()
    for change in changes:
        match change:
            case AddColumn():
                memory = memory.with_added(_new_path(change.path, schema))
            case RenameColumn():
                path = _path(change.path, schema)
                memory = memory.with_renamed(path, (*path[:-1], change.new_name))
            case DropColumn():
                memory = memory.with_dropped(_path(change.path, schema))
    return None if memory == before else memory


def _changed(table: Table, changes: Sequence[SchemaChange]) -> Transaction:
    dropped = {change.path for change in changes if isinstance(change, DropColumn)}
    transaction = LeanTransaction(table)
    with transaction.update_schema() as update:
        for change in changes:
            if isinstance(change, DropColumn | RenameColumn):
                _refuse_own(table, change.path)
            _require_possible(change, table, dropped)
            _apply(update, change, table.schema())
    known = [each.name for each in table.schema().fields]
    check_schema(transaction.table_metadata.schema(), kept=known)
    return transaction


def evolve_partitioning(table: Table, *, add: Sequence[str] = (), drop: Sequence[str] = ()) -> None:
    """Partition what is written from now on otherwise; what is there stays as it is.

    Both take expressions as `create_table` does: `day(created_at)`, `bucket(16, id)`, `country`.
    """
    if not add and not drop:
        raise InvalidRequest("no change was given", hint="name what to add or to drop")
    schema, spec = table.schema(), table.spec()
    dropped = [_partition_field(table, expression) for expression in drop]
    kept = [field for field in spec.fields if field.name not in dropped]
    added = [(text, *partition_term(text, schema)) for text in add]
    for expression, transform, column in added:
        refuse_redundant(transform, column, kept, expression)
    try:
        transaction = LeanTransaction(table)
        with transaction.update_spec() as update:
            for name in dropped:
                update.remove_field(name)
            for _, transform, column in added:
                update.add_field(column.name, transform, _name_for(transform, column, table))
        _commit(transaction, table)
    except ValueError as error:
        raise InvalidRequest(
            f"the partitioning cannot be changed so: {_reason(error)}",
            hint="`calve table describe` shows the partitioning",
        ) from error


def _commit(transaction: Transaction, table: Table) -> None:
    """Also done if somebody else has made the very same change at the same time."""
    wanted = transaction.table_metadata

    def has_happened(metadata: TableMetadata) -> bool:
        return metadata.schema() == wanted.schema() and metadata.spec() == wanted.spec()

    if transaction._updates:  # noqa: SLF001
        commit_metadata(
            table,
            transaction._updates,  # noqa: SLF001
            transaction._requirements,  # noqa: SLF001
            has_happened=has_happened,
        )


def _apply(update: UpdateSchema, change: SchemaChange, schema: Schema) -> None:
    match change:
        case AddColumn():
            update.add_column(_new_path(change.path, schema), parse_type(change.type), change.doc)
        case RenameColumn():
            update.rename_column(_path(change.path, schema), change.new_name)
        case DropColumn():
            update.delete_column(_path(change.path, schema))
        case WidenColumn():
            update.update_column(_path(change.path, schema), field_type=_primitive(change))
        case MakeOptional():
            update.make_column_optional(_path(change.path, schema))
        case Describe():
            update.update_column(_path(change.path, schema), doc=change.doc)
        case _:
            raise InvalidRequest(
                f"{change!r} is not a change of a schema",
                hint='write AddColumn("email", "string"), RenameColumn, DropColumn, WidenColumn, '
                "MakeOptional or Describe",
            )


def _path(name: str, schema: Schema) -> tuple[str, ...]:
    """The path of a column that is there, whether its name has dots in it or it is nested."""
    known = [field.name for field in schema.fields]
    if name in known:
        return (name,)
    if name in schema.column_names:
        return tuple(name.split("."))
    raise InvalidRequest(
        f"there is no column {name!r}{meant(name, schema.column_names)}",
        hint="`calve table describe` shows the columns",
        context={"column": name},
    )


def _new_path(name: str, schema: Schema) -> tuple[str, ...]:
    """A column to be: inside another where the part before the last dot names one."""
    parent, dot, last = name.rpartition(".")
    return (*_path(parent, schema), last) if dot else (name,)


def _primitive(change: WidenColumn) -> IcebergType:
    kind = parse_type(change.type)
    if not kind.is_primitive:
        raise InvalidRequest(
            f"column {change.path!r} cannot be made {kind}",
            hint="only simple types can be widened; add or drop fields of a struct by their path",
            context={"column": change.path},
        )
    return kind


def _require_possible(change: SchemaChange, table: Table, dropped: set[str]) -> None:
    """Refuse in plain words what Iceberg would refuse in its own."""
    match change:
        case AddColumn(path) if path not in dropped:
            _require_free(path, None, table)
        case RenameColumn():
            parents = _path(change.path, table.schema())[:-1]
            renamed = ".".join((*parents, change.new_name))
            if renamed not in dropped:
                _require_free(renamed, table.schema().find_field(change.path).field_id, table)
        case WidenColumn():
            _require_wider(change, table.schema())
        case DropColumn():
            _require_unused(change.path, table)


def _require_wider(change: WidenColumn, schema: Schema) -> None:
    wanted = _primitive(change)
    field = schema.find_field(".".join(_path(change.path, schema)))
    try:
        promote(field.field_type, wanted)
    except ResolveError as error:
        raise InvalidRequest(
            f"column {change.path!r} is {field.field_type} and cannot be made {wanted}",
            hint="int can be made long, float double, and a decimal one of more digits; for others "
            "add a column and `update` it",
            context={"column": change.path},
        ) from error


def _require_free(name: str, source_id: int | None, table: Table) -> None:
    """A column may have the name of a partition only if its values are that partition's."""
    known = table.schema().column_names
    if name in known and table.schema().find_field(name).field_id != source_id:
        raise InvalidRequest(
            f"there is a column {name!r} already",
            hint="choose another name; `calve table describe` shows those there are",
            context={"column": name},
        )
    for field in (each for spec in table.specs().values() for each in spec.fields):
        is_its_own = field.source_id == source_id and isinstance(
            field.transform, IdentityTransform | VoidTransform
        )
        if field.name == name and not is_its_own:
            raise InvalidRequest(
                f"a partition of the table has the name {name!r}",
                hint="choose another name; partitions keep theirs, also when their column is "
                "renamed or they are no longer written",
                context={"column": name},
            )


def _refuse_own(table: Table, path: str) -> None:
    if path.startswith(OWN_PREFIX) or is_letter_column(table, path):
        raise InvalidRequest(
            f"column {path!r} is Calve's own",
            hint="offsets, times of ingest and the columns of dead letters stay as they are",
        )


def _require_unused(path: str, table: Table) -> None:
    """What the table is partitioned or sorted by cannot be dropped, nor what that lies in."""
    schema = table.schema()
    used = {field.source_id: "partitioned" for field in table.spec().fields} | {
        field.source_id: "sorted" for field in table.sort_order().fields
    }
    for source_id, how in used.items():
        name = schema.find_column_name(source_id)
        if name == path or (name or "").startswith(f"{path}."):
            raise InvalidRequest(
                f"the table is {how} by {name!r}",
                hint="`calve table alter-partition --drop` first"
                if how == "partitioned"
                else "a column that the table is sorted by cannot be dropped",
                context={"column": path},
            )


def _name_for(transform: Transform[Any, Any], column: NestedField, table: Table) -> str | None:
    """A name for a partition field where PyIceberg would choose one that Avro cannot write."""
    if is_manifest_name(column.name):
        return None
    taken = {field.name for spec in table.specs().values() for field in spec.fields}
    return field_name(transform, column, taken | set(table.schema().column_names))


def _partition_field(table: Table, expression: str) -> str:
    """The name of the partition field that an expression, or that name itself, means."""
    names = [field.name for field in table.spec().fields]
    if expression in names:
        return expression
    transform, column = partition_term(expression, table.schema())
    for field in table.spec().fields:
        if (field.source_id, field.transform) == (column.field_id, transform):
            return field.name
    raise InvalidRequest(
        f"the table is not partitioned by {expression!r}",
        hint=f"it is partitioned by {', '.join(names)}" if names else "it is not partitioned",
    )


@contextmanager
def _reasons() -> Iterator[None]:
    """PyIceberg's reasons for not changing a schema, as Calve's."""
    try:
        yield
    except (ValueError, KeyError, ValidationError) as error:
        raise InvalidRequest(
            f"the schema cannot be changed so: {_reason(error)}",
            hint="`calve table describe` shows the columns",
        ) from error


def _reason(error: Exception) -> str:
    return str(error.args[0]) if error.args else type(error).__name__
