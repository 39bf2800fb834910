"""Looks into a store, which PyIceberg's files cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from pyarrow.fs import FileSelector, FileSystem, FileType
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import Properties

from calve.errors import InvalidRequest
from calve.paths import local_directory


@dataclass(frozen=True, slots=True)
class StoredFile:
    location: str
    bytes: int
    changed_at: datetime


def is_taken(properties: Properties, location: str) -> bool:
    """Whether anything lies at or below a place; False where we may not look."""
    files = load_file_io(properties, location)
    if not isinstance(files, PyArrowFileIO):
        return False
    store, path = _opened(files, location)
    try:
        found = store.get_file_info(FileSelector(path, allow_not_found=True))
    except OSError:
        # With keys that a catalog hands out per table, there are none before the table is there.
        return False
    return bool(found)


def list_files(io: FileIO, location: str) -> Iterator[StoredFile]:
    """All files below a place; their locations begin as the place does."""
    if not isinstance(io, PyArrowFileIO):
        raise InvalidRequest("this store cannot be listed", hint="remove its orphans with Spark")
    store, path = _opened(io, location)
    selector = FileSelector(path, recursive=True, allow_not_found=True)
    for found in store.get_file_info(selector):
        if found.type is FileType.File:
            below = found.path[len(path.rstrip("/")) :]
            yield StoredFile(
                location.rstrip("/") + below, found.size or 0, found.mtime or datetime.now(UTC)
            )


def remove_empty_directories(io: FileIO, location: str) -> None:
    """Stores of objects have none; of local ones those that hold nothing any more go."""
    root = local_directory(location)
    if root is None or not isinstance(io, PyArrowFileIO):
        return
    below = sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True)
    for directory in [*below, root]:
        with suppress(OSError):
            directory.rmdir()


def _opened(io: PyArrowFileIO, location: str) -> tuple[FileSystem, str]:
    scheme, netloc, path = io.parse_location(location, io.properties)
    return io.fs_by_scheme(scheme, netloc), path
