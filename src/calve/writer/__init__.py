"""The writer: rows into one table, in transactions that happen as a whole or not at all.

Rows become data files as they come, split to bounded pieces; a commit makes all files of a
transaction part of the table in one snapshot, together with the columns that they need.
"""

from calve.tables.cache import CacheInfo
from calve.writer.config import BatchOptimizationConfig, CatalogPoolConfig, RetryConfig
from calve.writer.create import create_iceberg_writer, create_iceberg_writer_with_pool
from calve.writer.stats import WriterStats
from calve.writer.transaction import WriteResult
from calve.writer.writer import IcebergTableWriter

__all__ = [
    "BatchOptimizationConfig",
    "CacheInfo",
    "CatalogPoolConfig",
    "IcebergTableWriter",
    "RetryConfig",
    "WriteResult",
    "WriterStats",
    "create_iceberg_writer",
    "create_iceberg_writer_with_pool",
]
