"""Calve turns streams into Apache Iceberg tables.

Importing it starts nothing, configures nothing and loads no heavy library: each public name is
loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calve.changes import Change, Expression
    from calve.client import Client, Delivered, Delivery
    from calve.errors import CalveError
    from calve.lake import Lake, open  # noqa: A004
    from calve.manager import IcebergManager
    from calve.query.rows import Rows
    from calve.settings import Settings, load_settings
    from calve.storage import IcebergStorage, MemoryStorage, PersistentStorage, StorageStats
    from calve.subscriptions import (
        Appended,
        Batch,
        ReaderStats,
        Subscription,
        SubscriptionStatus,
        TableFollower,
        TopicReader,
    )
    from calve.tables.evolution import (
        AddColumn,
        Describe,
        DropColumn,
        MakeOptional,
        RenameColumn,
        SchemaChange,
        WidenColumn,
    )
    from calve.tables.snapshots import ScanPlan, Snapshot
    from calve.testdata import generate_test_data, write_parquet_batch
    from calve.topics.messages import StreamMessage
    from calve.writer import (
        BatchOptimizationConfig,
        CatalogPoolConfig,
        IcebergTableWriter,
        RetryConfig,
        WriteResult,
        WriterStats,
        create_iceberg_writer,
        create_iceberg_writer_with_pool,
    )

__version__ = "0.1.0"

_HOMES = {
    "AddColumn": "calve.tables.evolution",
    "Appended": "calve.subscriptions",
    "Batch": "calve.subscriptions",
    "BatchOptimizationConfig": "calve.writer",
    "CalveError": "calve.errors",
    "CatalogPoolConfig": "calve.writer",
    "Change": "calve.changes",
    "Client": "calve.client",
    "Delivered": "calve.client",
    "Delivery": "calve.client",
    "Describe": "calve.tables.evolution",
    "DropColumn": "calve.tables.evolution",
    "Expression": "calve.changes",
    "IcebergManager": "calve.manager",
    "IcebergStorage": "calve.storage",
    "IcebergTableWriter": "calve.writer",
    "Lake": "calve.lake",
    "MakeOptional": "calve.tables.evolution",
    "MemoryStorage": "calve.storage",
    "PersistentStorage": "calve.storage",
    "ReaderStats": "calve.subscriptions",
    "RenameColumn": "calve.tables.evolution",
    "RetryConfig": "calve.writer",
    "Rows": "calve.query.rows",
    "ScanPlan": "calve.tables.snapshots",
    "SchemaChange": "calve.tables.evolution",
    "Settings": "calve.settings",
    "Snapshot": "calve.tables.snapshots",
    "StorageStats": "calve.storage",
    "StreamMessage": "calve.topics.messages",
    "Subscription": "calve.subscriptions",
    "SubscriptionStatus": "calve.subscriptions",
    "TableFollower": "calve.subscriptions",
    "TopicReader": "calve.subscriptions",
    "WidenColumn": "calve.tables.evolution",
    "WriteResult": "calve.writer",
    "WriterStats": "calve.writer",
    "create_iceberg_writer": "calve.writer",
    "create_iceberg_writer_with_pool": "calve.writer",
    "generate_test_data": "calve.testdata",
    "load_settings": "calve.settings",
    "open": "calve.lake",
    "write_parquet_batch": "calve.testdata",
}

__all__ = [
    "AddColumn",
    "Appended",
    "Batch",
    "BatchOptimizationConfig",
    "CalveError",
    "CatalogPoolConfig",
    "Change",
    "Client",
    "Delivered",
    "Delivery",
    "Describe",
    "DropColumn",
    "Expression",
    "IcebergManager",
    "IcebergStorage",
    "IcebergTableWriter",
    "Lake",
    "MakeOptional",
    "MemoryStorage",
    "PersistentStorage",
    "ReaderStats",
    "RenameColumn",
    "RetryConfig",
    "Rows",
    "ScanPlan",
    "SchemaChange",
    "Settings",
    "Snapshot",
    "StorageStats",
    "StreamMessage",
    "Subscription",
    "SubscriptionStatus",
    "TableFollower",
    "TopicReader",
    "WidenColumn",
    "WriteResult",
    "WriterStats",
    "__version__",
    "create_iceberg_writer",
    "create_iceberg_writer_with_pool",
    "generate_test_data",
    "load_settings",
    "open",
    "write_parquet_batch",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'calve' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
