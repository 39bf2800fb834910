"""The lake's catalog: tables by Calve's names, at Calve's locations, with Calve's errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Final, Self, TypeVar
from uuid import UUID, uuid4

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.typedef import Identifier

from calve.clock import Clock, SystemClock
from calve.errors import CalveError, Conflict, NotFound
from calve.grid import Grid, ShownAsGrids
from calve.model import DEFAULT_DATASET, DEFAULT_TENANT, TableName
from calve.paths import table_location
from calve.retry import retried
from calve.settings import RetrySettings, Settings, mask_url
from calve.tables.cache import CacheInfo, TableCache
from calve.tables.catalogs.sql import EngineCatalog, PoolWaits
from calve.tables.connect import connect_catalog, require_lake, warehouse_url
from calve.tables.filter_store import FilterStore
from calve.tables.names import NameMap
from calve.tables.nearest import meant
from calve.tables.stores import memory
from calve.tables.stores.listing import is_taken
from calve.tables.translate import require_creatable, translating

if TYPE_CHECKING:
    import pyarrow as pa

# Both PyIceberg and Spark read these from the table: with the libraries' own four tries, a handful
# of processes that append at once run out of them.
_COMMIT_RETRIES: Final = {
    "commit.retry.num-retries": "50",
    "commit.retry.min-wait-ms": "20",
    "commit.retry.max-wait-ms": "1000",
    "commit.retry.total-timeout-ms": "120000",
}


_CONTENTION: Final = RetrySettings(max_attempts=50, initial_delay_ms=20, max_delay_ms=1000)

_T = TypeVar("_T")


class LakeCatalog(ShownAsGrids):
    """One catalog and the store below it. Safe to share between threads."""

    def __init__(
        self, settings: Settings, *, create: bool = True, clock: Clock | None = None
    ) -> None:
        if not create:
            require_lake(settings)
        with translating():
            self.warehouse = warehouse_url(settings)
            self.iceberg: Catalog = connect_catalog(settings, self.warehouse, create=create)
        assert settings.cache is not None
        self.filters = FilterStore(settings.cache / "filters.db")
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
        wanted = _COMMIT_RETRIES | (properties or {})
        require_creatable(
            schema, partition_spec=partition_spec, sort_order=sort_order, properties=wanted
        )
        free_location = cache(partial(self._free_location, parsed))  # the store is asked once

        def create() -> Table:
            self._require_free(parsed)
            return self.iceberg.create_table(
                self._names.identifier(parsed),
                schema,
                location=free_location(),
                partition_spec=partition_spec,
                sort_order=sort_order,
                properties=wanted,
            )

        with translating(), _refusing_taken(parsed):
            table = self._within_namespace(parsed, create)
        self._cache.forget(parsed)
        return table

    def load_table(self, name: TableName | str) -> Table:
        """The table as it is now."""
        found = self.find_table(name)
        if found is None:
            raise self._no_table(_parsed(name))
        return found

    def find_table(self, name: TableName | str) -> Table | None:
        """The table as it is now, if there is one."""
        with translating():
            try:
                return self.iceberg.load_table(self._names.identifier(_parsed(name)))
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    def cached_table(self, name: TableName | str) -> Table:
        """The table as it was at most `catalog.cache_ttl_seconds` ago."""
        return self._cache.table(_parsed(name))

    def change_table(self, name: TableName | str, work: Callable[[Table], _T]) -> _T:
        """Do something to the table as it is now, and again if somebody else was faster.

        The work looks at the table it is given and commits at most once; so it decides anew each
        time, from what the others left.
        """
        parsed = _parsed(name)
        try:
            with translating():
                return retried(lambda: work(self.load_table(parsed)), _CONTENTION, _lost_a_race)
        finally:
            self._cache.forget(parsed)

    def drop_table(self, name: TableName | str, *, only: UUID | None = None) -> None:
        """Take the table out of the catalog. Its files stay.

        Conflict if `only` says which it is, and another has got the name.
        """
        parsed = _parsed(name)
        if only is not None and self.load_table(parsed).metadata.table_uuid != only:
            raise Conflict(
                f"the table {parsed} was dropped, and another one made under its name",
                hint="nothing is left to be dropped; if the new one is meant too, drop it again",
                context={"table": str(parsed)},
            )
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

    def pointers(self) -> Iterator[tuple[Identifier, str | None]]:
        """Every table, also those whose names are not Calve's, and its metadata file.

        None for the file where a catalog tells it only of a table that is loaded.
        """
        with translating():
            if isinstance(self.iceberg, EngineCatalog):
                yield from self.iceberg.pointers()
                return
            for namespace in self._namespaces():
                yield from ((each, None) for each in self.iceberg.list_tables(namespace))

    def shown_name(self, identifier: Identifier) -> str:
        """A table's name as people write it."""
        return str(self._names.name(identifier) or ".".join(identifier))

    def rename_table(self, name: TableName | str, new_name: TableName | str) -> Table:
        """Give the table another name. Its files stay where they are."""
        old, new = _parsed(name), _parsed(new_name)
        with translating():
            self._create_namespace(new)
            try:
                with _refusing_taken(new):
                    renamed = self.iceberg.rename_table(
                        self._names.identifier(old), self._names.identifier(new)
                    )
            except NoSuchTableError as error:
                raise self._no_table(old) from error
        self._cache.forget(old)
        self._cache.forget(new)
        return renamed

    def pool_waits(self) -> PoolWaits:
        """Nothing where the catalog has no pool of connections."""
        return self.iceberg.pool_waits() if isinstance(self.iceberg, EngineCatalog) else PoolWaits()

    def cache_info(self) -> CacheInfo | None:
        return self._cache.info()

    def clear_cache(self) -> None:
        self._cache.clear()

    def close(self) -> None:
        self.clear_cache()
        self.filters.close()
        self.iceberg.close()
        if self.warehouse and memory.is_own(self.warehouse):
            memory.forget(self.warehouse)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def grids(self) -> list[Grid]:
        try:
            return [Grid(("TABLE",), [(each,) for each in self.list_tables()], repr(self))]
        except CalveError as error:
            return [Grid(("TABLE",), (), f"{self!r}: {error.message}")]

    def __repr__(self) -> str:
        # Without asking the catalog, as this may be part of a message about it.
        place = self.warehouse and mask_url(self.warehouse)
        return f"LakeCatalog({self.iceberg.name!r}, warehouse={place!r})"

    def _no_table(self, name: TableName) -> NotFound:
        known: list[str] = []
        # Whoever may read one table need not be allowed to list them all.
        with suppress(CalveError):
            known = [str(each) for each in self.list_tables()]
        return NotFound(
            f"there is no table {str(name)!r}{meant(str(name), known)}",
            hint="`calve table list` shows what there is",
        )

    def _require_free(self, name: TableName) -> None:
        """Refuse a name that is taken, before a catalog writes metadata for another table of it.

        Calve's own catalogs clear it away, and others' servers write it last.
        """
        if not isinstance(self.iceberg, MetastoreCatalog) or isinstance(
            self.iceberg, EngineCatalog
        ):
            return
        if self.iceberg.table_exists(self._names.identifier(name)):
            raise TableAlreadyExistsError(str(name))

    def _free_location(self, name: TableName) -> str | None:
        """The table's place, or one beside it where files of an earlier table still lie.

        A table that was dropped leaves its files, and one that was renamed keeps its place: two
        tables in one directory would one day clear away each other's files.
        """
        if self.warehouse is None:
            return None
        location = table_location(self.warehouse, name)
        if is_taken(self.iceberg.properties, location):
            # Before its first file is written, to which nothing would refer.
            if self.iceberg.table_exists(self._names.identifier(name)):
                raise TableAlreadyExistsError
            return f"{location}-{uuid4().hex[:8]}"
        return location

    def _namespaces(self) -> Iterator[tuple[str, ...]]:
        for namespace in self.iceberg.list_namespaces():
            if self._names.is_flat:
                yield namespace
            else:
                yield from self.iceberg.list_namespaces(namespace)

    def _within_namespace(self, name: TableName, create: Callable[[], Table]) -> Table:
        if isinstance(self.iceberg, EngineCatalog):
            # It looks for the namespace itself, before it writes anything.
            with suppress(NoSuchNamespaceError):
                return create()
        self._create_namespace(name)
        return create()

    def _create_namespace(self, name: TableName) -> None:
        namespaces = self._names.namespaces(name)
        # One look where looking is cheap: the outer one was made before it.
        if isinstance(self.iceberg, EngineCatalog) and self.iceberg.namespace_exists(
            namespaces[-1]
        ):
            return
        for namespace in namespaces:
            # Somebody may create it between the look and the attempt.
            with suppress(NamespaceAlreadyExistsError):
                self.iceberg.create_namespace_if_not_exists(namespace)


@contextmanager
def _refusing_taken(name: TableName) -> Iterator[None]:
    try:
        yield
    except TableAlreadyExistsError as error:
        raise Conflict(
            f"the table {str(name)!r} exists already",
            hint="choose another name, or use the one that exists",
        ) from error


def _lost_a_race(error: BaseException) -> bool:
    return isinstance(error, CommitFailedException)


def _parsed(name: TableName | str) -> TableName:
    return name if isinstance(name, TableName) else TableName.parse(name)
