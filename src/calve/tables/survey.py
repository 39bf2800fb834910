"""What a snapshot is made of, as far as it decides who can read it: formats, deletes, places.

Read from manifests and their lists, which never change, so each is looked at once in a process.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestFile
from pyiceberg.table.snapshots import Snapshot

from calve.tables.manifests import entries_of, manifests_of
from calve.tables.views import TableView

_MANIFESTS_MAX: Final = 10_000
_SNAPSHOTS_MAX: Final = 200
# A snapshot with more files elsewhere is put together anew each time: all would be kept for each.
_KEPT_ELSEWHERE_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Survey:
    """`data` and `deletes` are file formats; `elsewhere` are files outside the table's place."""

    data: frozenset[str] = frozenset()
    deletes: frozenset[str] = frozenset()
    has_equality_deletes: bool = False
    spec_ids: frozenset[int] = frozenset()
    elsewhere: frozenset[str] = frozenset()
    manifests: int = 1


def survey(view: TableView) -> Survey:
    """Look through all manifests of the view's snapshot."""
    snapshot = view.snapshot
    if snapshot is None:
        return Survey()
    io, location = view.table.io, view.table.location()
    key = (snapshot.manifest_list, location)
    found = _SNAPSHOTS.find(key) or _look_through(snapshot, io, location)
    if len(found.elsewhere) <= _KEPT_ELSEWHERE_MAX:
        _SNAPSHOTS.keep(key, found)
    return found


def _look_through(snapshot: Snapshot, io: FileIO, location: str) -> Survey:
    manifests = manifests_of(snapshot, io)
    parts = [_part(manifest, io, location) for manifest in manifests]
    lists = {snapshot.manifest_list, *(manifest.manifest_path for manifest in manifests)}
    return Survey(
        data=frozenset().union(*(part.data for part in parts)),
        deletes=frozenset().union(*(part.deletes for part in parts)),
        has_equality_deletes=any(part.has_equality_deletes for part in parts),
        spec_ids=frozenset(manifest.partition_spec_id for manifest in manifests),
        elsewhere=_outside(lists, location).union(*(part.elsewhere for part in parts)),
        manifests=len(manifests),
    )


def _outside(paths: set[str], location: str) -> frozenset[str]:
    place = location.rstrip("/") + "/"
    return frozenset(path for path in paths if not path.startswith(place))


class _Known:
    """What was seen in the files that were looked at last, by file and the table's place."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[str, str], Survey] = OrderedDict()

    def find(self, key: tuple[str, str]) -> Survey | None:
        with self._lock:
            return self._seen.get(key)

    def keep(self, key: tuple[str, str], found: Survey) -> None:
        with self._lock:
            self._seen[key] = found
            self._seen.move_to_end(key)
            while len(self._seen) > self._most:
                self._seen.popitem(last=False)


_MANIFESTS: Final = _Known(_MANIFESTS_MAX)
_SNAPSHOTS: Final = _Known(_SNAPSHOTS_MAX)


def _part(manifest: ManifestFile, io: FileIO, location: str) -> Survey:
    key = (manifest.manifest_path, location)
    found = _MANIFESTS.find(key) or _look(manifest, io, location)
    _MANIFESTS.keep(key, found)
    return found


def _look(manifest: ManifestFile, io: FileIO, location: str) -> Survey:
    files = [entry.data_file for entry in entries_of(manifest, io)]
    contents = {(file.content, str(file.file_format.value).lower()) for file in files}
    data = {kind for content, kind in contents if content is DataFileContent.DATA}
    deletes = {kind for content, kind in contents if content is not DataFileContent.DATA}
    return Survey(
        data=frozenset(data),
        deletes=frozenset(deletes),
        has_equality_deletes=any(
            content is DataFileContent.EQUALITY_DELETES for content, _ in contents
        ),
        elsewhere=_outside({file.file_path for file in files}, location),
    )
