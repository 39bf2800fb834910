"""The same changes done by Spark SQL: for large ones, and for deletes that only Spark can read.

Spark commits by itself; what it tells of a change is less than what Calve counts, so that some
counts are None. The session must have the lake's catalog as its default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from calve.changes.by_hand import refuse_rows, require_unnumbered
from calve.changes.change import Change
from calve.changes.update import Assignments
from calve.changes.upsert import is_replaced, require_keys, require_one_row_for_each_key
from calve.condition import parse_condition
from calve.errors import Conflict, InvalidRequest
from calve.model import TableName
from calve.parts import load_part
from calve.query.row_engine import RowEngine
from calve.tables.catalog import LakeCatalog
from calve.tables.columns import OWN_PREFIX
from calve.tables.commit import TableCommit
from calve.tables.condition_columns import condition_columns
from calve.tables.inputs import PartialRows, read_partial
from calve.tables.recording import record_removals
from calve.tables.snapshots import has_deletes, snapshots_since
from calve.tables.version_hint import refresh_hint

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyspark.sql import SparkSession

_CONFLICTS = ("ValidationException", "CommitFailedException", "Found conflicting files")


def delete_with_spark(
    catalog: LakeCatalog,
    spark: SparkSession,
    name: TableName | str,
    where: str,
    *,
    branch: str | None = None,
) -> Change:
    """Delete the rows for which the condition is true, by Spark SQL's DELETE.

    In a table that a topic feeds, the record of their offsets follows in a snapshot of its own:
    Spark's cannot carry it. Until then, and if it is cut short, Spark's own snapshot tells.
    """
    work = _SparkChange(catalog, spark, name, "delete", branch=branch)
    condition = parse_condition(where, condition_columns(work.schema))
    work.run(f"DELETE FROM {work.target} WHERE {condition.spark_filter()}")  # noqa: S608
    work.record()
    more = work.net_rows()
    return work.described(deleted=None if more is None else -more)


def update_with_spark(
    catalog: LakeCatalog,
    spark: SparkSession,
    name: TableName | str,
    updates: Mapping[str, object],
    where: str | None = None,
    *,
    branch: str | None = None,
) -> Change:
    """Set columns of the rows for which the condition is true, by Spark SQL's UPDATE."""
    work = _SparkChange(catalog, spark, name, "update", branch=branch)
    condition = parse_condition("true" if where is None else where, condition_columns(work.schema))
    assignments = Assignments(updates, work.schema)
    values = {
        f"v{place}": _plain(value, column)
        for place, (column, value) in enumerate(assignments.constants.items())
    }
    settings = [
        *(f"{_quoted(column)} = :v{place}" for place, column in enumerate(assignments.constants)),
        *(
            f"{_quoted(column)} = {scalar.spark_sql()}"
            for column, (scalar, _) in assignments.scalars.items()
        ),
    ]
    sql = f"UPDATE {work.target} SET {', '.join(settings)} WHERE {condition.spark_filter()}"  # noqa: S608
    work.run(sql, values)
    return work.described(updated=None if work.snapshot else 0)


def upsert_with_spark(  # noqa: PLR0913
    catalog: LakeCatalog,
    spark: SparkSession,
    name: TableName | str,
    data: object,
    keys: Sequence[str],
    *,
    format: str | None = None,  # noqa: A002
    delimiter: str | None = None,
    branch: str | None = None,
    force: bool = False,
) -> Change:
    """Update and insert rows by their keys, by Spark SQL's MERGE, under the rules of upserts."""
    work = _SparkChange(catalog, spark, name, "upsert", branch=branch)
    refuse_rows(work.table, force=force)
    require_keys(keys, work.schema)
    source = read_partial(data, schema=work.schema, keys=keys, format=format, delimiter=delimiter)
    _require_whole(source, work.schema)
    require_unnumbered(source.rows)
    with RowEngine() as engine:
        require_one_row_for_each_key(engine, source.rows, keys)
    on = " AND ".join(f"t.{_quoted(key)} = s.{_quoted(key)}" for key in keys)
    with _view(spark, _with_open_marks(source)) as view:
        work.run(
            f"MERGE INTO {work.target} t USING {view} s ON {on} "
            f"{_when_matched(source, keys)}WHEN NOT MATCHED THEN INSERT *"
        )
    return work.described(inserted=work.net_rows(), updated=None if work.snapshot else 0)


