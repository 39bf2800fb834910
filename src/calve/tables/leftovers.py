"""What commits left that forgot snapshots: their manifests, lists of them, and data files.

Offset commits and those of a writer keep a table's snapshots few, and delete no file: that would
cost each of them a reading of manifests. Expiry finds what they left by the names of the files in
the table's directory for metadata, and the data files that only those manifests name. A change that
is under way has written manifests that nothing refers to yet: what is young is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table

from calve.errors import Corruption
from calve.tables.expiry import manifest_paths, referred_files
from calve.tables.manifests import entries_of
from calve.tables.own_files import file_name, only_own, own_metadata_files

# Longer than any change takes.
LEFTOVER_AGE: Final = timedelta(days=3)

_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_LIST: Final = re.compile(rf"snap-\d+-\d+-{_UUID}\.avro")
_MANIFEST: Final = re.compile(rf"{_UUID}-m\d+\.avro")


def find_leftovers(table: Table, *, before: datetime, needed: Collection[str]) -> list[str]:
    """The files from before a time that only forgotten snapshots needed.

    Data files first, then manifests, then lists: if deleting them is cut short, the rest is found
    again. `needed` are files to which another table refers.
    """
    # First the files, then the table: what is committed in between is seen as needed.
    old = [file.location for file in own_metadata_files(table) if file.changed_at < before]
    lists, manifests = (
        sorted(file for file in old if kind.fullmatch(file_name(file)))
        for kind in (_LIST, _MANIFEST)
    )
    if not lists and not manifests:
        return []
    table.refresh()
    io, kept = table.io, table.metadata.snapshots
    known = {file_name(path) for each in kept for path in manifest_paths(io, each)}
    manifests = [file for file in manifests if file_name(file) not in known]
    named = {path for file in manifests for path in _named(file, io)}
    if named:
        live = {file_name(path) for path in (*needed, *referred_files(io, kept))}
        named = {path for path in named if file_name(path) not in live}
    return [
        *only_own(table, named),
        *manifests,
        *(file for file in lists if file_name(file) not in known),
    ]


def _named(file: str, io: FileIO) -> list[str]:
    """The data and delete files of a manifest; none of one that was not written to its end."""
    manifest = ManifestFile.from_args(
        manifest_path=file, partition_spec_id=0, content=ManifestContent.DATA, sequence_number=0
    )
    try:
        entries = entries_of(manifest, io, discard_deleted=False)
    except Corruption:
        return []
    return [entry.data_file.file_path for entry in entries]
