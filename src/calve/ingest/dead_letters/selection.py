"""Which dead letters are meant: by reason, offset, partition and time."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Final, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from calve.errors import InvalidRequest
from calve.tables.dead_letters import INGESTED_AT
from calve.tables.offset_scan import OFFSET, PARTITION
from calve.tables.runs import Runs
from calve.tables.snapshots import parse_moment

if TYPE_CHECKING:
    from collections.abc import Mapping

OFFSET_MAX: Final = (1 << 63) - 1
_TEXT_MAX: Final = 10_000
_PARTITION_MAX: Final = (1 << 31) - 1
_RANGE: Final = re.compile(r"(\d{1,19})(-(\d{0,19}))?", re.ASCII)
_HINT: Final = "write numbers and ranges, such as 5,10-20,300-: the end of a range is not in it"


class Selection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All dead letters, or those for which everything holds that is given.

    `reason` is a part of the reason, `offsets` such as `5,10-20,300-`. Times without a zone
    are UTC.
    """

    reason: Annotated[str, msgspec.Meta(max_length=_TEXT_MAX)] | None = None
    offsets: Annotated[str, msgspec.Meta(max_length=_TEXT_MAX)] | None = None
    partition: Annotated[int, msgspec.Meta(ge=0, le=_PARTITION_MAX)] | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def runs(self) -> Runs | None:
        """The offsets, if they are limited; InvalidRequest if they make no sense."""
        return None if self.offsets is None else offset_runs_of(self.offsets)

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that have to be known of a row to tell whether it is meant."""
        more = {"reason": self.reason, INGESTED_AT: self.since or self.until}
        return (PARTITION, OFFSET, *(name for name, given in more.items() if given is not None))

    def matching(
        self, rows: pa.RecordBatch, ends: Mapping[int, int] | None = None
    ) -> pa.RecordBatch:
        """The rows that are meant, and lie before the end of their partition, if these are given.

        A row without an offset, which somebody has put in by hand, is never meant.
        """
        masks = [rows.column(OFFSET).is_valid(), rows.column(PARTITION).is_valid()]
        if self.partition is not None:
            masks.append(pc.equal(rows.column(PARTITION), self.partition))
        if (runs := self.runs) is not None:
            offsets = rows.column(OFFSET).fill_null(-1).to_numpy()
            masks.append(pa.array(runs.holding(offsets)))
        if self.reason is not None:
            masks.append(pc.match_substring(rows.column("reason"), self.reason))
        if self.since is not None:
            masks.append(pc.greater_equal(rows.column(INGESTED_AT), _moment(self.since)))
        if self.until is not None:
            masks.append(pc.less(rows.column(INGESTED_AT), _moment(self.until)))
        if ends is not None:
            masks.append(_before(rows, ends))
        mask = masks[0]
        for each in masks[1:]:
            mask = pc.and_(mask, each)
        return rows.filter(mask.fill_null(False))  # noqa: FBT003


class Filters(TypedDict, total=False):
    """The same for programs; `all` has to be said where nothing else is and rows would go."""

    all: bool
    reason: str | None
    offsets: str | None
    partition: int | None
    since: datetime | str | None
    until: datetime | str | None


def selected(filters: Filters) -> Selection:
    since, until = filters.get("since"), filters.get("until")
    return Selection(
        reason=filters.get("reason"),
        offsets=filters.get("offsets"),
        partition=filters.get("partition"),
        since=parse_moment(since) if isinstance(since, str) else since,
        until=parse_moment(until) if isinstance(until, str) else until,
    )


def require_meant(selection: Selection, *, everything: bool) -> None:
    """Refuse to take all of them for meant because nothing was said."""
    if everything == (selection != Selection()):
        raise InvalidRequest(
            "it is not clear which dead letters are meant",
            hint="name them by reason, offsets, partition or time, or say all (--all, all=True); "
            "not both",
        )


@lru_cache(maxsize=8)
def offset_runs_of(text: str) -> Runs:
    """Offsets as people write them: `5,10-20,300-`."""
    pairs = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        if found is None:
            raise InvalidRequest(f"{part.strip()!r} is no range of offsets", hint=_HINT)
        first = int(found[1])
        end = first + 1 if found[2] is None else int(found[3] or OFFSET_MAX)
        if not first < end <= OFFSET_MAX:
            raise InvalidRequest(f"{part.strip()!r} is no range of offsets", hint=_HINT)
        pairs.append((first, end))
    return Runs.of_pairs(sorted(pairs))


def _before(rows: pa.RecordBatch, ends: Mapping[int, int]) -> pa.Array:
    mask = pa.repeat(pa.scalar(False), rows.num_rows)  # noqa: FBT003
    for partition, end in ends.items():
        inside = pc.and_(
            pc.equal(rows.column(PARTITION), partition), pc.less(rows.column(OFFSET), end)
        )
        mask = pc.or_(mask, inside)
    return mask


def _moment(given: datetime) -> pa.Scalar:
    zoned = given if given.tzinfo else given.replace(tzinfo=UTC)
    return pa.scalar(zoned, pa.timestamp("us", "UTC"))
