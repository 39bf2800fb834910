"""Looks into a store, which PyIceberg's files cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyiceberg.io import FileIO, load_file_io
from pyiceberg.typedef import Properties

from calve.errors import InvalidRequest
from calve.tables.stores.local import LocalFileIO, local_path

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


@dataclass(frozen=True, slots=True)
class StoredFile:
    location: str
    bytes: int
    changed_at: datetime


def is_taken(properties: Properties, location: str) -> bool:
    """Whether anything lies at or below a place; False where we may not look."""
    directory = local_path(location)
    try:
        if directory is not None:
            return any(directory.iterdir())
        return _holds_files(load_file_io(properties, location), location)
    except OSError:
        # With keys that a catalog hands out per table, there are none before the table is there.
        return False


def _holds_files(io: FileIO, location: str) -> bool:
    from pyarrow.fs import FileSelector

    opened = _opened(io, location)
    if opened is None:
        return False
    store, path = opened
    return bool(store.get_file_info(FileSelector(path, allow_not_found=True)))


def list_files(io: FileIO, location: str) -> Iterator[StoredFile]:
    """All files below a place; their locations begin as the place does."""
    from pyarrow.fs import FileSelector, FileType

    opened = _opened(io, location)
    if opened is None:
        raise InvalidRequest("this store cannot be listed", hint="remove its orphans with Spark")
    store, path = opened
    selector = FileSelector(path, recursive=True, allow_not_found=True)
    for found in store.get_file_info(selector):
        if found.type is FileType.File:
            below = found.path[len(path.rstrip("/")) :]
            yield StoredFile(
                location.rstrip("/") + below, found.size or 0, found.mtime or datetime.now(UTC)
            )


def remove_empty_directories(location: str) -> None:
    """Stores of objects have none; of local ones those that hold nothing any more go."""
    root = local_path(location)
    if root is None:
        return
    below = sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True)
    for directory in [*below, root]:
        with suppress(OSError):
            directory.rmdir()


def _opened(io: FileIO, location: str) -> tuple[FileSystem, str] | None:
    """Arrow's file system and the path in it; None for files that are not Arrow's."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    files = io.arrow if isinstance(io, LocalFileIO) else io
    if not isinstance(files, PyArrowFileIO):
        return None
    scheme, netloc, path = files.parse_location(location, files.properties)
    return files.fs_by_scheme(scheme, netloc), path
