"""Makes writers."""

from __future__ import annotations

import msgspec

from calve.connections import Connections, LakeSource, settings_of
from calve.model import TableName
from calve.settings import complete
from calve.writer.config import BatchOptimizationConfig, CatalogPoolConfig, RetryConfig
from calve.writer.writer import IcebergTableWriter


def create_iceberg_writer(  # noqa: PLR0913
    settings: LakeSource,
    tenant: str,
    dataset: str,
    table: str,
    *,
    pool: CatalogPoolConfig | None = None,
    batch: BatchOptimizationConfig | None = None,
    retry: RetryConfig | None = None,
) -> IcebergTableWriter:
    """A writer for the table `tenant.dataset.table`, of the lake in a directory or that the
    settings describe. What is not given comes from the settings.
    """
    name = TableName(tenant, dataset, table)
    wanted = settings_of(settings)
    if pool is not None:
        catalog = msgspec.structs.replace(wanted.catalog, pool=pool)
        wanted = msgspec.structs.replace(wanted, catalog=catalog)
    lake = Connections(complete(wanted))
    return IcebergTableWriter(lake, name, batch=batch, retry=retry, owns_lake=True)


def create_iceberg_writer_with_pool(
    settings: LakeSource, tenant: str, dataset: str, table: str, pool: CatalogPoolConfig
) -> IcebergTableWriter:
    """A writer with connections to the catalog as `pool` says."""
    return create_iceberg_writer(settings, tenant, dataset, table, pool=pool)
