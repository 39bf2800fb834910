"""Branches and tags: names for snapshots. A branch can be written to, audited, and published."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import RemoveSnapshotRefUpdate, SetSnapshotRefUpdate

from calve.errors import Conflict, InvalidRequest, NotFound
from calve.grid import Grid, ShownAsGrids
from calve.tables.columns import is_writable
from calve.tables.nearest import meant
from calve.tables.outcome import commit_metadata, leads_to
from calve.tables.snapshots import ancestor_ids, move_main, snapshot_by_id


@dataclass(frozen=True, slots=True)
class Reference:
    name: str
    kind: str
    snapshot_id: int
    kept_for: timedelta | None


class References(ShownAsGrids, list[Reference]):
    """Branches or tags, by name."""

    def grids(self) -> list[Grid]:
        return [Grid(("NAME", "SNAPSHOT"), [(each.name, each.snapshot_id) for each in self])]


def is_main(branch: str | None) -> bool:
    """Whether main is meant, which is what no name means too."""
    return branch in {None, MAIN_BRANCH}


def list_branches(table: Table) -> References:
    return list_references(table, SnapshotRefType.BRANCH)


def list_tags(table: Table) -> References:
    return list_references(table, SnapshotRefType.TAG)


def list_references(table: Table, kind: SnapshotRefType) -> References:
    return References(
        Reference(
            name,
            ref.snapshot_ref_type.value,
            ref.snapshot_id,
            timedelta(milliseconds=ref.max_ref_age_ms) if ref.max_ref_age_ms else None,
        )
        for name, ref in sorted(table.refs().items())
        if ref.snapshot_ref_type is kind
    )


def head(table: Table, *, branch: str | None = None, tag: str | None = None) -> int | None:
    """The snapshot that a branch or a tag leads to; the current one, if any, without either."""
    if branch is not None and tag is not None:
        raise InvalidRequest("a branch and a tag were named", hint="name one of them")
    if branch is not None and branch != MAIN_BRANCH:
        return require_reference(table, branch, SnapshotRefType.BRANCH).snapshot_id
    if tag is not None:
        return require_reference(table, tag, SnapshotRefType.TAG).snapshot_id
    return table.metadata.current_snapshot_id


def create_branch(table: Table, name: str, snapshot_id: int | None = None) -> Reference:
    return _create(table, name, snapshot_id, SnapshotRefType.BRANCH)


def create_tag(table: Table, name: str, snapshot_id: int | None = None) -> Reference:
    return _create(table, name, snapshot_id, SnapshotRefType.TAG)


def delete_branch(table: Table, name: str, *, dry_run: bool = False) -> Reference:
    return delete_reference(table, name, SnapshotRefType.BRANCH, dry_run=dry_run)


def delete_tag(table: Table, name: str, *, dry_run: bool = False) -> Reference:
    return delete_reference(table, name, SnapshotRefType.TAG, dry_run=dry_run)


def delete_reference(
    table: Table, name: str, kind: SnapshotRefType, *, dry_run: bool = False
) -> Reference:
    """Forget the name. The snapshots it led to stay until they expire."""
    if name == MAIN_BRANCH:
        raise InvalidRequest("the branch main is the table itself", hint="drop the table instead")
    found = require_reference(table, name, kind)
    if not dry_run:
        removal = RemoveSnapshotRefUpdate.model_validate({"ref-name": name})
        commit_metadata(
            table,
            [removal],
            [leads_to(name, found.snapshot_id)],
            has_happened=lambda metadata: name not in metadata.refs,
        )
    return found


def publish_branch(table: Table, name: str) -> int:
    """Make main what the branch is, if nothing else happened on main since the branch began."""
    branch = require_reference(table, name, SnapshotRefType.BRANCH)
    main = table.metadata.current_snapshot_id
    if main is not None and main not in ancestor_ids(table, name):
        raise Conflict(
            f"main has moved on to {main} since the branch {name!r} began",
            hint="make a new branch from main, apply the changes again, and publish that",
        )
    if main != branch.snapshot_id:
        move_main(table, branch.snapshot_id)
    return branch.snapshot_id


def require_reference(table: Table, name: str, kind: SnapshotRefType) -> Reference:
    found = next((ref for ref in list_references(table, kind) if ref.name == name), None)
    if found is None:
        raise NotFound(
            f"there is no {kind.value} {name!r}"
            + meant(name, [ref.name for ref in list_references(table, kind)]),
            hint=f"`calve {kind.value} list` shows those there are",
        )
    return found


def _create(table: Table, name: str, snapshot_id: int | None, kind: SnapshotRefType) -> Reference:
    start = _start(table, name, snapshot_id)
    update = SetSnapshotRefUpdate.model_validate(
        {"ref-name": name, "type": kind, "snapshot-id": start}
    )

    def has_happened(metadata: TableMetadata) -> bool:
        ref = metadata.refs.get(name)
        return ref is not None and (ref.snapshot_ref_type, ref.snapshot_id) == (kind, start)

    commit_metadata(table, [update], [leads_to(name, None)], has_happened=has_happened)
    return require_reference(table, name, kind)


def _start(table: Table, name: str, snapshot_id: int | None) -> int:
    if not name or name != name.strip() or not is_writable(name):
        raise InvalidRequest(
            f"{name!r} is not a name for a branch or a tag",
            hint="name it by some letters, without spaces at the ends and without line breaks",
        )
    if name in table.refs():
        raise Conflict(f"{name!r} exists already", hint="choose another name, or delete it first")
    start = snapshot_id if snapshot_id is not None else table.metadata.current_snapshot_id
    if start is None:
        raise InvalidRequest("the table has no snapshot yet", hint="insert something first")
    return snapshot_by_id(table, start).id
