"""Where in a topic's table rows with a certain text can be: ranges of offsets.

Of columns with bloom filters, each file's filter tells whether it may have the text. Files cover
ranges of offsets, which their manifests know, so that a query over these ranges alone opens no
other file. A table with rows that have no offset is not narrowed down so.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFileContent, ManifestContent
from pyiceberg.types import LongType, StringType
from pyiceberg.utils.concurrent import ExecutorFactory

from calve.errors import CalveError
from calve.tables.bloom import may_hold, read_filters
from calve.tables.columns import OFFSET
from calve.tables.manifests import entries_of, manifests_of
from calve.tables.parquet_options import BLOOM

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestFile

    from calve.tables.filter_store import FilterStore
    from calve.tables.views import TableView

# Below, a reader has opened the files before anybody has chosen among them.
_FILES_MIN: Final = 4
# So many filters are read for one question at most; of the other files the next one reads some.
_READ_MAX: Final = 2_000
# Each is planned by itself, so that a few files more are better than many ranges.
_RANGES_MAX: Final = 6
_MANIFESTS_MAX: Final = 2_000


class OffsetRange(NamedTuple):
    """From the first offset to the last one."""

    first: int
    last: int


class _File(NamedTuple):
    path: str
    offsets: OffsetRange | None  # None if some row has no offset, or nobody knows


def filtered_columns(view: TableView) -> dict[str, int]:
    """Columns of text with filters, their names in lower case, and their ids."""
    properties = view.table.properties
    return {
        field.name.lower(): field.field_id
        for field in view.schema.fields
        if isinstance(field.field_type, StringType)
        and properties.get(f"{BLOOM}{field.name}", "").lower() == "true"
    }


def partitioned_by(view: TableView) -> frozenset[str]:
    """Columns whose values say in which partition a row is, their names in lower case."""
    sources = {field.source_id for field in view.table.spec().fields}
    return frozenset(each.name.lower() for each in view.schema.fields if each.field_id in sources)


def ranges_with(
    view: TableView, sought: Mapping[str, frozenset[str]], store: FilterStore
) -> list[OffsetRange] | None:
    """Offsets outside of which no row has one of the texts in each column, by lower-case names.

    None if that cannot be told, or not with less work than reading the table.
    """
    columns = filtered_columns(view)
    wanted = {columns[name]: texts for name, texts in sought.items() if name in columns}
    files = _files(view) if wanted else []
    if len(files) < _FILES_MIN:
        return None
    for field_id, texts in wanted.items():
        filters = _filters([file.path for file in files], field_id, view.table.io, store)
        files = [file for file in files if may_hold(filters.get(file.path, b""), texts)]
    if not all(file.offsets for file in files):
        return None
    return _merged([file.offsets for file in files if file.offsets])


def _filters(paths: list[str], field_id: int, io: FileIO, store: FilterStore) -> dict[str, bytes]:
    names = {f"{path}#{field_id}": path for path in paths}
    known = store.find(names)
    missing = [name for name in names if name not in known][:_READ_MAX]
    if missing:
        executor = ExecutorFactory.get_or_create()
        read = executor.map(lambda name: _read(io, names[name], field_id), missing)
        found = zip(missing, read, strict=True)
        new = {name: content for name, content in found if content is not None}
        store.keep(new)
        known |= new
    return {names[name]: content for name, content in known.items()}


def _read(io: FileIO, path: str, field_id: int) -> bytes | None:
    """None where the file cannot be read: whoever reads the table will meet that, if it matters."""
    try:
        return read_filters(io, path, field_id)
    except CalveError:
        return None


def _merged(ranges: list[OffsetRange]) -> list[OffsetRange]:
    """The same in order, none touching another, the narrowest gaps closed if there are too many."""
    merged: list[OffsetRange] = []
    for each in sorted(ranges):
        if merged and each.first <= merged[-1].last + 1:
            merged[-1] = OffsetRange(merged[-1].first, max(merged[-1].last, each.last))
        else:
            merged.append(each)
    while len(merged) > _RANGES_MAX:
        at = min(range(1, len(merged)), key=lambda n: merged[n].first - merged[n - 1].last)
        merged[at - 1 : at + 1] = [OffsetRange(merged[at - 1].first, merged[at].last)]
    return merged


def _files(view: TableView) -> list[_File]:
    """The data files of the view's snapshot; none if it has no column of offsets."""
    offset = next((each for each in view.schema.fields if each.name == OFFSET), None)
    if view.snapshot is None or offset is None:
        return []
    io = view.table.io
    manifests = [
        each for each in manifests_of(view.snapshot, io) if each.content == ManifestContent.DATA
    ]
    return [file for each in manifests for file in _REMEMBERED.files(each, io, offset.field_id)]


class _Remembered:
    """What the manifests that were looked at last say; they never change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[str, int], list[_File]] = OrderedDict()

    def files(self, manifest: ManifestFile, io: FileIO, offset_id: int) -> list[_File]:
        key = (manifest.manifest_path, offset_id)
        with self._lock:
            found = self._seen.get(key)
        if found is None:
            found = [_described(each.data_file, offset_id) for each in entries_of(manifest, io)]
        with self._lock:
            self._seen[key] = found
            self._seen.move_to_end(key)
            while len(self._seen) > _MANIFESTS_MAX:
                self._seen.popitem(last=False)
        return found


_REMEMBERED: Final = _Remembered()


def _described(file: DataFile, offset_id: int) -> _File:
    assert file.content == DataFileContent.DATA
    first, last = (
        (bounds or {}).get(offset_id) for bounds in (file.lower_bounds, file.upper_bounds)
    )
    nulls = (file.null_value_counts or {}).get(offset_id)
    if first is None or last is None or nulls != 0:
        return _File(file.file_path, None)
    kind = LongType()
    return _File(
        file.file_path, OffsetRange(*(int(from_bytes(kind, each)) for each in (first, last)))
    )