class _SparkChange:
    def __init__(
        self,
        catalog: LakeCatalog,
        spark: SparkSession,
        name: TableName | str,
        operation: str,
        *,
        branch: str | None,
    ) -> None:
        self._spark = spark
        self._name = str(name)
        self._operation = operation
        # Refuses what is no branch.
        self._commit = TableCommit(catalog.load_table(name), branch=branch)
        self.table = self._commit.table
        self.schema = self.table.schema()
        parts = list(self._commit.table.name())
        if branch is not None:
            parts.append(f"branch_{branch}")
        self.target = ".".join(map(_quoted, parts))
        self.snapshot: Any = None
        self._had_deletes = False

    def run(self, sql: str, values: Mapping[str, Any] | None = None) -> None:
        before = self._commit.head
        self._had_deletes = before is not None and has_deletes(self._commit.table, before)
        with _spark_errors():
            self._spark.sql(sql, args=dict(values or {}))
            app_id = self._spark.sparkContext.applicationId
        self._commit.reload()
        made = snapshots_since(self._commit.table, self._commit.branch, before)
        self.snapshot = next(
            (each for each in made if each.summary.get("spark.app.id") == app_id), None
        )
        refresh_hint(self._commit.table)

    def record(self) -> None:
        """Have the table know which offsets Spark's snapshot took out."""
        if self.snapshot is not None:
            record_removals(self._commit.table, {self.snapshot.id})

    def net_rows(self) -> int | None:
        """How many rows more there are, by what Spark counted.

        None where there were deletes: of a file that goes, rows deleted before count too.
        """
        if self.snapshot and self._had_deletes:
            return None
        return (
            self._counted("added-records")
            - self._counted("deleted-records")
            - self._counted("added-position-deletes")
        )

    def described(
        self, *, inserted: int | None = 0, updated: int | None = 0, deleted: int | None = 0
    ) -> Change:
        return Change(
            self._name,
            self._operation,
            self._commit.branch,
            self.snapshot.id if self.snapshot else None,
            inserted_rows=inserted,
            updated_rows=updated,
            deleted_rows=deleted,
            added_files=self._counted("added-data-files"),
            deleted_files=self._counted("deleted-data-files"),
        )

    def _counted(self, key: str) -> int:
        return int(self.snapshot.summary.get(key, 0)) if self.snapshot else 0


@contextmanager
def _view(spark: SparkSession, rows: pa.Table) -> Iterator[str]:
    """The rows as a temporary view."""
    name = f"calve_{uuid4().hex}"
    with _spark_errors():
        spark.createDataFrame(_for_spark(rows)).createOrReplaceTempView(name)
    try:
        yield name
    finally:
        spark.catalog.dropTempView(name)


def _for_spark(rows: pa.Table) -> pa.Table:
    """Spark knows a uuid as text."""
    for place, field in enumerate(rows.schema):
        if isinstance(field.type, pa.UuidType):
            texts = [
                None if value is None else str(value) for value in rows.column(place).to_pylist()
            ]
            rows = rows.set_column(place, field.name, pa.array(texts, pa.string()))
    return rows


def _require_whole(source: PartialRows, schema: Schema) -> None:
    for field in schema.fields:
        if field.required and field.name in source.left_open:
            raise InvalidRequest(
                f"the required column {field.name!r} is missing in a row: not with Spark",
                hint="fill it in, or leave out engine='spark'",
                context={"column": field.name},
            )


def _with_open_marks(source: PartialRows) -> pa.Table:
    """The rows, and for each column that some of them leave open another that says which do."""
    rows = source.rows
    for place, mask in enumerate(source.left_open.values()):
        rows = rows.append_column(_mark(place), mask)
    return rows


def _mark(place: int) -> str:
    return f"{OWN_PREFIX}open_{place}"


def _when_matched(source: PartialRows, keys: Sequence[str]) -> str:
    values = {
        field.name: f"s.{_quoted(field.name)}"
        for field in source.rows.schema
        if is_replaced(field.name, keys) and not source.is_left_open(field.name)
    }
    for place, name in enumerate(source.left_open):
        if name in values:
            values[name] = (
                f"CASE WHEN s.{_mark(place)} THEN t.{_quoted(name)} ELSE {values[name]} END"
            )
    if not values:
        return ""
    settings = ", ".join(f"t.{_quoted(name)} = {value}" for name, value in values.items())
    tests = [f"NOT (t.{_quoted(name)} <=> {value})" for name, value in values.items()]
    # Spark does not compare maps.
    if any("map<" in str(source.rows.schema.field(name).type) for name in values):
        tests = ["true"]
    return f"WHEN MATCHED AND ({' OR '.join(tests)}) THEN UPDATE SET {settings} "


def _plain(value: pa.Scalar, column: str) -> object:
    if pa.types.is_nested(value.type):
        raise InvalidRequest(
            f"column {column!r}: a nested value cannot be handed to Spark",
            hint="leave out engine='spark'",
        )
    plain = value.as_py()
    return str(plain) if isinstance(value.type, pa.UuidType) and plain is not None else plain


@contextmanager
def _spark_errors() -> Iterator[None]:
    translate = load_part("spark", "calve.spark.translate")
    try:
        yield
    except translate.SPARK_ERRORS as error:
        line = translate.first_line(error)
        if any(word in str(error) for word in _CONFLICTS):
            raise Conflict(
                f"Spark: {line}", hint="somebody else committed first; do it again"
            ) from error
        raise translate.translate_spark(error) from error


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
