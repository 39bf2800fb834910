"""Looks into a store, which PyIceberg's files cannot do."""

from __future__ import annotations

from pyarrow.fs import FileSelector
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import Properties


def is_taken(properties: Properties, location: str) -> bool:
    """Whether anything lies at or below a place; False where we may not look."""
    files = load_file_io(properties, location)
    if not isinstance(files, PyArrowFileIO):
        return False
    scheme, netloc, path = files.parse_location(location, properties)
    try:
        found = files.fs_by_scheme(scheme, netloc).get_file_info(
            FileSelector(path, allow_not_found=True)
        )
    except OSError:
        # With keys that a catalog hands out per table, there are none before the table is there.
        return False
    return bool(found)
