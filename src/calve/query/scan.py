"""Reads one table: columns and rows that a condition chooses, now or at a snapshot.

Who reads is decided before anything is read. Which rows satisfy the condition, DuckDB decides
whoever reads, except for Spark where it provably means the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from calve.condition import Condition, parse_condition
from calve.errors import InvalidRequest
from calve.query.by_spark import require_spark, spark_batches
from calve.query.engine import IDLE, NO_LIMITS, Limits, literal, quoted
from calve.query.row_filter import filtered
from calve.query.rows import Rows, Shown
from calve.query.stream import Budget, bounded, conform_table
from calve.tables.answer_types import result_schema
from calve.tables.condition_columns import condition_columns
from calve.tables.engine_choice import Choice, Engine, choose_engine
from calve.tables.views import TableView, find_columns, view_table

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

BATCH_ROWS: Final = 100_000
_LIMIT_MAX: Final = 2**63 - 1
_WHAT: Final = "the query"


def read_table(  # noqa: PLR0913
    table: Table,
    *,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    snapshot_id: int | None = None,
    limits: Limits = NO_LIMITS,
    spark: Callable[[], SparkSession] | None = None,
) -> Rows:
    """The rows for which `where` is true, in no promised order.

    Without `columns`, all but Calve's own. A snapshot is shown with the columns of its time. Spark
    is started only for tables that nobody else can read.
    """
    view = view_table(table, snapshot_id)
    return read_view(view, where=where, columns=columns, limit=limit, limits=limits, spark=spark)


def read_view(
    view: TableView,
    *,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    limits: Limits = NO_LIMITS,
    spark: Callable[[], SparkSession] | None = None,
) -> Rows:
    """The same of a table at some moment, or of a branch."""
    return plan_scan(view, where=where, columns=columns, limit=limit).rows(limits, spark)


@dataclass(frozen=True, slots=True)
class Scan:
    """What is to be read of a view, and by whom."""

    view: TableView
    condition: Condition | None
    columns: list[str]
    limit: int | None
    choice: Choice

    def rows(self, limits: Limits, spark: Callable[[], SparkSession] | None) -> Rows:
        if self.choice.engine is Engine.SPARK:
            require_spark(self.choice, spark)
        schema = result_schema(self.view.pick(self.columns).schema)
        shown = Shown(
            self.view.snapshot_id,
            self.view.snapshot_at,
            self.choice.engine.value if self.view.snapshot else None,
        )

        def stream() -> pa.RecordBatchReader:
            return self._stream(schema, Budget(limits, what=_WHAT), limits, spark)

        def count() -> int:
            return self._count(limits, spark)

        def collect() -> pa.Table:
            return self._collected(schema, limits)

        is_whole = self._is_duckdbs() and limits.rows_max is None
        return Rows(
            stream, schema=schema, collect=collect if is_whole else None, count=count, shown=shown
        )

    def _is_duckdbs(self) -> bool:
        return self.view.snapshot is not None and self.choice.engine is Engine.DUCKDB

    def duckdb_sql(self, selected: str) -> str:
        """The scan in DuckDB's words."""
        where = f" WHERE {self.condition.duckdb_filter()}" if self.condition else ""
        limit = "" if self.limit is None else f" LIMIT {self.limit}"
        source = iceberg_source(self.view)
        return f"SELECT {selected} FROM {source}{where}{limit}"  # noqa: S608

    def _stream(
        self,
        schema: pa.Schema,
        budget: Budget,
        limits: Limits,
        spark: Callable[[], SparkSession] | None,
    ) -> pa.RecordBatchReader:
        if self.view.snapshot is None:
            return pa.RecordBatchReader.from_batches(schema, iter(()))
        if self._is_duckdbs():
            return self._by_duckdb(schema, budget, limits)
        batches = _limited(self._chosen(limits, spark), self.limit)
        return bounded(batches, schema, budget)

    def _collected(self, schema: pa.Schema, limits: Limits) -> pa.Table:
        """All rows at once.

        As a relation, DuckDB makes Arrow of them on all cores, but plans twice: once to tell the
        columns.
        """
        assert self.choice.access is not None
        used = IDLE.take([self.choice.access], paths=self.choice.elsewhere, limits=limits)
        ask = used.connection.sql if self.choice.is_planned_fast else used.connection.execute
        with Budget(limits, what=_WHAT).working(used.connection):
            found = ask(self.duckdb_sql(", ".join(map(quoted, self.columns)))).to_arrow_table()
        used.release()
        return conform_table(found, schema)

    def _by_duckdb(self, schema: pa.Schema, budget: Budget, limits: Limits) -> pa.RecordBatchReader:
        assert self.choice.access is not None
        used = IDLE.take([self.choice.access], paths=self.choice.elsewhere, limits=limits)
        query = self.duckdb_sql(", ".join(map(quoted, self.columns)))
        with budget.working(used.connection):
            reader = used.connection.execute(query).to_arrow_reader(BATCH_ROWS)
        return bounded(reader, schema, budget, used)

    def _count(self, limits: Limits, spark: Callable[[], SparkSession] | None) -> int:
        if self.view.snapshot is None:
            return 0
        if self.choice.engine is Engine.DUCKDB:
            assert self.choice.access is not None
            budget = Budget(limits, what=_WHAT)
            used = IDLE.take([self.choice.access], paths=self.choice.elsewhere, limits=limits)
            query = f"SELECT count(*) FROM ({self.duckdb_sql('1')})"  # noqa: S608
            with budget.working(used.connection):
                found = used.connection.execute(query).fetchone()
            used.release()
            assert found is not None
            return int(found[0])
        # Rows are counted by whichever column; the others need not be read.
        least = replace(self, columns=self.columns[:1])
        return sum(map(len, _limited(least._chosen(limits, spark), self.limit)))  # noqa: SLF001

    def _chosen(
        self, limits: Limits, spark: Callable[[], SparkSession] | None
    ) -> Iterator[pa.RecordBatch]:
        """The wanted columns of the rows that satisfy the condition, read by another engine."""
        needed = self.condition.columns if self.condition else ()
        read = self.view.pick([*self.columns, *(n for n in needed if n not in self.columns)])
        if self.choice.engine is Engine.SPARK:
            batches = spark_batches(
                read, self.choice, spark, condition=self.condition, limit=self.limit
            )
        else:
            # Loading it waits until a table needs it.
            from calve.tables.arrow_scan import arrow_batches

            batches = arrow_batches(read, self.condition)
        if self.condition:
            batches = filtered(batches, self.condition, limits)
        count = len(self.columns)
        for batch in batches:
            yield batch.select(range(count))


def plan_scan(
    view: TableView,
    *,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> Scan:
    """Check what is asked, and decide who reads."""
    if limit is not None:
        limit = _checked_limit(limit)
    if isinstance(columns, str):
        raise InvalidRequest("columns is one text", hint=f"write columns=[{columns!r}]")
    condition = None if where is None else parse_condition(where, condition_columns(view.schema))
    names = view.shown_columns if columns is None else find_columns(view, list(columns))
    return Scan(view, condition, names, limit, choose_engine(view))


def _checked_limit(limit: object) -> int:
    if not isinstance(limit, int) or limit < 0:
        raise InvalidRequest(f"limit is {limit!r}", hint="give a whole number, 0 or more")
    return min(limit, _LIMIT_MAX)


def iceberg_source(view: TableView) -> str:
    """`iceberg_scan` of exactly this view."""
    at = "" if view.travelled_to is None else f", snapshot_from_id={view.travelled_to}"
    return f"iceberg_scan({literal(view.table.metadata_location)}{at})"


def _limited(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    left = limit
    for batch in batches:
        if left is None:
            yield batch
            continue
        yield batch.slice(0, left)
        left -= len(batch)
        if left <= 0:
            return
