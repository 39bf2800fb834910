"""The store `memory://`: files in this process's memory, for tests and notebooks.

Two lakes with a plain `memory://` never see each other's files; closing a lake frees them.
"""

from __future__ import annotations

import io
from typing import Any, ClassVar, Final
from uuid import uuid4

from fsspec.implementations.memory import MemoryFileSystem
from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO

SCHEME: Final = "memory"

_OWN_PREFIX: Final = f"{SCHEME}://__lake-"


class SharedMemory(MemoryFileSystem):  # type: ignore[misc]
    """fsspec's files in memory, for several threads.

    fsspec hands one file object, with one position, to everybody who opens a file.
    """

    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        opened = super()._open(path, mode, **options)
        return io.BytesIO(opened.getvalue()) if mode == "rb" else opened


class MemoryFileIO(PyArrowFileIO):
    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        if scheme == SCHEME:
            return PyFileSystem(FSSpecHandler(SharedMemory()))
        return super()._initialize_fs(scheme, netloc)


FILE_IO: Final = f"{MemoryFileIO.__module__}.{MemoryFileIO.__name__}"


def own_warehouse(dsn: str) -> str:
    """The root for a lake: the one the user named, or a new one."""
    return dsn if dsn != f"{SCHEME}://" else f"{_OWN_PREFIX}{uuid4().hex}"


def is_own(warehouse: str) -> bool:
    return warehouse.startswith(_OWN_PREFIX)


def forget(warehouse: str) -> None:
    """Free everything below a root."""
    files = SharedMemory()
    root = warehouse.removeprefix(f"{SCHEME}://")
    if files.exists(root):
        files.rm(root, recursive=True)
