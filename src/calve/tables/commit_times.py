"""A table's times never go back, whatever the clock does.

Iceberg's Java library, and with it Spark and REST servers, takes no table whose history goes back
by more than a minute. A clock that was ahead and was set right would keep every commit out until it
has come there again; so a commit comes at least a millisecond after the one before it.
"""

from __future__ import annotations

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier


def timed_after(metadata: TableMetadata, snapshot: Snapshot) -> Snapshot:
    """The snapshot, with a time behind all that the table has."""
    if snapshot.timestamp_ms >= earliest_ms(metadata):
        return snapshot
    return snapshot.model_copy(update={"timestamp_ms": earliest_ms(metadata)})


def earliest_ms(metadata: TableMetadata) -> int:
    """The earliest time that the table's next snapshot may have."""
    return _latest_ms(metadata) + 1


class OrderedTimes(MetastoreCatalog):
    """A catalog that makes metadata itself, also for changes that bring no snapshot."""

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        staged = super()._update_and_stage_table(
            current_table, table_identifier, requirements, updates
        )
        if current_table is not None:
            staged.metadata = _ordered(current_table.metadata, staged.metadata)
        return staged


def _ordered(before: TableMetadata, after: TableMetadata) -> TableMetadata:
    latest_ms = _latest_ms(before)
    is_unchanged = after.last_updated_ms == before.last_updated_ms
    if is_unchanged or after.last_updated_ms >= latest_ms:
        return after
    known = {(each.snapshot_id, each.timestamp_ms) for each in before.snapshot_log}
    log = [
        each
        if (each.snapshot_id, each.timestamp_ms) in known
        else each.model_copy(update={"timestamp_ms": latest_ms + 1})
        for each in after.snapshot_log
    ]
    return after.model_copy(update={"last_updated_ms": latest_ms + 1, "snapshot_log": log})


def _latest_ms(metadata: TableMetadata) -> int:
    """Also of tables in which times went back before this was looked after."""
    return max([metadata.last_updated_ms, *(each.timestamp_ms for each in metadata.snapshot_log)])
