"""Who a log is, and whether it belongs to what somebody else remembers of it.

`log.json` holds the log's id and a mark of the place where it was made, so that a copy is not
taken for the original. Each stream has an id of its own, which the registry and the table keep.
A backup restored below the file system, block by block, looks like the original; then only a
committed offset beyond the log's end tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from calve.errors import Conflict, Corruption
from calve.wal.durable import write_all
from calve.wal.frame import VERSION
from calve.wal.layout import LogLayout, temporary

if TYPE_CHECKING:
    from calve.wal.files import Files
    from calve.wal.state import Stream


class LogIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    log_id: UUID
    place: str
    format_version: int = VERSION
    created_at: datetime


def write_identity(files: Files, layout: LogLayout, identity: LogIdentity) -> None:
    """Replace the file whole. The caller syncs the directory."""
    draft = temporary(layout.identity)
    if files.exists(draft):
        files.unlink(draft)
    file = files.create(draft)
    try:
        write_all(file, 0, msgspec.json.format(msgspec.json.encode(identity), indent=2) + b"\n")
        file.sync()
    finally:
        file.close()
    files.rename(draft, layout.identity)


def read_identity(files: Files, layout: LogLayout) -> LogIdentity:
    try:
        return msgspec.json.decode(files.read(layout.identity), type=LogIdentity)
    except (FileNotFoundError, ValueError, msgspec.MsgspecError) as error:
        raise Corruption(
            f"{layout.identity} is unreadable: {error}",
            hint="`calve wal repair --identity` writes it again from what the segments say",
            context={"file": str(layout.identity)},
        ) from error


def require_same_place(files: Files, layout: LogLayout, identity: LogIdentity) -> None:
    if files.place(layout.lock) != identity.place:
        raise Conflict(
            f"{layout.root} is a copy of log {identity.log_id}, not the log itself",
            hint="if the original is gone for good, `calve wal repair --adopt` makes this one "
            "take its place; rows acknowledged after the copy was made are not in it",
            context={"log_id": str(identity.log_id)},
        )


def require_log(layout: LogLayout, found: UUID, expected: UUID) -> None:
    if found != expected:
        raise Conflict(
            f"{layout.root} holds log {found}, but log {expected} was expected",
            hint="bring back the directory that belongs here; if it is lost, move this one aside "
            "and open a new log: `Log.create_stream` begins a topic where its table's rows end",
            context={"found": str(found), "expected": str(expected)},
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """What a registry or a table remembers of a stream."""

    stream_id: UUID
    committed: int | None = None
    content_sum: int | None = None  # of the frame that the committed offset ends


def require_stream(stream: Stream, claim: Claim, *, first: int, durable: int) -> None:
    """Raise Conflict unless the stream can be the one that the claim speaks of."""
    context = {"found": str(stream.id), "expected": str(claim.stream_id)}
    if stream.id != claim.stream_id:
        raise Conflict(
            f"{stream.name} is stream {stream.id} in the log, but {claim.stream_id} was expected",
            hint="the topic was deleted and made again, or this is another topic's log; `calve wal "
            "inspect` shows what it holds. Bring back the log that was expected, or what was made "
            "with this one",
            context=context,
        )
    if claim.committed is None:
        return
    if claim.committed > durable:
        raise Conflict(
            f"{stream.name} has {claim.committed} as committed offset, but its log ends at "
            f"{durable}: the log is older than the table",
            hint=f"`calve wal repair {stream.topic} --partition {stream.partition} --accept-loss "
            f"{durable}..{claim.committed}` records that those offsets are not in this log",
            context=context | {"committed": str(claim.committed), "durable": str(durable)},
        )
    if claim.committed < first:
        raise Conflict(
            f"{stream.name} has {claim.committed} as committed offset, but its log begins at "
            f"{first}: the table is older than the log",
            hint="restore the newer table: the rows between are in no log; `calve wal dump "
            f"{stream.topic} --from {first}` shows what the log still holds",
            context=context | {"committed": str(claim.committed), "first": str(first)},
        )
