"""Files in this process's memory, for several threads, as PyIceberg opens them."""

from __future__ import annotations

import io
from typing import Any, ClassVar

from fsspec.implementations.memory import MemoryFileSystem
from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO

from calve.tables.stores.memory import SCHEME


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


def forget(root: str) -> None:
    """Free everything below a root."""
    files = SharedMemory()
    if files.exists(root):
        files.rm(root, recursive=True)
