"""Which files of a table may hold rows for which a condition is true.

PyIceberg's own plan, without the remainders it works out for each file: nobody here needs them, as
DuckDB decides every row, and it fails on them where a partition is null.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.expressions.visitors import residual_evaluator_of
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, ManifestGroupPlanner, Table

from calve.condition import Condition
from calve.tables.pruning import to_iceberg


class _Planner(ManifestGroupPlanner):
    def _build_residual_evaluator(self, spec_id: int) -> Callable[[DataFile], Any]:
        spec = self.table_metadata.specs()[spec_id]
        schema = self.table_metadata.schema()
        return lambda _: residual_evaluator_of(
            spec=spec, expr=AlwaysTrue(), case_sensitive=True, schema=schema
        )


def files_to_read(
    table: Table, condition: Condition, *, snapshot_id: int | None = None
) -> list[FileScanTask]:
    """The files, each with its delete files, outside of which no row satisfies the condition."""
    scan = table.scan(snapshot_id=snapshot_id)
    snapshot = scan.snapshot()
    if snapshot is None:
        return []
    schema = scan.projection()
    # The planner looks names up in the metadata's schema, which must be the snapshot's own.
    metadata = table.metadata.model_copy(update={"current_schema_id": schema.schema_id})
    planner = _Planner(
        table_metadata=metadata,
        io=table.io,
        row_filter=to_iceberg(condition, schema),
        case_sensitive=True,
        options=scan.options,
    )
    return list(planner.plan_files(snapshot.manifests(table.io)))
