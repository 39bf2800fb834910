"""Writes down which offsets were removed from a table that a topic feeds, in the same commit.

On `main` alone: rows removed on another branch are still in the table. When a branch is published,
or somebody else has removed rows, the record follows: in a snapshot of its own that changes nothing
else, or in that of the offset commit that is about to forget what tells of them. Until then the
snapshots themselves tell.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Final

import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from calve.errors import CalveError, Corruption, InvalidRequest, NotFound
from calve.tables.commit import Committed, TableCommit
from calve.tables.feeding import feeding_topic
from calve.tables.outcome import said
from calve.tables.removal_history import Ancestor, taken_out, unrecorded
from calve.tables.removals import Removals, recorded
from calve.tables.retention import snapshots_kept, surplus_ids
from calve.tables.staging import FORMAT_VERSION_MAX, Edit

_LOG: Final = logging.getLogger(__name__)
# For each, the files are read that it replaced: one commit must not take on too many.
_READ_MAX: Final = 8
# Each makes the next commits slower.
_HELD_MAX: Final = 1_000
_UNRECORDED: Final = "what a snapshot removed cannot be recorded"


def with_record(table: Table, edit: Edit, removals: Removals, *, branch: str) -> Edit:
    """The edit, with the removed offsets in its snapshot's summary and the table's properties."""
    if not removals:
        return edit
    summary = {**edit.summary, **removals.entries()}
    if branch != MAIN_BRANCH:
        return replace(edit, summary=summary)
    before = Removals.parse(table.properties)
    properties = before.merged(removals).changed_from(before)
    return replace(
        edit,
        summary={**summary, **recorded()},
        properties={**edit.properties, **properties},
    )


def record_removals(table: Table, snapshot_ids: Collection[int] | None = None) -> int | None:
    """Record what kept snapshots took out and nobody recorded; all of them, or those named.

    The snapshot of the record, or None where there was nothing to record. Snapshots are left out
    whose parent has expired, or that only Spark can read: nobody may be kept from expiry by them.
    """
    if feeding_topic(table) is None or table.format_version > FORMAT_VERSION_MAX:
        return None
    commit = TableCommit(table, is_told_otherwise=True)

    def attempt() -> Committed | None:
        removals, ids = _unrecorded(commit.table, snapshot_ids)
        if not ids:
            return None
        return commit.attempt(_with_others(commit.table, Edit(), removals, ids))

    done = commit.repeat(attempt)
    return done.snapshot_id if done else None


class Retirement:
    """Forgets the snapshots that are too many, and records before what they took out.

    For one commit, however often it is tried: each snapshot is read once.
    """

    def __init__(self) -> None:
        # None for those that cannot be read at all.
        self._read: dict[int, Removals | None] = {}

    def making_room(self, table: Table, edit: Edit, *, made_by: str = "") -> Edit:
        """The edit, with the oldest snapshots to forget, and the record of what nobody recorded.

        A snapshot that is not read just now stays, with all that came after it. One that never
        can, because only Spark can read it or a file of it is gone or damaged, is let go of. So is
        one that fails for whatever reason until it holds a thousand others: rows are committed all
        the while, and metadata has to end somewhere. An audit then calls its rows missing.
        `made_by` as in `surplus_ids`.
        """
        kept = snapshots_kept(table.metadata) - 1
        surplus = surplus_ids(table.metadata, kept, made_by=made_by)
        removals, ids, held = Removals(), list[int](), set[int | None]()
        for snapshot in _told_by(table, surplus):
            if not self._is_settled(table, snapshot, held_count=_held_count(surplus, snapshot)):
                held |= {snapshot.id, snapshot.parent_id}
            elif (found := self._read[snapshot.id]) is not None:
                removals = removals.merged(found)
                ids.append(snapshot.id)
        edit = replace(edit, forgotten=[*takewhile(lambda each: each not in held, surplus)])
        return _with_others(table, edit, removals, ids) if ids else edit

    def _is_settled(self, table: Table, snapshot: Ancestor, *, held_count: int) -> bool:
        """Whether there is nothing more to learn of a snapshot; else so many stay with it."""
        if snapshot.id in self._read:
            return True
        if len(self._read) == _READ_MAX:
            return False
        try:
            self._read[snapshot.id] = Removals.of_runs(taken_out(table, snapshot))
        except (CalveError, OSError, MemoryError, pa.ArrowException) as error:
            may_pass = not isinstance(error, Corruption | NotFound | InvalidRequest)
            if may_pass and held_count <= _HELD_MAX:
                _LOG.warning("a snapshot is kept until it can be read", extra=_why(snapshot, error))
                return False
            _LOG.warning(_UNRECORDED, extra=_why(snapshot, error))
            self._read[snapshot.id] = None
        return True


def _held_count(surplus: Sequence[int], snapshot: Ancestor) -> int:
    """How many of the snapshots that should go stay if one does, and its parent."""
    return len(surplus) - min(
        at for at, each in enumerate(surplus) if each in {snapshot.id, snapshot.parent_id}
    )


def _told_by(table: Table, snapshot_ids: Collection[int]) -> list[Ancestor]:
    """Those of which nobody recorded what they took out, which these snapshots tell; oldest first.

    What a snapshot took out is seen by comparing it with its parent.
    """
    if not snapshot_ids or feeding_topic(table) is None:
        return []
    return [
        each
        for each in reversed(unrecorded(table))
        if _has_parent(table, each) and not {each.id, each.parent_id}.isdisjoint(snapshot_ids)
    ]


def _with_others(table: Table, edit: Edit, removals: Removals, ids: Collection[int]) -> Edit:
    """The edit, with the record of what other snapshots removed."""
    edit = with_record(table, edit, removals, branch=MAIN_BRANCH)
    return replace(edit, summary={**edit.summary, **recorded(*ids)})


def _unrecorded(table: Table, wanted: Collection[int] | None) -> tuple[Removals, list[int]]:
    removals, ids = Removals(), []
    for snapshot in unrecorded(table):
        if wanted is not None and snapshot.id not in wanted:
            continue
        if not _has_parent(table, snapshot):
            continue
        try:
            removals = removals.merged(Removals.of_runs(taken_out(table, snapshot)))
        except (InvalidRequest, NotFound) as error:
            _LOG.warning(_UNRECORDED, extra=_why(snapshot, error))
            continue
        ids.append(snapshot.id)
    return removals, ids


def _has_parent(table: Table, snapshot: Ancestor) -> bool:
    return snapshot.parent_id is not None and table.snapshot_by_id(snapshot.parent_id) is not None


def _why(snapshot: Ancestor, error: Exception) -> dict[str, object]:
    return {"snapshot": snapshot.id, "reason": said(error)}
