"""How far a table has come in the log of each partition, as its properties and snapshots say it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final
from uuid import UUID

import msgspec
from pyiceberg.table import Table

from calve.errors import Corruption

_COMMITTED: Final = "calve.committed."
_RANGE: Final = "calve.range."
_RANGE_TEXT: Final = re.compile(r"(\d+)-(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Position:
    """The end of what is in a table of one partition's log, and the snapshot that brought it there.

    `checksum` is that of the last frame before `offset`; empty if it is not known.
    """

    log: UUID
    offset: int
    checksum: str
    snapshot_id: int


def committed_position(table: Table, partition: int) -> Position | None:
    """How far the table has come; None if nothing of the partition was ever committed."""
    name = f"{_COMMITTED}{partition}"
    text = table.properties.get(name)
    return None if text is None else _parsed(table, name, text)


def committed_positions(table: Table) -> dict[int, Position]:
    """The same for every partition."""
    partitions = sorted(
        int(name.removeprefix(_COMMITTED))
        for name in table.properties
        if name.startswith(_COMMITTED) and name.removeprefix(_COMMITTED).isdecimal()
    )
    found = ((each, committed_position(table, each)) for each in partitions)
    return {partition: position for partition, position in found if position is not None}


def committed_at(table: Table, position: Position) -> datetime | None:
    """When it was reached; None if that snapshot has been expired."""
    snapshot = table.snapshot_by_id(position.snapshot_id)
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC) if snapshot else None


def position_property(partition: int, position: Position) -> dict[str, str]:
    """The property that holds it."""
    value = _Value(position.log, position.offset, position.checksum, str(position.snapshot_id))
    return {f"{_COMMITTED}{partition}": msgspec.json.encode(value).decode()}


def has_positions(table: Table) -> bool:
    """Whether anything was ever committed with its offset, of whichever partition."""
    return any(name.startswith(_COMMITTED) for name in table.properties)


def differ(checksum: str, other: str) -> bool:
    """Whether two checksums are of different rows; an empty one is not known."""
    return bool(checksum and other) and checksum != other


def range_summary(partition: int, start: int, end: int) -> dict[str, str]:
    """What the snapshot of a commit says about its range."""
    return {f"{_RANGE}{partition}": f"{start}-{end}"}


def summarised_range(summary: Mapping[str, str], partition: int) -> tuple[int, int] | None:
    """The range that a snapshot brought, if it brought one of this partition."""
    found = _RANGE_TEXT.fullmatch(summary.get(f"{_RANGE}{partition}", ""))
    return (int(found[1]), int(found[2])) if found else None


class _Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    log: UUID
    offset: Annotated[int, msgspec.Meta(ge=0)]
    checksum: str
    snapshot: Annotated[str, msgspec.Meta(pattern=r"^\d{1,19}$")]


def _parsed(table: Table, name: str, text: str) -> Position:
    try:
        value = msgspec.json.decode(text, type=_Value)
    except msgspec.MsgspecError as error:
        raise Corruption(
            f"{'.'.join(table.name())}: the property {name} cannot be read: {error}: {text}",
            hint="set the property back to what it was, with Spark's ALTER TABLE: the metadata "
            "file before this one has it, and `calve table query` with --where on _calve_offset "
            "shows which rows the table has",
            context={"property": name, "value": text},
        ) from error
    return Position(value.log, value.offset, value.checksum, int(value.snapshot))
