"""One state of a table, with the columns of its time, that stays as it is while others commit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from calve.errors import InvalidRequest
from calve.tables.columns import OWN_PREFIX
from calve.tables.nearest import meant
from calve.tables.references import head
from calve.tables.snapshots import snapshot_by_id


@dataclass(frozen=True, slots=True)
class TableView:
    """A table as of one snapshot. `travelled_to` is set for another state than the current one.

    A branch has the table's own columns, also those that are newer than its newest snapshot.
    """

    table: Table
    schema: Schema
    snapshot: Snapshot | None
    travelled_to: int | None
    branch: str | None = None

    @property
    def has_newer_columns(self) -> bool:
        """Whether the columns are not those of the snapshot's time."""
        at = self.snapshot.schema_id if self.snapshot else None
        return at is not None and at != self.schema.schema_id

    @property
    def snapshot_id(self) -> int | None:
        return self.snapshot.snapshot_id if self.snapshot else None

    @property
    def snapshot_at(self) -> datetime | None:
        if self.snapshot is None:
            return None
        return datetime.fromtimestamp(self.snapshot.timestamp_ms / 1000, UTC)

    @property
    def metadata(self) -> TableMetadata:
        """The table's metadata with the view's schema as the current one."""
        return self.table.metadata.model_copy(update={"current_schema_id": self.schema.schema_id})

    @property
    def columns(self) -> list[str]:
        return [field.name for field in self.schema.fields]

    @property
    def shown_columns(self) -> list[str]:
        """Those that are shown when none is named: all but Calve's own."""
        return [name for name in self.columns if not name.startswith(OWN_PREFIX)]

    def pick(self, names: list[str]) -> TableView:
        """The view with some of its columns, in the order of these names."""
        fields = {field.name: field for field in self.schema.fields}
        schema = Schema(*(fields[name] for name in names), schema_id=self.schema.schema_id)
        return replace(self, schema=schema)


def view_table(table: Table, snapshot_id: int | None = None) -> TableView:
    """The table as it is now, or as it was at a snapshot."""
    kept = Table(table.name(), table.metadata, table.metadata_location, table.io, table.catalog)
    if snapshot_id is None:
        return TableView(kept, kept.schema(), kept.current_snapshot(), None)
    snapshot_by_id(kept, snapshot_id)
    schema = kept.scan(snapshot_id=snapshot_id).projection()
    return TableView(kept, schema, kept.snapshot_by_id(snapshot_id), snapshot_id)


def view_reference(table: Table, *, branch: str | None = None, tag: str | None = None) -> TableView:
    """The table as it is now, or a branch of it, or as it was when it got a tag."""
    snapshot_id = head(table, branch=branch, tag=tag)
    if tag is not None:
        return view_table(table, snapshot_id)
    if branch in {None, MAIN_BRANCH}:
        return view_table(table)
    kept = view_table(table).table
    found = kept.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    return TableView(kept, kept.schema(), found, snapshot_id, branch)


def find_columns(view: TableView, names: list[str]) -> list[str]:
    """The named columns as the table spells them; refuses what is not there, or there twice."""
    found = [_find(view, name) for name in names]
    if len(set(found)) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise InvalidRequest(f"column {twice!r} is named twice", hint="name each column once")
    if not found:
        raise InvalidRequest("no column is named", hint="name at least one, or leave columns out")
    return found


def _find(view: TableView, name: str) -> str:
    if name in view.columns:
        return name
    alike = [column for column in view.columns if column.casefold() == name.casefold()]
    if len(alike) == 1:
        return alike[0]
    raise InvalidRequest(
        f"there is no column {name!r}{meant(name, view.columns)}",
        hint=_listed(view.shown_columns),
    )


def _listed(names: list[str]) -> str:
    some = ", ".join(names[:20])
    return f"the columns are {some}" + (", …" if len(names) > 20 else "")
