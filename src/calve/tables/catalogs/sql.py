"""PyIceberg's SQL catalog over an engine that is handed in, for SQLite and PostgreSQL alike.

Reads are tried again when the connection breaks. A commit is not: whether it happened is unknown
then, and that is what the caller is told.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from sqlalchemy import Engine, inspect, select
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.orm import Session

from calve.errors import NotFound
from calve.retry import retried
from calve.settings import RetrySettings
from calve.tables.commit_times import OrderedTimes
from calve.tables.expiry import clear_away
from calve.tables.translate import reading_metadata
from calve.tables.version_hint import publish_hint

_INIT_ATTEMPTS: Final = 5


# Where an engine whose connections come from another pool keeps that pool.
POOL_OPTION: Final = "calve_pool"


@dataclass(frozen=True, slots=True)
class PoolWaits:
    """How often, and for how long in all, somebody waited for a connection to come free."""

    waits: int = 0
    seconds: float = 0.0


class EngineCatalog(OrderedTimes, SqlCatalog):
    def __init__(
        self,
        name: str,
        engine: Engine,
        properties: Mapping[str, str],
        *,
        retry: RetrySettings,
        create: bool = True,
    ) -> None:
        MetastoreCatalog.__init__(self, name, **properties)
        self.engine = engine
        self._retry = retry
        self._begun = threading.local()
        if not create and not inspect(engine).has_table("iceberg_tables"):
            raise NotFound(
                f"there is no lake in {engine.url.render_as_string(hide_password=True)}",
                hint="name another database in catalog.uri, or make a lake by creating a table",
            )
        self._init_catalog_among_others()

    def pool_waits(self) -> PoolWaits:
        """Nothing for SQLite, whose connections are there at once."""
        pool = self.engine.get_execution_options().get(POOL_OPTION)
        if pool is None:
            return PoolWaits()
        told = pool.get_stats()
        return PoolWaits(told.get("requests_queued", 0), told.get("requests_wait_ms", 0) / 1000)

    def load_table(self, identifier: str | Identifier) -> Table:
        return retried(
            lambda: super(EngineCatalog, self).load_table(identifier), self._retry, _is_broken
        )

    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        return retried(
            lambda: super(EngineCatalog, self).list_tables(namespace), self._retry, _is_broken
        )

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        return retried(
            lambda: super(EngineCatalog, self).list_namespaces(namespace), self._retry, _is_broken
        )

    def namespace_exists(self, identifier: str | Identifier) -> bool:
        return retried(
            lambda: super(EngineCatalog, self).namespace_exists(identifier), self._retry, _is_broken
        )

    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        return retried(
            lambda: super(EngineCatalog, self).load_namespace_properties(namespace),
            self._retry,
            _is_broken,
        )

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        try:
            response = super().commit_table(table, requirements, updates)
        except DBAPIError as error:
            if not _is_broken(error):
                raise
            raise CommitStateUnknownException(
                f"the connection to the catalog broke during a commit: {error.orig}"
            ) from error
        self._publish(table.name(), response.metadata.location, response.metadata_location)
        return response

    def create_namespace(
        self, namespace: str | Identifier, properties: Properties = EMPTY_DICT
    ) -> None:
        try:
            super().create_namespace(namespace, properties)
        except IntegrityError as error:
            # PyIceberg looks first, and so does everybody else who needs it now.
            raise NamespaceAlreadyExistsError(f"{namespace} exists already") from error

    def create_table(self, identifier: str | Identifier, *arguments: Any, **options: Any) -> Table:
        try:
            table = super().create_table(identifier, *arguments, **options)
        except TableAlreadyExistsError:
            # Its metadata was written before the name turned out to be taken.
            written = self._begun.metadata_location
            clear_away(self._load_file_io(location=written), [written])
            raise
        self._publish(table.name(), table.location(), table.metadata_location)
        return table

    def _create_table_row(
        self, namespace: str, table_name: str, metadata_location: str | None
    ) -> dict[str, Any]:
        self._begun.metadata_location = metadata_location
        return super()._create_table_row(namespace, table_name, metadata_location)

    def _publish(self, identifier: Identifier, location: str, metadata_location: str) -> None:
        publish_hint(location, metadata_location, lambda: self._pointer(identifier))

    def pointers(self) -> list[tuple[Identifier, str]]:
        """Every table and its metadata file, without reading any."""
        wanted = select(
            IcebergTables.table_namespace,
            IcebergTables.table_name,
            IcebergTables.metadata_location,
        ).where(IcebergTables.catalog_name == self.name)
        with Session(self.engine) as session:
            found = session.execute(wanted).all()
        return [
            ((*Catalog.identifier_to_tuple(namespace), name), file)
            for namespace, name, file in found
            if file
        ]

    def _pointer(self, identifier: Identifier) -> str | None:
        """The newest metadata file; None where it cannot be told."""
        wanted = select(IcebergTables.metadata_location).where(
            IcebergTables.catalog_name == self.name,
            IcebergTables.table_namespace
            == Catalog.namespace_to_string(Catalog.namespace_from(identifier)),
            IcebergTables.table_name == Catalog.table_name_from(identifier),
        )
        try:
            with Session(self.engine) as session:
                return session.scalar(wanted)
        except DBAPIError:
            return None

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        with reading_metadata(str(orm_table.metadata_location)):
            return super()._convert_orm_to_iceberg(orm_table)

    def _init_catalog_among_others(self) -> None:
        """Create the catalog's tables, or find that another process is creating them just now."""
        for attempt in range(1, _INIT_ATTEMPTS + 1):
            try:
                retried(self._init_catalog, self._retry, _is_broken)
            except (OperationalError, ProgrammingError, IntegrityError) as error:
                if not _is_race(error) or attempt == _INIT_ATTEMPTS:
                    raise
            else:
                return


def _is_broken(error: BaseException) -> bool:
    return isinstance(error, DBAPIError) and error.connection_invalidated


def _is_race(error: DBAPIError) -> bool:
    text = str(error)
    return "already exists" in text or "pg_type_typname_nsp_index" in text
