"""Which dead letters are meant: by reason, offset, partition and time."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from calve.errors import InvalidRequest
from calve.ingest.dead_letters.views import OFFSET_MAX, Filters, Selection
from calve.tables.columns import OFFSET, PARTITION
from calve.tables.dead_letters import INGESTED_AT
from calve.tables.runs import Runs
from calve.tables.snapshots import parse_moment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_RANGE: Final = re.compile(r"(\d{1,19})(-(\d{0,19}))?", re.ASCII)
_HINT: Final = "write numbers and ranges, such as 5,10-20,300-: the end of a range is not in it"


class Matcher:
    """Tells which rows are meant; with `ends`, only those before the end of their partition.

    InvalidRequest if the selection makes no sense.
    """

    def __init__(self, selection: Selection, ends: Mapping[int, int] | None = None) -> None:
        self._selection = selection
        self._ends = ends
        self._since = _moment(selection.since)
        self._until = _moment(selection.until)
        self.runs = None if selection.offsets is None else runs_of(selection.offsets)

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that have to be known of a row."""
        timed = self._since is not None or self._until is not None
        more = {"reason": self._selection.reason is not None, INGESTED_AT: timed}
        return (PARTITION, OFFSET, *(name for name, is_used in more.items() if is_used))

    def matching(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are meant; one without an offset, put in by hand, never is."""
        mask = pc.and_(rows.column(OFFSET).is_valid(), rows.column(PARTITION).is_valid())
        for each in self._masks(rows):
            mask = pc.and_(mask, each)
        return rows.filter(mask.fill_null(False))  # noqa: FBT003

    def _masks(self, rows: pa.RecordBatch) -> Iterator[pa.Array]:
        wanted = self._selection
        if wanted.partition is not None:
            yield pc.equal(rows.column(PARTITION), wanted.partition)
        if self.runs is not None:
            yield pa.array(self.runs.holding(rows.column(OFFSET).fill_null(-1).to_numpy()))
        if wanted.reason is not None:
            yield pc.match_substring(rows.column("reason"), wanted.reason)
        if self._since is not None:
            yield pc.greater_equal(rows.column(INGESTED_AT), self._since)
        if self._until is not None:
            yield pc.less(rows.column(INGESTED_AT), self._until)
        if self._ends is not None:
            yield _before(rows, self._ends)


def selected(filters: Filters) -> Selection:
    """The selection that the filters mean; InvalidRequest if they make no sense."""
    given = {key: value for key, value in filters.items() if key != "all"}
    for key in ("since", "until"):
        if isinstance(text := given.get(key), str):
            given[key] = _parsed(text)
    try:
        return msgspec.convert(given, Selection)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from error


def _parsed(text: str) -> datetime:
    try:
        return parse_moment(text)
    except OverflowError as error:
        raise InvalidRequest(f"{text!r} is not a time", hint="give one of this age") from error


def runs_of(text: str) -> Runs:
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


def _moment(given: datetime | None) -> pa.Scalar | None:
    if given is None:
        return None
    zoned = given if given.tzinfo else given.replace(tzinfo=UTC)
    try:
        return pa.scalar(zoned.astimezone(UTC), pa.timestamp("us", "UTC"))
    except OverflowError as error:
        raise InvalidRequest(f"{given} is not a time", hint="give one of this age") from error
