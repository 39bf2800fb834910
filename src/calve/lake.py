"""The lake, which `calve.open` gives: one place of tables, with everything that works on them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Self

from calve.connections import Connections, LakeSource, settings_of
from calve.manager import IcebergManager
from calve.model import TableName
from calve.settings import Settings
from calve.tables.catalog import LakeCatalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from calve.query.rows import Rows
    from calve.writer import BatchOptimizationConfig, IcebergTableWriter, RetryConfig


class Lake:
    """A place of Iceberg tables. A context manager; safe to share between threads."""

    def __init__(
        self, settings: Settings, *, spark: SparkSession | None = None, create: bool = True
    ) -> None:
        """Open the lake; without `create`, one that is not there yet is an error."""
        self._connections = Connections(settings, spark=spark, create=create)
        self.settings = self._connections.settings

    @property
    def catalog(self) -> LakeCatalog:
        return self._connections.catalog

    @cached_property
    def tables(self) -> IcebergManager:
        """Every operation on the lake's tables."""
        return IcebergManager(self._connections)

    def writer(
        self,
        table: str,
        *,
        batch: BatchOptimizationConfig | None = None,
        retry: RetryConfig | None = None,
    ) -> IcebergTableWriter:
        """A writer for one table, over the connections of this lake; close it before the lake."""
        from calve.writer import IcebergTableWriter

        return IcebergTableWriter(
            self._connections, TableName.parse(table), batch=batch, retry=retry
        )

    def sql(self, text: str) -> Rows:
        """Ask in SQL, over all tables of the lake; nothing can be changed by it."""
        return self.tables.sql(text)

    def spark(self) -> SparkSession:
        """A session whose default catalog is this lake's; Spark is started at the first call.

        The same session each time, unless it was stopped or Spark has died: then a new one.
        """
        return self._connections.spark()

    def close(self, error: BaseException | None = None) -> None:
        """Let go of everything; `error` is on its way to the caller, who will want to read it."""
        self._connections.close(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.close(error)

    def __repr__(self) -> str:
        return f"Lake({str(self.settings.data)!r}, catalog={self.settings.catalog.type!r})"


def open(  # noqa: A001
    lake: LakeSource = None, *, spark: SparkSession | None = None
) -> Lake:
    """Open the lake in a directory, or the one that the settings describe; make it if it is new.

    A directory is the flag `--data`: `calve.toml` and the environment still count, as they do for
    the command line. With a session passed in, Calve works in it and never stops it.
    """
    return Lake(settings_of(lake), spark=spark)
