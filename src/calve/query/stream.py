"""A stream of batches with one schema, within a query's bounds of time and rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from calve.errors import CalveError, InvalidRequest
from calve.query.engine import Confined, Limits
from calve.query.translate import interruptible, translating_duckdb


class Stop:
    """Ends a query from any thread, also one that does not work just now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._working: list[duckdb.DuckDBPyConnection] = []
        self.reason: CalveError | None = None

    def end(self, reason: CalveError) -> None:
        """Have it raise this; the first reason counts."""
        with self._lock:
            self.reason = self.reason or reason
            for connection in self._working:
                connection.interrupt()

    def require_going(self) -> None:
        if self.reason is not None:
            raise self.reason

    @contextmanager
    def over(self, connection: duckdb.DuckDBPyConnection | None) -> Iterator[None]:
        """Work that can be ended."""
        held = [] if connection is None else [connection]
        with self._lock:
            self._working += held
        try:
            self.require_going()
            yield
        except BaseException as error:
            if self.reason is not None and isinstance(error, Exception):
                raise self.reason from None
            raise
        finally:
            with self._lock:
                for each in held:
                    self._working.remove(each)


class Budget:
    """The time and rows that a query has left. Only time spent on its work counts."""

    def __init__(
        self, limits: Limits, *, what: str = "the query", stop: Stop | None = None
    ) -> None:
        self._limits = limits
        self._what = what
        self._stop = stop or Stop()
        self._used_s = 0.0
        self._rows = 0

    @contextmanager
    def working(self, connection: duckdb.DuckDBPyConnection | None = None) -> Iterator[None]:
        """Work that is stopped when the time is over; without a connection, refused after it."""
        limit = self._limits.time_ms_max
        if limit is None:
            with self._working(connection):
                yield
            return
        left = limit / 1000 - self._used_s
        alarm = threading.Timer(max(left, 0.001), connection.interrupt if connection else _nothing)
        alarm.daemon = True
        started = time.monotonic()
        alarm.start()
        try:
            with self._working(connection):
                yield
        except (InvalidRequest, KeyboardInterrupt):
            raise
        except BaseException:
            if time.monotonic() - started >= left:
                raise self._too_long() from None
            raise
        finally:
            alarm.cancel()
            self._used_s += time.monotonic() - started
        if self._used_s * 1000 > limit:
            raise self._too_long()

    @contextmanager
    def _working(self, connection: duckdb.DuckDBPyConnection | None) -> Iterator[None]:
        with (
            self._stop.over(connection),
            interruptible(connection),
            translating_duckdb(self._what),
        ):
            yield

    def take(self, rows: int) -> None:
        self._rows += rows
        limit = self._limits.rows_max
        if limit is not None and self._rows > limit:
            raise InvalidRequest(
                f"{self._what} has more than {limit:,} rows",
                hint="ask for fewer with LIMIT, add a condition, or raise query.rows_max",
            )

    def _too_long(self) -> InvalidRequest:
        return InvalidRequest(
            f"{self._what} took longer than {self._limits.time_ms_max:,} ms",
            hint="narrow it down with a condition or fewer columns, or raise query.time_ms_max",
        )


def _nothing() -> None:
    pass


def bounded(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    budget: Budget,
    used: Confined | None = None,
) -> pa.RecordBatchReader:
    """The batches in this schema, no longer and no more than the budget allows."""
    return pa.RecordBatchReader.from_batches(
        schema, _conformed(iter(batches), schema, budget, used)
    )


def _conformed(
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    budget: Budget,
    used: Confined | None,
) -> Iterator[pa.RecordBatch]:
    try:
        while True:
            with budget.working(used.connection if used else None):
                batch = next(batches, None)
            if batch is None:
                break
            budget.take(len(batch))
            if len(batch):
                yield conform(batch, schema)
    except BaseException:
        if used:
            used.discard()
        raise
    if used:
        used.release()


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch's columns, by place, in the types of the schema."""
    return pa.RecordBatch.from_arrays(_typed(batch.columns, schema), schema=schema)


def conform_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same for a whole table."""
    return pa.Table.from_arrays(_typed(table.columns, schema), schema=schema)


def _typed(columns: Iterable[Any], schema: pa.Schema) -> list[Any]:
    return [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
