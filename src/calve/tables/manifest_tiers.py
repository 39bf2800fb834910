"""Which manifests are merged, so that a table has few of them however many commits it gets.

Manifests are sorted into tiers by the number of files in them, each tier for sixteen times as many
as the one below. When a tier is full, it becomes one manifest of the next. So a file's entry is
written once per tier, where merging all manifests each time would write the whole table again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

from pyiceberg.manifest import ManifestFile

TIER_MANIFESTS_MAX: Final = 16
# Merging holds up the commit, about a second for so many.
MERGED_FILES_MAX: Final = 10_000


def full_tiers(manifests: Iterable[ManifestFile]) -> list[list[ManifestFile]]:
    """The groups of manifests that should become one each."""
    tiers: defaultdict[tuple[int, int], list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        tiers[manifest.partition_spec_id, _tier(_files(manifest))].append(manifest)
    full = (_first(tier) for tier in tiers.values() if len(tier) >= TIER_MANIFESTS_MAX)
    return [group for group in full if len(group) > 1]


def _first(tier: list[ManifestFile]) -> list[ManifestFile]:
    """As many as can be merged at once."""
    totals = accumulate(map(_files, tier))
    return [each for each, total in zip(tier, totals, strict=True) if total <= MERGED_FILES_MAX]


def _tier(files: int) -> int:
    tier = 0
    while files >= TIER_MANIFESTS_MAX:
        files //= TIER_MANIFESTS_MAX
        tier += 1
    return tier


def _files(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
