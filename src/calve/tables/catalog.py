"""The lake's catalog: tables by Calve's names, at Calve's locations, with Calve's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Self

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

from calve.clock import Clock, SystemClock
from calve.model import DEFAULT_DATASET, DEFAULT_TENANT, TableName
from calve.paths import table_location
from calve.settings import Settings
from calve.tables.cache import CacheInfo, TableCache
from calve.tables.connect import connect_catalog, require_lake, warehouse_url
from calve.tables.names import NameMap
from calve.tables.stores import memory
from calve.tables.translate import translating

# Both PyIceberg and Spark read these from the table: with the libraries' own four tries, a handful
# of processes that append at once run out of them.
_COMMIT_RETRIES: Final = {
    "commit.retry.num-retries": "50",
    "commit.retry.min-wait-ms": "20",
    "commit.retry.max-wait-ms": "1000",
    "commit.retry.total-timeout-ms": "120000",
}


class LakeCatalog:
    """One catalog and the store below it. Safe to share between threads."""

    def __init__(
        self, settings: Settings, *, create: bool = True, clock: Clock | None = None
    ) -> None:
        if not create:
            require_lake(settings)
        with translating():
            self.warehouse = warehouse_url(settings)
            self.iceberg: Catalog = connect_catalog(settings, self.warehouse, create=create)
        self._names = NameMap(is_flat=settings.catalog.type == "glue")
        self._cache = TableCache(
            self.load_table,
            ttl_seconds=settings.catalog.cache_ttl_seconds,
            clock=clock or SystemClock(),
        )

    def create_default_namespace(self) -> None:
        """Make the namespace of short names, which Spark SQL needs to list and create tables."""
        with translating():
            self._create_namespace(TableName(DEFAULT_TENANT, DEFAULT_DATASET, "any"))

    def create_table(
        self,
        name: TableName | str,
        schema: Schema | pa.Schema,
        *,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: dict[str, str] | None = None,
    ) -> Table:
        parsed = _parsed(name)
        with translating():
            self._create_namespace(parsed)
            return self.iceberg.create_table(
                self._names.identifier(parsed),
                schema,
                location=self.warehouse and table_location(self.warehouse, parsed),
                partition_spec=partition_spec,
                sort_order=sort_order,
                properties=_COMMIT_RETRIES | (properties or {}),
            )

    def load_table(self, name: TableName | str) -> Table:
        """The table as it is now."""
        with translating():
            return self.iceberg.load_table(self._names.identifier(_parsed(name)))

    def cached_table(self, name: TableName | str) -> Table:
        """The table as it was at most `catalog.cache_ttl_seconds` ago."""
        return self._cache.table(_parsed(name))

    def drop_table(self, name: TableName | str) -> None:
        """Take the table out of the catalog. Its files stay."""
        parsed = _parsed(name)
        with translating():
            self.iceberg.drop_table(self._names.identifier(parsed))
        self._cache.forget(parsed)

    def list_tables(self) -> list[TableName]:
        """Every table whose name is one of Calve's; others in the same catalog are not shown."""
        with translating():
            found = [
                self._names.name(identifier)
                for namespace in self._namespaces()
                for identifier in self.iceberg.list_tables(namespace)
            ]
        return sorted(name for name in found if name)

    def rename_table(self, name: TableName | str, new_name: TableName | str) -> Table:
        """Give the table another name. Its files stay where they are."""
        old, new = _parsed(name), _parsed(new_name)
        with translating():
            self._create_namespace(new)
            renamed = self.iceberg.rename_table(
                self._names.identifier(old), self._names.identifier(new)
            )
        self._cache.forget(old)
        return renamed

    def cache_info(self) -> CacheInfo | None:
        return self._cache.info()

    def clear_cache(self) -> None:
        self._cache.clear()

    def close(self) -> None:
        self.clear_cache()
        self.iceberg.close()
        if self.warehouse and memory.is_own(self.warehouse):
            memory.forget(self.warehouse)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _namespaces(self) -> Iterator[tuple[str, ...]]:
        for namespace in self.iceberg.list_namespaces():
            if self._names.is_flat:
                yield namespace
            else:
                yield from self.iceberg.list_namespaces(namespace)

    def _create_namespace(self, name: TableName) -> None:
        for namespace in self._names.namespaces(name):
            # Somebody may create it between the look and the attempt.
            with suppress(NamespaceAlreadyExistsError):
                self.iceberg.create_namespace_if_not_exists(namespace)


def _parsed(name: TableName | str) -> TableName:
    return name if isinstance(name, TableName) else TableName.parse(name)
