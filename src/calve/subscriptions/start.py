"""Where a reader begins: with the first row, behind the last one, at an offset, or at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import pyarrow.compute as pc

from calve.errors import InvalidRequest
from calve.tables.columns import OFFSET, PARTITION
from calve.tables.reading import FileReader
from calve.tables.snapshots import as_utc, parse_moment
from calve.tables.topic_tables import INGESTED_AT

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from calve.subscriptions.stats import Counts
    from calve.tables.offset_plan import OffsetPlanner

Start: TypeAlias = Literal["earliest", "latest"] | int | Mapping[int, int] | datetime
_OFFSET: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_PLACES: Final = re.compile(r"[0-9]{1,9}:[0-9]{1,18}(,[0-9]{1,9}:[0-9]{1,18})*", re.ASCII)
_EPOCH_US: Final = 1_000_000


def checked_start(start: Start) -> Start:
    """InvalidRequest for what names no place."""
    match start:
        case "earliest" | "latest":
            return start
        case datetime():
            return as_utc(start)
        case bool():
            pass
        case int() if start >= 0:
            return start
        case Mapping() if all(_is_place(*each) for each in start.items()):
            return dict(start)
    raise InvalidRequest(
        f"{start!r} is no place to start from",
        hint='give "earliest", "latest", an offset, {partition: offset} or a datetime',
    )


def parse_start(text: str) -> Start:
    """Read `earliest`, `latest`, `1200`, `0:1200,1:800` or a time."""
    word = text.strip()
    if word in {"earliest", "latest"}:
        return "earliest" if word == "earliest" else "latest"
    if _OFFSET.fullmatch(word):
        return int(word)
    if _PLACES.fullmatch(word):
        pairs = (each.split(":") for each in word.split(","))
        return {int(partition): int(offset) for partition, offset in pairs}
    try:
        return parse_moment(word)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"{text!r} is no place to start from",
            hint="write earliest, latest, an offset such as 1200, partitions and offsets such as "
            "0:1200,1:800, or a time such as 2026-01-01T10:00:00Z",
        ) from error


def start_text(start: Start) -> str:
    """What `parse_start` reads."""
    match checked_start(start):
        case datetime() as moment:
            return moment.isoformat()
        case Mapping() as places:
            # Of no partition is what all partitions begin with.
            return ",".join(f"{p}:{offset}" for p, offset in places.items()) or "earliest"
        case other:
            return str(other)


def _is_place(partition: object, offset: object) -> bool:
    return all(
        isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in (partition, offset)
    )


def first_offset_since(
    planner: OffsetPlanner,
    table: Table,
    partition: int,
    end: int,
    moment: datetime,
    counts: Counts,
) -> int | None:
    """The first offset below `end` whose row was taken in at a time or later; None if none was.

    By the files' bounds: at most those are opened in which the row can be.
    """
    since_us = int(moment.timestamp() * _EPOCH_US)
    found: int | None = None
    for file in planner.files(table, partition, 0, end, since_us=since_us):
        if found is not None and file.first > found:
            break
        counts.add(files_opened=1, file_bytes=file.bytes)
        reader = FileReader(table, [file.task])
        where = f"{PARTITION} = {partition} and {INGESTED_AT} >= '{moment.isoformat()}'"
        for batch in reader.batches(file.task, (PARTITION, OFFSET), where=where):
            lowest = pc.min(batch.column(OFFSET)).as_py()
            found = lowest if found is None else min(found, lowest if lowest is not None else found)
    return found
