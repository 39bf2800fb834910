"""Which offsets were removed from a table on purpose, so that `verify` can tell them from missing.

A table that a topic feeds has them in its properties, `calve.removed.<partition>`, and a snapshot
that removed some has those in its summary under the same name. A property changes only together
with a snapshot; the summary's `calve.recorded` says which snapshots' removals went into it: `self`,
or the ids of others, which somebody committed who knows nothing of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from calve.errors import Corruption
from calve.tables.ranges import Ranges
from calve.tables.runs import Runs

REMOVED: Final = "calve.removed."
RECORDED: Final = "calve.recorded"
_SELF: Final = "self"


@dataclass(frozen=True, slots=True)
class Removals:
    """The removed offsets of each partition."""

    by_partition: Mapping[int, Ranges] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of_runs(cls, runs: Mapping[int, Runs]) -> Removals:
        return cls._of({partition: Ranges.of_runs(each) for partition, each in runs.items()})

    @classmethod
    def parse(cls, properties: Mapping[str, str]) -> Removals:
        """Those of a table's properties, or of a snapshot's summary."""
        return cls._of(
            {
                _partition(key): _ranges(key, text)
                for key, text in properties.items()
                if key.startswith(REMOVED)
            }
        )

    @classmethod
    def _of(cls, ranges: Mapping[int, Ranges]) -> Removals:
        return cls(MappingProxyType({key: ranges[key] for key in sorted(ranges) if ranges[key]}))

    @property
    def count(self) -> int:
        return sum(each.count for each in self.by_partition.values())

    def ranges(self, partition: int) -> Ranges:
        return self.by_partition.get(partition, Ranges())

    def merged(self, other: Removals) -> Removals:
        """Both; they speak of different offsets."""
        partitions = {*self.by_partition, *other.by_partition}
        return self._of({each: self.ranges(each).merged(other.ranges(each)) for each in partitions})

    def without(self, returned: Mapping[int, Runs]) -> Removals:
        """What is left when these offsets are in the table again."""
        left = {
            each: ranges.without(returned.get(each, Runs.empty()))
            for each, ranges in self.by_partition.items()
        }
        return self._of(left)

    def below(self, partition: int, end: int) -> Removals:
        """Without what a partition has from an offset on."""
        return self._of({**self.by_partition, partition: self.ranges(partition).below(end)})

    def entries(self) -> dict[str, str]:
        """As a table's properties and a snapshot's summary have them."""
        return {f"{REMOVED}{key}": str(ranges) for key, ranges in self.by_partition.items()}

    def changed_from(self, before: Removals) -> dict[str, str]:
        """The properties that take a table from one state to this; none is ever taken away."""
        gone = {
            f"{REMOVED}{key}": "" for key in before.by_partition if key not in self.by_partition
        }
        known = before.entries()
        return gone | {key: text for key, text in self.entries().items() if known.get(key) != text}

    def __bool__(self) -> bool:
        return bool(self.by_partition)


def recorded(*others: int) -> dict[str, str]:
    """For the summary of a snapshot that records its own removals and those of others."""
    return {RECORDED: ",".join((_SELF, *map(str, others)))}


def recorded_ids(snapshots: Iterable[tuple[int, Mapping[str, str]]]) -> set[int]:
    """The snapshots, of some with their summaries, whose removals the table's properties have."""
    found: set[int] = set()
    for snapshot_id, summary in snapshots:
        for text in summary.get(RECORDED, "").split(","):
            if text == _SELF:
                found.add(snapshot_id)
            elif text.isdecimal():
                found.add(int(text))
    return found


def _partition(key: str) -> int:
    text = key.removeprefix(REMOVED)
    if not (text.isascii() and text.isdecimal()):
        raise _unreadable(key, f"{text!r} is no partition")
    return int(text)


def _ranges(key: str, text: str) -> Ranges:
    try:
        return Ranges.parse(text)
    except ValueError as error:
        raise _unreadable(key, str(error)) from error


def _unreadable(key: str, reason: str) -> Corruption:
    return Corruption(
        f"{key}, which says what was removed from the table, is unreadable: {reason}",
        hint="set the table's property to what the summary of its newest snapshots or an older "
        "metadata file says, such as '0-100,200-300'",
        context={"property": key},
    )
