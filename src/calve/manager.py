"""IcebergManager: every operation on the tables of a lake.

Each change is one commit: it happens as a whole or not at all, and readers see the state before or
after it. Whoever only manages tables needs nothing else of Calve.

What reads and changes rows is imported when it is first used: not everybody waits for DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeVar

from calve.audit import audited
from calve.audit.actions import TABLES
from calve.connections import Connections, LakeSource, settings_of
from calve.errors import InvalidRequest
from calve.maintenance.deleted_topics import tells_of_deleted
from calve.maintenance.rollback import Rollback
from calve.model import TableName
from calve.tables import evolution, expiry, letters_gone, orphans, references, snapshots
from calve.tables.describe import TableDescription, describe_table
from calve.tables.evolution import SchemaChange, TypeSource
from calve.tables.expiry import Expiry
from calve.tables.orphans import RemovedFiles
from calve.tables.references import Reference, References
from calve.tables.schemas import SchemaSource, TableDefinition, define_table
from calve.tables.snapshots import ScanPlan, Snapshot, Snapshots
from calve.tables.views import TableView, view_reference, view_table

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from calve.changes import Change
    from calve.changes.row_changes import RowChanges
    from calve.maintenance.verification import Verification
    from calve.query.rows import Rows
    from calve.tables.rollback_plan import RollbackPlan

Engine: TypeAlias = Literal["python", "spark"]
Moment: TypeAlias = datetime | date | str

_T = TypeVar("_T")


@audited(TABLES)
@tells_of_deleted("rename_table", "drop_table", "insert_data", "upsert_data")
class IcebergManager:
    """The tables of one lake: made, filled, changed, asked, evolved and looked after.

    A context manager; safe to share between threads and processes. Names are `users`, or
    `tenant.dataset.name`.
    """

    def __init__(
        self, lake: LakeSource | Connections = None, *, spark: SparkSession | None = None
    ) -> None:
        """Open the lake in a directory, or the one that the settings describe; make it if new.

        A lake opened by path keeps the table `users` at `<path>/users`.
        """
        self._owns_lake = not isinstance(lake, Connections)
        self._lake = (
            lake if isinstance(lake, Connections) else Connections(settings_of(lake), spark=spark)
        )
        self._trail = self._lake.trail

    def create_table(  # noqa: PLR0913
        self,
        name: str,
        schema: SchemaSource | TableDefinition | None = None,
        *,
        from_data: object = None,
        delimiter: str | None = None,
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> TableDescription:
        """Make an empty table.

        The schema is PyIceberg's, Arrow's, `{"id": "long", …}` or the path of a JSON file; or it is
        inferred `from_data`, which is anything that `insert_data` takes and is not inserted;
        `delimiter` separates the cells of its CSV.
        """
        if (schema is None) == (from_data is None):
            raise InvalidRequest(
                "a table needs a schema, or data to infer one from; not both",
                hint='pass schema={"id": "long"}, or from_data="users.csv"',
            )
        from calve.tables.inputs import infer_schema

        definition = define_table(
            infer_schema(from_data, delimiter=delimiter) if schema is None else schema,
            partition_by=partition_by,
            sort_by=sort_by,
            properties=properties,
        )
        parsed = TableName.parse_new(name)
        made = self._lake.catalog.create_table(
            parsed,
            definition.schema,
            partition_spec=definition.partition_spec,
            sort_order=definition.sort_order,
            properties=dict(definition.properties),
        )
        return describe_table(parsed, made)

    def list_tables(self) -> list[str]:
        return [str(name) for name in self._lake.catalog.list_tables()]

    def describe_table(self, table: str) -> TableDescription:
        parsed = TableName.parse(table)
        return describe_table(parsed, self._lake.catalog.load_table(parsed))

    def rename_table(self, table: str, new_name: str, *, force: bool = False) -> TableDescription:
        """Give the table another name. Its files stay where they are.

        A table that a topic feeds only with `force`: the topic does not find it any more.
        """
        parsed = TableName.parse_new(new_name)
        letters_gone.allow_rename(self._lake.catalog, table, force=force)
        return describe_table(parsed, self._lake.catalog.rename_table(table, parsed))

    def drop_table(
        self, table: str, *, purge: bool = False, dry_run: bool = False, force: bool = False
    ) -> RemovedFiles:
        """Take the table out of the catalog; with `purge`, delete its files too.

        A table that a topic feeds only with `force`: the topic stops with an error. If it is that
        of dead letters, the topic goes on; so with one that somebody else has dropped.
        """
        return letters_gone.drop_table(
            self._lake.catalog, table, purge=purge, dry_run=dry_run, force=force
        )

    def insert_data(  # noqa: PLR0913
        self,
        table: str,
        data: object,
        *,
        format: str | None = None,  # noqa: A002
        delimiter: str | None = None,
        branch: str | None = None,
        progress: Callable[[int], None] | None = None,
        progress_bytes: Callable[[int], None] | None = None,
        force: bool = False,
    ) -> Change:
        """Add rows: pandas, Polars, Arrow, dicts, or the path of a CSV, JSON or Parquet file.

        Columns are matched by name. The cells of CSV are separated by commas, or by `delimiter`.
        Files are streamed, so they may be bigger than memory; `progress` is told how many rows have
        been written, `progress_bytes` how many bytes of a file have been read. Into a table that a
        topic feeds only with `force`: the rows have no offset, so that subscriptions do not see
        them.
        """
        from calve.changes import insert_rows

        return insert_rows(
            self._lake.catalog, table, data,
            format=format, delimiter=delimiter, branch=branch, force=force,
            progress=progress, progress_bytes=progress_bytes,
        )  # fmt: skip

    def update_data(
        self,
        table: str,
        updates: Mapping[str, object],
        where: str | None = None,
        *,
        branch: str | None = None,
        engine: Engine = "python",
        flush: bool = True,
    ) -> Change:
        """Set columns to values, or to an `Expression`, in the rows for which `where` is true.

        Rows that have the values already are left alone and not counted. Of a table that a topic
        feeds, rows that are still in the log come to it first; without `flush` they are left out.
        """
        return self._changes.update(
            table, updates, where, branch=branch, engine=engine, flush=flush
        )

    def delete_data(
        self,
        table: str,
        condition: str,
        *,
        branch: str | None = None,
        engine: Engine = "python",
        flush: bool = True,
    ) -> Change:
        """Delete the rows that `query_table` shows for the same condition.

        Of a table that a topic feeds also those that are still in the log, and come to it first;
        without `flush` they are left out.
        """
        return self._changes.delete(table, condition, branch=branch, engine=engine, flush=flush)

    def upsert_data(  # noqa: PLR0913
        self,
        table: str,
        data: object,
        keys: Sequence[str],
        *,
        format: str | None = None,  # noqa: A002
        delimiter: str | None = None,
        branch: str | None = None,
        engine: Engine = "python",
        force: bool = False,
    ) -> Change:
        """Change the rows that have the keys of these, and add the others.

        A column that the data lacks, or that a dict does not name, keeps its value in a row that is
        there and is null in a new one. In a table that a topic feeds only with `force`: new rows
        have no offset.
        """
        return self._changes.upsert(
            table, data, keys,
            format=format, delimiter=delimiter, branch=branch, engine=engine, force=force,
        )  # fmt: skip

    def query_table(
        self,
        table: str,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        *,
        branch: str | None = None,
        tag: str | None = None,
    ) -> Rows:
        """The rows for which a condition is true, as the table, a branch or a tag is now."""
        loaded = self._lake.catalog.load_table(table)
        view = view_reference(loaded, branch=branch, tag=tag)
        return self._read(view, where, columns, limit)

    def query_snapshot(
        self,
        table: str,
        snapshot_id: int,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Rows:
        """The table as it was in a snapshot, with the columns of its time."""
        loaded = self._lake.catalog.load_table(table)
        view = view_table(loaded, snapshots.snapshot_by_id(loaded, snapshot_id).id)
        return self._read(view, where, columns, limit)

    def query_as_of(
        self,
        table: str,
        timestamp: Moment,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Rows:
        """The table as it was at a time; one without a zone is UTC."""
        loaded = self._lake.catalog.load_table(table)
        found = snapshots.snapshot_as_of(loaded, snapshots.moment_of(timestamp))
        return self._read(view_table(loaded, found.id), where, columns, limit)

    def sql(self, text: str) -> Rows:
        """Ask in SQL, over all tables of the lake: `FROM users AT (VERSION => 12345)` and so on."""
        from calve.query.sql import run_sql

        return run_sql(self._lake.catalog, text, spark=self._lake.spark)

    def list_snapshots(self, table: str) -> Snapshots:
        """Every snapshot that is kept, oldest first."""
        return snapshots.list_snapshots(self._lake.catalog.load_table(table))

    def get_current_snapshot(self, table: str) -> Snapshot | None:
        return snapshots.current_snapshot(self._lake.catalog.load_table(table))

    def rollback(
        self,
        table: str,
        snapshot_id: int,
        *,
        force: bool = False,
        replay: bool = False,
        log: str | PathLike[str] | None = None,
    ) -> Snapshot:
        """Make an earlier snapshot the current one again; nothing is deleted.

        Only an ancestor of the current one is taken, unless forced. The rows that a table loses
        which a topic feeds are recorded as removed, in a snapshot on top of the old one; with
        `replay` they come again from the topic's log, the lake's own or that in a directory.
        """
        return self._rollback(table, snapshot_id, force=force, replay=replay, log=log).apply()

    def plan_rollback(
        self,
        table: str,
        snapshot_id: int,
        *,
        force: bool = False,
        replay: bool = False,
        log: str | PathLike[str] | None = None,
    ) -> RollbackPlan:
        """What `rollback` would do, with the same errors; nothing is changed."""
        return self._rollback(table, snapshot_id, force=force, replay=replay, log=log).plan()

    def expire_snapshots(
        self, table: str, older_than_days: float, *, dry_run: bool = False, force: bool = False
    ) -> Expiry:
        """Forget old snapshots and delete the files that only they needed.

        Not what a branch or a tag leads to, nor without `force` what live followers will read.
        """
        from calve.subscriptions.holds import held_by_followers

        before = datetime.now(UTC) - expiry.age_of(older_than_days)
        if not dry_run:
            # Of what an expired snapshot took out, nobody could tell any more.
            self._record_removals(table)
        held = expiry.nothing_held if force else held_by_followers(self._lake.settings, table)
        return orphans.expire_snapshots_of(
            self._lake.catalog, table, before, holding=held, dry_run=dry_run
        )

    def plan_scan(self, table: str, from_snapshot_id: int, to_snapshot_id: int) -> ScanPlan:
        """The data files that came and went between two snapshots."""
        return snapshots.plan_scan(
            self._lake.catalog.load_table(table), from_snapshot_id, to_snapshot_id
        )

    def remove_orphans(
        self, table: str, *, older_than_days: float = 3, dry_run: bool = False
    ) -> RemovedFiles:
        """Delete the files in the table's directory that nothing refers to.

        What somebody is still writing belongs to nothing yet: the age must be longer than that.
        """
        age = expiry.age_of(older_than_days)
        return orphans.remove_orphans_of(self._lake.catalog, table, age, dry_run=dry_run)

    def verify_topic(
        self, topic: str, *, log: str | PathLike[str] | None = None, orphans: bool = False
    ) -> Verification:
        """Prove that each offset of a topic is in its table once.

        The lake's own log is looked at too, if it has or must have it, or the one in a directory.
        """
        from calve.maintenance.verify import verify_topic

        return verify_topic(
            self._lake.catalog,
            topic,
            log=Path(log) if log is not None else None,
            own_log=self._lake.settings.wal.path,
            with_orphans=orphans,
            settings=self._lake.settings,
        )

    def evolve_schema(self, table: str, *changes: SchemaChange) -> TableDescription:
        """Apply several changes in one commit, or none of them."""
        return self._evolve(table, lambda loaded: evolution.evolve_schema(loaded, changes))

    def add_column(
        self,
        table: str,
        name: str,
        type: TypeSource,  # noqa: A002
        *,
        doc: str | None = None,
    ) -> TableDescription:
        """Add a column, which is null in the rows there are; `address.city` goes inside another."""
        return self.evolve_schema(table, evolution.AddColumn(name, type, doc))

    def rename_column(self, table: str, name: str, new_name: str) -> TableDescription:
        return self.evolve_schema(table, evolution.RenameColumn(name, new_name))

    def drop_column(self, table: str, name: str, *, dry_run: bool = False) -> TableDescription:
        """Take a column away. Old snapshots still show it."""
        change = evolution.DropColumn(name)
        return self._evolve(
            table, lambda loaded: evolution.evolve_schema(loaded, [change], dry_run=dry_run)
        )

    def alter_column(
        self,
        table: str,
        name: str,
        *,
        type: TypeSource | None = None,  # noqa: A002
        optional: bool = False,
        doc: str | None = None,
    ) -> TableDescription:
        """Make a column's type wider, let it be null, or say what it holds."""
        changes: list[SchemaChange] = []
        if type is not None:
            changes.append(evolution.WidenColumn(name, type))
        if optional:
            changes.append(evolution.MakeOptional(name))
        if doc is not None:
            changes.append(evolution.Describe(name, doc))
        return self.evolve_schema(table, *changes)

    def alter_partition(
        self, table: str, *, add: Sequence[str] = (), drop: Sequence[str] = ()
    ) -> TableDescription:
        """Partition what is written from now on otherwise; the files there are stay as they are."""
        return self._evolve(
            table, lambda loaded: evolution.evolve_partitioning(loaded, add=add, drop=drop)
        )

    def create_branch(self, table: str, name: str, *, snapshot_id: int | None = None) -> Reference:
        """Name a line of snapshots that can be written to without anybody seeing it."""
        return self._change(
            table, lambda loaded: references.create_branch(loaded, name, snapshot_id)
        )

    def create_tag(self, table: str, name: str, *, snapshot_id: int | None = None) -> Reference:
        """Name a snapshot, which is then kept."""
        return self._change(table, lambda loaded: references.create_tag(loaded, name, snapshot_id))

    def list_branches(self, table: str) -> References:
        return references.list_branches(self._lake.catalog.load_table(table))

    def list_tags(self, table: str) -> References:
        return references.list_tags(self._lake.catalog.load_table(table))

    def delete_branch(self, table: str, name: str, *, dry_run: bool = False) -> Reference:
        """Forget the name. The snapshots it led to stay until they expire."""
        return self._change(
            table, lambda loaded: references.delete_branch(loaded, name, dry_run=dry_run)
        )

    def delete_tag(self, table: str, name: str, *, dry_run: bool = False) -> Reference:
        """Forget the name. The snapshot stays until it expires."""
        return self._change(
            table, lambda loaded: references.delete_tag(loaded, name, dry_run=dry_run)
        )

    def publish_branch(self, table: str, name: str) -> Snapshot:
        """Make main what the branch is, if main has not moved since the branch began."""

        def publish(loaded: Table) -> Snapshot:
            return snapshots.snapshot_by_id(loaded, references.publish_branch(loaded, name))

        published = self._change(table, publish)
        self._record_removals(table)
        return published

    def close(self, error: BaseException | None = None) -> None:
        """Let go of the lake, if it was opened here."""
        if self._owns_lake:
            self._lake.close(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.close(error)

    def __repr__(self) -> str:
        return f"IcebergManager({str(self._lake.settings.data)!r})"

    @property
    def _changes(self) -> RowChanges:
        from calve.changes.row_changes import RowChanges

        return RowChanges(self._lake.catalog, self._lake.settings, self._lake.spark)

    def _read(
        self, view: TableView, where: str | None, columns: Sequence[str] | None, limit: int | None
    ) -> Rows:
        from calve.query.scan import read_view

        return read_view(view, where=where, columns=columns, limit=limit, spark=self._lake.spark)

    def _rollback(self, table: str, snapshot_id: int, **how: Any) -> Rollback:
        return Rollback(self._lake.catalog, self._lake.settings, table, snapshot_id, **how)

    def _record_removals(self, table: str) -> None:
        from calve.tables.recording import record_removals

        record_removals(self._lake.catalog.load_table(table))

    def _change(self, table: str, work: Callable[[Table], _T]) -> _T:
        return self._lake.catalog.change_table(table, work)

    def _evolve(self, table: str, work: Callable[[Table], Any]) -> TableDescription:
        parsed = TableName.parse(table)

        def evolve(loaded: Table) -> TableDescription:
            work(loaded)
            return describe_table(parsed, loaded)

        return self._lake.catalog.change_table(parsed, evolve)
