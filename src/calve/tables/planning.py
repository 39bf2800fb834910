"""Which files of a table may hold rows for which a condition is true.

PyIceberg's own plan, without the remainders it works out for each file: nobody here needs them, as
DuckDB decides every row, and it fails on them where a partition is null.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import residual_evaluator_of
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, ManifestGroupPlanner, Table

from calve.condition import Condition, Fact
from calve.errors import Corruption, InvalidRequest
from calve.tables.manifests import entries_of, manifests_of, reading_all
from calve.tables.pruning import fact_to_iceberg, to_iceberg


class _Planner(ManifestGroupPlanner):
    def _build_residual_evaluator(self, spec_id: int) -> Callable[[DataFile], Any]:
        spec = self.table_metadata.specs()[spec_id]
        schema = self.table_metadata.schema()
        return lambda _: residual_evaluator_of(
            spec=spec, expr=AlwaysTrue(), case_sensitive=True, schema=schema
        )

    def _build_metrics_evaluator(self) -> Callable[[DataFile], bool]:
        """Bounds choose data files only.

        A delete file may have bounds of the rows it deletes, and a data file that is read, let
        alone rewritten, without one of its deletes gets back rows that are gone.
        """
        chosen = super()._build_metrics_evaluator()
        return lambda file: file.content != DataFileContent.DATA or chosen(file)


def files_to_read(
    table: Table,
    condition: Condition,
    *,
    snapshot_id: int | None = None,
    schema: Schema | None = None,
) -> list[FileScanTask]:
    """The files, each with its delete files, outside of which no row satisfies the condition.

    By the schema of the snapshot's time, unless another of the table's is given.
    """
    scan = table.scan(snapshot_id=snapshot_id)
    snapshot = scan.snapshot()
    if snapshot is None:
        return []
    schema = schema or scan.projection()
    expression = to_iceberg(condition, schema)
    return _planned(table, manifests_of(snapshot, table.io), expression, schema)


def files_to_change(table: Table, fact: Fact, *, snapshot_id: int | None) -> list[FileScanTask]:
    """The files, each with its delete files, outside of which the fact holds for no row.

    By the table's newest schema, which is the one that a change is written with, on any branch.
    InvalidRequest where there are deletes that would be lost with a rewritten file.
    """
    manifests = _manifests(table, snapshot_id)
    _refuse_equality_deletes(table, manifests)
    schema = table.schema()
    return _planned(table, manifests, fact_to_iceberg(fact, schema), schema)


def all_files(table: Table, snapshot_id: int | None) -> list[FileScanTask]:
    """Every file of a snapshot, each with its delete files; InvalidRequest as in changes."""
    return _all_planned(table, _manifests(table, snapshot_id))


def readable_files(
    table: Table, snapshot_id: int | None
) -> tuple[list[FileScanTask], list[Corruption]]:
    """The same without those of manifests that cannot be read, for whoever looks for damage; and
    what is wrong with these."""
    try:
        return all_files(table, snapshot_id), []
    except Corruption:
        whole, damage = _readable_manifests(table, snapshot_id)
        return _all_planned(table, whole), damage


def _readable_manifests(
    table: Table, snapshot_id: int | None
) -> tuple[list[ManifestFile], list[Corruption]]:
    whole: list[ManifestFile] = []
    damage: list[Corruption] = []
    try:
        for each in _manifests(table, snapshot_id):
            try:
                entries_of(each, table.io)
                whole.append(each)
            except Corruption as error:
                damage.append(error)
    except Corruption as error:
        damage.append(error)
    return whole, damage


def differing_files(
    table: Table, before_id: int | None, after_id: int | None
) -> tuple[list[FileScanTask], list[FileScanTask]]:
    """The same for two snapshots, without most of what both have: that of shared manifests."""
    before, after = (_manifests(table, each) for each in (before_id, after_id))
    if _deletes(before) == _deletes(after):
        shared = {each.manifest_path for each in before} & {each.manifest_path for each in after}
        shared -= _deletes(before)
        before, after = (
            [each for each in manifests if each.manifest_path not in shared]
            for manifests in (before, after)
        )
    return _all_planned(table, before), _all_planned(table, after)


def _manifests(table: Table, snapshot_id: int | None) -> list[ManifestFile]:
    snapshot = table.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    if snapshot is None:
        return []
    return manifests_of(snapshot, table.io)


def _deletes(manifests: list[ManifestFile]) -> set[str]:
    return {each.manifest_path for each in manifests if each.content == ManifestContent.DELETES}


def _all_planned(table: Table, manifests: list[ManifestFile]) -> list[FileScanTask]:
    _refuse_equality_deletes(table, manifests)
    return _planned(table, manifests, AlwaysTrue(), table.schema())


def _planned(
    table: Table, manifests: list[ManifestFile], expression: BooleanExpression, schema: Schema
) -> list[FileScanTask]:
    # The planner looks names up in the metadata's schema.
    metadata = table.metadata.model_copy(update={"current_schema_id": schema.schema_id})
    planner = _Planner(
        table_metadata=metadata,
        io=table.io,
        row_filter=expression,
        case_sensitive=True,
    )
    with reading_all(manifests, table.io):
        return list(planner.plan_files(manifests))


def _refuse_equality_deletes(table: Table, manifests: list[ManifestFile]) -> None:
    for manifest in manifests:
        if manifest.content != ManifestContent.DELETES:
            continue
        for entry in entries_of(manifest, table.io):
            if entry.data_file.content == DataFileContent.EQUALITY_DELETES:
                raise InvalidRequest(
                    "the table has equality deletes, which only Spark can read",
                    hint='use engine="spark", or compact the table first',
                )
