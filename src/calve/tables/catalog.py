"""The lake's catalog: tables by Calve's names, at Calve's locations, with Calve's errors."""

from __future__ import annotations

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
from calve.errors import InvalidRequest
from calve.model import DEFAULT_DATASET, DEFAULT_TENANT, TableName
from calve.paths import table_location
from calve.settings import Settings
from calve.tables import memory_store
from calve.tables.cache import CacheInfo, TableCache
from calve.tables.connect import connect_catalog, require_lake, warehouse_url
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
            self.iceberg: Catalog = connect_catalog(settings, self.warehouse)
        self._cache = TableCache(
            self.load_table,
            ttl_seconds=settings.catalog.cache_ttl_seconds,
            clock=clock or SystemClock(),
        )

    def create_default_namespace(self) -> None:
        """Make the namespace of short names, which Spark SQL needs to list and create tables."""
        with translating():
            self._create_namespace((DEFAULT_TENANT, DEFAULT_DATASET))

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
            self._create_namespace(parsed.namespace)
            return self.iceberg.create_table(
                parsed.identifier,
                schema,
                location=table_location(self.warehouse, parsed),
                partition_spec=partition_spec,
                sort_order=sort_order,
                properties=_COMMIT_RETRIES | (properties or {}),
            )

    def load_table(self, name: TableName | str) -> Table:
        """The table as it is now."""
        with translating():
            return self.iceberg.load_table(_parsed(name).identifier)

    def cached_table(self, name: TableName | str) -> Table:
        """The table as it was at most `catalog.cache_ttl_seconds` ago."""
        return self._cache.table(_parsed(name))

    def drop_table(self, name: TableName | str) -> None:
        """Take the table out of the catalog. Its files stay."""
        parsed = _parsed(name)
        with translating():
            self.iceberg.drop_table(parsed.identifier)
        self._cache.forget(parsed)

    def list_tables(self) -> list[TableName]:
        """Every table whose name is one of Calve's; others in the same catalog are not shown."""
        with translating():
            found = [
                identifier
                for tenant in self.iceberg.list_namespaces()
                for namespace in self.iceberg.list_namespaces(tenant)
                for identifier in self.iceberg.list_tables(namespace)
            ]
        return sorted(name for name in map(_own_name, found) if name)

    def cache_info(self) -> CacheInfo | None:
        return self._cache.info()

    def clear_cache(self) -> None:
        self._cache.clear()

    def close(self) -> None:
        self.clear_cache()
        self.iceberg.close()
        if memory_store.is_own(self.warehouse):
            memory_store.forget(self.warehouse)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _create_namespace(self, namespace: tuple[str, str]) -> None:
        # Somebody may create it between the look and the attempt.
        with suppress(NamespaceAlreadyExistsError):
            self.iceberg.create_namespace_if_not_exists(namespace)


def _parsed(name: TableName | str) -> TableName:
    return name if isinstance(name, TableName) else TableName.parse(name)


def _own_name(identifier: tuple[str, ...]) -> TableName | None:
    try:
        return TableName(*identifier) if len(identifier) == 3 else None
    except InvalidRequest:
        return None
