"""The JSON of a stream of rows over Flight: what is asked for, and what goes with each batch."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

STREAM: Final = "stream"


class StreamTicket(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ticket for the rows of a topic from a place on, and those that come.

    With a subscription, its rows; `start` counts when it is new. `resume` is the place of the last
    batch that came before a connection broke.
    """

    kind: Literal["stream"] = "stream"
    topic: str
    subscription: str | None = None
    start: str = "earliest"
    where: str | None = None
    columns: list[str] | None = None
    follow: bool = True
    lease_seconds: float = 15.0
    resume: str | None = None


class TicketKind(msgspec.Struct, frozen=True):
    """What every ticket may have; those without it are for ranges of the log."""

    kind: str = "range"


class BatchPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """With a batch: where it is from, and the place behind it, which acknowledges it.

    A batch without rows says that the stream lives; `is_over` that the next rows have other
    columns, or that there are no more.
    """

    place: str
    partition: int | None = None
    first: int | None = None
    next: int | None = None
    is_over: Literal["columns", "end"] | None = None
