"""Where a table's own files lie: only there is anything ever deleted.

One rule for expiry, orphan removal and purging. Files elsewhere, which somebody has added to the
table, may be somebody else's, and stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from pyiceberg.table import Table

from calve.tables.stores.listing import StoredFile, list_files

_LOCAL: Final = re.compile(r"^file:/*/|^/+")
_S3: Final = re.compile(r"^s3[an]://")


def own_files(table: Table) -> Iterator[StoredFile]:
    """What lies in the table's directories for data and metadata.

    Not in those that it has outside of its own place, where other tables may have theirs too.
    """
    location = table.location().rstrip("/")
    places = table.location_provider()
    for place in {
        f"{location}/data",
        f"{location}/metadata",
        places.data_path,
        places.metadata_path,
    }:
        if f"{place}/".startswith(f"{location}/"):
            yield from list_files(table.io, place)


def only_own(table: Table, files: Iterable[str]) -> list[str]:
    """Those of the files to which a table refers that lie in its own places, sorted."""
    places = table.location_provider()
    own = tuple(map(directory, (table.location(), places.data_path, places.metadata_path)))
    return sorted(file for file in files if spelled(file).startswith(own))


def directory(place: str) -> str:
    """As the beginning of all that lies in it."""
    return spelled(place).rstrip("/") + "/"


def spelled(place: str) -> str:
    """The same for all ways in which programs spell a place."""
    return _S3.sub("s3://", _LOCAL.sub("file:///", place))
