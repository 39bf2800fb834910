"""What a snapshot is made of, as far as it decides who can read it: formats, deletes, places.

Read from the manifests, which never change, so each is looked at once in a process.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestFile

from calve.tables.views import TableView

_MANIFESTS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Survey:
    """`data` and `deletes` are file formats; `elsewhere` are files outside the table's place."""

    data: frozenset[str] = frozenset()
    deletes: frozenset[str] = frozenset()
    has_equality_deletes: bool = False
    spec_ids: frozenset[int] = frozenset()
    elsewhere: frozenset[str] = frozenset()


def survey(view: TableView) -> Survey:
    """Look through all manifests of the view's snapshot."""
    if view.snapshot is None:
        return Survey()
    io, location = view.table.io, view.table.location()
    manifests = view.snapshot.manifests(io)
    parts = [_KNOWN.look(manifest, io, location) for manifest in manifests]
    lists = {view.snapshot.manifest_list, *(manifest.manifest_path for manifest in manifests)}
    return Survey(
        data=frozenset().union(*(part.data for part in parts)),
        deletes=frozenset().union(*(part.deletes for part in parts)),
        has_equality_deletes=any(part.has_equality_deletes for part in parts),
        spec_ids=frozenset(manifest.partition_spec_id for manifest in manifests),
        elsewhere=_outside(lists, location).union(*(part.elsewhere for part in parts)),
    )


def _outside(paths: set[str], location: str) -> frozenset[str]:
    place = location.rstrip("/") + "/"
    return frozenset(path for path in paths if not path.startswith(place))


class _Known:
    """What was seen in the manifests that were looked at last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[str, str], Survey] = OrderedDict()

    def look(self, manifest: ManifestFile, io: FileIO, location: str) -> Survey:
        key = (manifest.manifest_path, location)
        with self._lock:
            known = self._seen.get(key)
        if known is None:
            known = _look(manifest, io, location)
        with self._lock:
            self._seen[key] = known
            self._seen.move_to_end(key)
            while len(self._seen) > _MANIFESTS_MAX:
                self._seen.popitem(last=False)
        return known


_KNOWN: Final = _Known()


def _look(manifest: ManifestFile, io: FileIO, location: str) -> Survey:
    files = [entry.data_file for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)]
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
