"""Where a table's own files lie: only there is anything ever deleted.

One rule for expiry, orphan removal and purging. Files elsewhere, which somebody has added to the
table, may be somebody else's, and stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from pyiceberg.io import FileIO
from pyiceberg.table import Table

from calve.tables.stores.listing import StoredFile, list_files
from calve.tables.translate import translating

_LOCAL: Final = re.compile(r"^file:/*/|^/+")
_S3: Final = re.compile(r"^s3[an]://")


def are_there(io: FileIO, paths: Iterable[str]) -> bool:
    """Whether files that nobody has committed yet are all still where they were written."""
    with translating():
        return all(io.new_input(path).exists() for path in paths)


def own_files(table: Table) -> Iterator[StoredFile]:
    """What lies in the table's directories for data and metadata.

    Not in those that it has outside of its own place, where other tables may have theirs too.
    """
    data = {f"{table.location().rstrip('/')}/data", table.location_provider().data_path}
    yield from _listed(table, data | _metadata_places(table))


def own_metadata_files(table: Table) -> Iterator[StoredFile]:
    """The same, of those for metadata."""
    yield from _listed(table, _metadata_places(table))


def _listed(table: Table, places: Iterable[str]) -> Iterator[StoredFile]:
    for place in places:
        if f"{place}/".startswith(f"{table.location().rstrip('/')}/"):
            yield from list_files(table.io, place)


def _metadata_places(table: Table) -> set[str]:
    return {
        f"{table.location().rstrip('/')}/metadata",
        table.location_provider().metadata_path,
    }


def only_own(table: Table, files: Iterable[str]) -> list[str]:
    """Those of the files to which a table refers that lie in its own places, sorted."""
    places = table.location_provider()
    own = tuple(map(directory, (table.location(), places.data_path, places.metadata_path)))
    return sorted(file for file in files if spelled(file).startswith(own))


def file_name(location: str) -> str:
    """Without its directories: no two files of a table share one, however paths are spelled."""
    return location.rpartition("/")[2]


def directory(place: str) -> str:
    """As the beginning of all that lies in it."""
    return spelled(place).rstrip("/") + "/"


def spelled(place: str) -> str:
    """The same for all ways in which programs spell a place."""
    return _S3.sub("s3://", _LOCAL.sub("file:///", place))
