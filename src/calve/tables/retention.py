"""Which snapshots go when a table that is fed all the time gets one more.

A commit costs more for each snapshot that is kept. The offset commit therefore forgets, in the same
commit, what is beyond the table's bound. Files that nobody needs any more are left to expiry and to
orphan removal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH

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


def surplus_ids(metadata: TableMetadata, kept: int) -> list[int]:
    """The oldest snapshots, as many as must go so that `kept` are left.

    None that a branch or a tag needs, and none that is younger than the table wants them to get,
    seen from its newest: where those are more, more are left.
    """
    ordered = sorted(
        metadata.snapshots, key=lambda each: (each.sequence_number or 0, each.timestamp_ms)
    )
    old = ordered[: max(0, len(ordered) - kept)]
    if not old:
        return []
    before_ms = ordered[-1].timestamp_ms - _number(metadata.properties, _AGE_KEPT, 0)
    protected = protected_ids(metadata)
    return [
        each.snapshot_id
        for each in old
        if each.timestamp_ms <= before_ms and each.snapshot_id not in protected
    ]


def _number(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else default
