"""Which snapshots go when a table that is written to again and again gets one more.

A commit costs more for each snapshot that is kept. Offset commits and those of a writer therefore
forget, in the same commit, what is beyond the table's bound. Files that nobody needs any more are
left to expiry, which finds them as `leftovers` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from calve.tables.expiry import protected_ids

SNAPSHOTS_KEPT: Final = "calve.snapshots.keep"
SNAPSHOTS_KEPT_DEFAULT: Final = 100
# A commit whose answer was lost is recognised by its snapshot, which others must not push out.
SNAPSHOTS_KEPT_MIN: Final = 10
_LEAST_KEPT: Final = "history.expire.min-snapshots-to-keep"
_AGE_KEPT: Final = "history.expire.max-snapshot-age-ms"


def snapshots_kept(metadata: TableMetadata) -> int:
    """How many snapshots the table keeps: Calve's bound, or Iceberg's own where it is more."""
    main = metadata.refs.get(MAIN_BRANCH)
    wanted = _number(metadata.properties, SNAPSHOTS_KEPT, SNAPSHOTS_KEPT_DEFAULT)
    least = (main.min_snapshots_to_keep if main else None) or 1
    return max(wanted, least, _number(metadata.properties, _LEAST_KEPT, 1), SNAPSHOTS_KEPT_MIN)


def surplus_ids(metadata: TableMetadata, kept: int, *, made_by: str = "") -> list[int]:
    """The oldest snapshots, as many as must go so that `kept` are left.

    With `made_by` only those of operations whose names begin so: the others are not ours to forget.
    None that a branch or a tag needs or wants to keep, and none that is younger than the table
    wants them to get, seen from its newest: where those are more, more are left.
    """
    ordered = sorted(
        metadata.snapshots, key=lambda each: (each.sequence_number or 0, each.timestamp_ms)
    )
    old = ordered[: max(0, len(ordered) - kept)]
    if not old:
        return []
    before_ms = ordered[-1].timestamp_ms - _number(metadata.properties, _AGE_KEPT, 0)
    protected = protected_ids(metadata).union(*_wanted(metadata, ordered[-1].timestamp_ms))
    return [
        each.snapshot_id
        for each in old
        if each.timestamp_ms <= before_ms
        and each.snapshot_id not in protected
        and _operation(each).startswith(made_by)
    ]


def bounded_metadata(properties: Mapping[str, str]) -> dict[str, str]:
    """What a table needs so that its old metadata files go too, where nobody has said so or not."""
    name = TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED
    return {} if name in properties else {name: "true"}


def _operation(snapshot: Snapshot) -> str:
    return (snapshot.summary.get("calve.operation") if snapshot.summary else None) or ""


def _wanted(metadata: TableMetadata, newest_ms: int) -> Iterator[set[int]]:
    """What each branch is to keep by its own settings, if it has any."""
    for ref in metadata.refs.values():
        if ref.snapshot_ref_type is SnapshotRefType.BRANCH:
            yield _wanted_by(ref, metadata, newest_ms)


def _wanted_by(ref: SnapshotRef, metadata: TableMetadata, newest_ms: int) -> set[int]:
    if ref.min_snapshots_to_keep is None and ref.max_snapshot_age_ms is None:
        return set()
    head = metadata.snapshot_by_id(ref.snapshot_id)
    line = list(ancestors_of(head, metadata)) if head else []
    since_ms = newest_ms - ref.max_snapshot_age_ms if ref.max_snapshot_age_ms else newest_ms
    return {
        each.snapshot_id
        for place, each in enumerate(line)
        if place < (ref.min_snapshots_to_keep or 0) or each.timestamp_ms > since_ms
    }


def _number(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else default
