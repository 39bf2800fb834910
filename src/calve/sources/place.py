"""Where the rows of a partition's log are, as plain data that any Python can unpack."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

import msgspec

from calve.model import TableName


class LogPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where the log of a partition is: on a disk that may be shared, and behind a service."""

    log_id: UUID
    stream_id: UUID
    directory: str
    flight: str | None = None  # where to ask for rows if the directory does not hold that log
    authorities: bytes | None = None  # in PEM: trusted there beside the machine's own


class LogSpan(NamedTuple):
    """The offsets from `start` up to `end` of one partition of a topic, and where they are."""

    topic: TableName
    partition: int
    place: LogPlace
    start: int
    end: int
