"""The store `memory://`: files in this process's memory, for tests and notebooks.

Two lakes with a plain `memory://` never see each other's files; closing a lake frees them.
"""

from __future__ import annotations

from typing import Final
from uuid import uuid4

SCHEME: Final = "memory"
FILE_IO: Final = "calve.tables.stores.memory_files.MemoryFileIO"

_OWN_PREFIX: Final = f"{SCHEME}://__lake-"


def own_warehouse(dsn: str) -> str:
    """The root for a lake: the one the user named, or a new one."""
    return dsn if dsn != f"{SCHEME}://" else f"{_OWN_PREFIX}{uuid4().hex}"


def is_own(warehouse: str) -> bool:
    return warehouse.startswith(_OWN_PREFIX)


def forget(warehouse: str) -> None:
    """Free everything below a root."""
    # Loading it waits until somebody has files there.
    from calve.tables.stores import memory_files

    memory_files.forget(warehouse.removeprefix(f"{SCHEME}://"))
