"""IcebergTableWriter: rows into one table, one batch or one transaction at a time."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Self

from calve.clock import Clock, SystemClock
from calve.connections import Connections
from calve.errors import InvalidRequest, UnknownOutcome
from calve.model import TableName
from calve.tables.cache import CacheInfo
from calve.tables.catalogs.sql import PoolWaits
from calve.writer.config import (
    BatchOptimizationConfig,
    Bounds,
    CatalogPoolConfig,
    RetryConfig,
    require_kind,
)
from calve.writer.stats import WriterCounters, WriterStats
from calve.writer.target import TargetTable
from calve.writer.transaction import Transaction, WriteResult
from calve.writer.transactions import Transactions


class IcebergTableWriter:
    """Appends rows to one table, which is made from the first of them if it does not exist.

    A context manager; safe to share between threads. Transactions that are open when it is closed,
    or when the program ends, are rolled back.
    """

    def __init__(
        self,
        lake: Connections,
        table: TableName,
        *,
        batch: BatchOptimizationConfig | None = None,
        retry: RetryConfig | None = None,
        owns_lake: bool = False,
        clock: Clock | None = None,
    ) -> None:
        settings = lake.settings
        self._bounds = Bounds(
            batch or BatchOptimizationConfig.of(settings),
            retry or RetryConfig.of(settings.retry),
            bounds_races=retry is not None,
        )
        self._pool = CatalogPoolConfig.of(settings.catalog.pool)
        self._counters = WriterCounters()
        self._target = TargetTable(
            lambda: lake.catalog,
            table,
            ttl_seconds=self._bounds.batch.cache_seconds,
            clock=clock or SystemClock(),
            on_wait=self._counters.waited,
        )
        self._pool_waits = PoolWaits()
        self._transactions = Transactions()
        self._commits = threading.Lock()
        # Also when the program ends, or nobody has the writer any more.
        owned = lake if owns_lake else None
        self._end = weakref.finalize(self, _end, self._transactions, owned, os.getpid())

    def begin_transaction(self) -> str:
        """Begin a transaction; its id. Batches that this thread writes belong to it."""
        return self._begin(for_thread=True).id

    def write_batch(self, rows: object, transaction_id: str | None = None) -> WriteResult:
        """Write rows: Arrow, pandas, Polars, dicts, or a dict of columns.

        They belong to the transaction that is named, else to the one that this thread has open.
        Without either they are committed at once.
        """
        return self._write(
            lambda transaction: transaction.write(rows, self._bounds), transaction_id
        )

    def write_batches(
        self, batches: Iterable[object], transaction_id: str | None = None
    ) -> WriteResult:
        """Write many batches as they come, in one transaction.

        If one fails behind others, a transaction that they have joined can only be rolled back.
        """
        each = [batches] if _is_one(batches) else batches
        return self._write(
            lambda transaction: transaction.write_all(each, lambda: self._bounds), transaction_id
        )

    def commit_transaction(self, transaction_id: str) -> WriteResult:
        """Make all rows of a transaction part of the table, in one snapshot.

        After an error it can be called again: nothing is committed twice.
        """
        return self._commit(self._transactions.find(transaction_id))

    def rollback_transaction(self, transaction_id: str) -> None:
        """Give a transaction up and delete its files."""
        self._transactions.roll_back(self._transactions.find(transaction_id), "requested")

    @contextmanager
    def transaction(self) -> Iterator[str]:
        """A transaction that is committed at the end of the block, or rolled back on an error."""
        begun = self._begin(for_thread=True)
        with self._rolled_back_on_error(begun):
            yield begun.id
            if not begun.fate:
                self._commit_finally(begun)

    @property
    def batch_config(self) -> BatchOptimizationConfig:
        return self._bounds.batch

    def set_batch_config(self, config: BatchOptimizationConfig) -> None:
        """Change the sizes of batches and the cache; for batches written from now on."""
        require_kind(config, BatchOptimizationConfig)
        if config.cache_seconds != self._bounds.batch.cache_seconds:
            self._target.remember_for(config.cache_seconds)
        self._bounds = replace(self._bounds, batch=config)

    @property
    def retry_config(self) -> RetryConfig:
        return self._bounds.retry

    def set_retry_config(self, config: RetryConfig) -> None:
        """Change how often is tried; it then bounds commits that lose against others too."""
        require_kind(config, RetryConfig)
        self._bounds = replace(self._bounds, retry=config, bounds_races=True)

    @property
    def pool_config(self) -> CatalogPoolConfig:
        """The catalog's connections, which stay as they are while the writer lives."""
        return self._pool

    @property
    def stats(self) -> WriterStats:
        self._ask_pool()
        return self._counters.stats(self._pool_waits)

    def catalog_cache_info(self) -> CacheInfo | None:
        """How old the remembered table is; None while there is none."""
        return self._target.cache_info()

    def clear_catalog_cache(self) -> None:
        """Have the next transaction ask the catalog."""
        self._target.forget()

    def close(self) -> None:
        """Roll back what is open, and let go of the lake."""
        self._ask_pool()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"IcebergTableWriter({str(self._target.name)!r})"

    def _ask_pool(self) -> None:
        # A lake that is closed has told what it knew.
        with suppress(InvalidRequest):
            self._pool_waits = self._target.pool_waits()

    def _begin(self, *, for_thread: bool) -> Transaction:
        if not self._end.alive:
            raise InvalidRequest("the writer has been closed", hint="make another one")
        transaction = Transaction(self._target, self._counters)
        self._transactions.add(transaction, for_thread=for_thread)
        return transaction

    def _write(
        self, write: Callable[[Transaction], WriteResult], transaction_id: str | None
    ) -> WriteResult:
        joined = (
            self._transactions.own()
            if transaction_id is None
            else self._transactions.find(transaction_id)
        )
        if joined is not None:
            return write(joined)
        alone = self._begin(for_thread=False)
        with self._rolled_back_on_error(alone):
            write(alone)
            return self._commit_finally(alone)

    def _commit(self, transaction: Transaction) -> WriteResult:
        # One after the other: commits of one table would only get in each other's way.
        with self._commits:
            try:
                return transaction.commit(self._bounds)
            finally:
                self._transactions.settle(transaction)

    def _commit_finally(self, transaction: Transaction) -> WriteResult:
        """Commit what nobody can ask to have committed again: look once more before giving up."""
        try:
            return self._commit(transaction)
        except UnknownOutcome as error:
            self._transactions.give_up(transaction, type(error).__name__)
            if transaction.result is None:
                raise
            return transaction.result

    @contextmanager
    def _rolled_back_on_error(self, transaction: Transaction) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not transaction.fate:
                self._transactions.give_up(transaction, type(error).__name__)
            raise


def _is_one(batches: object) -> bool:
    """Whether this is rows, whose iteration would give columns or names."""
    return isinstance(batches, Mapping) or any(
        hasattr(batches, name) for name in ("__arrow_c_stream__", "__arrow_c_array__")
    )


def _end(transactions: Transactions, lake: Connections | None, process: int) -> None:
    if os.getpid() != process:
        return  # Files and connections are those of the process that has forked this one.
    transactions.end()
    if lake is not None:
        lake.close()
