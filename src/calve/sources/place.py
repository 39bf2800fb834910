"""Where the rows of a partition's log are, as plain data that any Python can unpack."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

import msgspec

from calve.model import TableName
from calve.protocol import LogRange


class TlsWay(msgspec.Struct, frozen=True, kw_only=True):
    """How services are called over TLS: whom to trust, and what to show.

    What is shown is read where it is used: a key goes nowhere.
    """

    authorities: bytes | None = None  # in PEM: trusted beside the machine's own
    cert_file: str | None = None
    key_file: str | None = None


class LogPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where the log of a partition is: on a disk that may be shared, and behind a service."""

    log_id: UUID
    stream_id: UUID
    directory: str
    flight: str | None = None  # where to ask for rows if the directory does not hold that log
    tls: TlsWay | None = None  # how to ask there, if it is over TLS


class LogSpan(NamedTuple):
    """The offsets from `start` up to `end` of one partition of a topic, and where they are.

    `ticket` is a signed one for them, if whoever reads has no token of its own.
    """

    topic: TableName
    partition: int
    place: LogPlace
    start: int
    end: int
    ticket: bytes = b""

    @property
    def range(self) -> LogRange:
        """What a service is asked for."""
        return LogRange(
            topic=self.topic.full,
            partition=self.partition,
            stream=self.place.stream_id,
            from_=self.start,
            to=self.end,
            form="frames",
        )
