"""Spares PyIceberg's copies of what never changes: a table's snapshots, and the logs about them.

At each commit it copies the whole metadata, and most of that are snapshots, which are frozen: they
stand for their own copies. The mend is for the whole process.
"""

from __future__ import annotations

from typing import TypeVar

from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry

_T = TypeVar("_T")


def spare_copies() -> None:
    """Have them copied no more; once is enough."""
    for kind in (Snapshot, SnapshotLogEntry, MetadataLogEntry):
        kind.__deepcopy__ = _itself  # type: ignore[method-assign, assignment]


def _itself(frozen: _T, _memo: object = None) -> _T:
    return frozen
