"""Writes down which offsets were removed from a table that a topic feeds, in the same commit.

On `main` alone: rows removed on another branch are still in the table. When a branch is published,
or somebody else has removed rows, the record follows in a snapshot of its own that changes nothing
else; until then the snapshots themselves tell, as long as they are kept.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from calve.errors import InvalidRequest, NotFound
from calve.tables.commit import Committed, TableCommit
from calve.tables.feeding import feeding_topic
from calve.tables.removal_history import taken_out, unrecorded
from calve.tables.removals import Removals, recorded
from calve.tables.staging import FORMAT_VERSION_MAX, Edit

_LOG: Final = logging.getLogger(__name__)


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
    commit = TableCommit(table)

    def attempt() -> Committed | None:
        removals, ids = _unrecorded(commit.table, snapshot_ids)
        if not ids:
            return None
        edit = with_record(commit.table, Edit(), removals, branch=MAIN_BRANCH)
        return commit.attempt(replace(edit, summary={**edit.summary, **recorded(*ids)}))

    done = commit.repeat(attempt)
    return done.snapshot_id if done else None


def _unrecorded(table: Table, wanted: Collection[int] | None) -> tuple[Removals, list[int]]:
    removals, ids = Removals(), []
    for snapshot in unrecorded(table):
        if wanted is not None and snapshot.id not in wanted:
            continue
        if snapshot.parent_id is None or table.snapshot_by_id(snapshot.parent_id) is None:
            continue
        try:
            removals = removals.merged(Removals.of_runs(taken_out(table, snapshot)))
        except (InvalidRequest, NotFound) as error:
            _LOG.warning(
                "what a snapshot removed cannot be recorded",
                extra={"snapshot": snapshot.id, "reason": error.message},
            )
            continue
        ids.append(snapshot.id)
    return removals, ids
