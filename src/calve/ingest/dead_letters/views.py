"""Dead letters as plain data: what is asked for, and what is answered.

A contract: fields are added, never renamed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, TypedDict

import msgspec

from calve.errors import InvalidRequest

OFFSET_MAX: Final = (1 << 63) - 1
PARTITION_MAX: Final = (1 << 31) - 1
LIMIT_DEFAULT: Final = 100
LIMIT_MAX: Final = 10_000
_TEXT_MAX: Final = 10_000
_ENDS_MAX: Final = 1_000

Partition = Annotated[int, msgspec.Meta(ge=0, le=PARTITION_MAX)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]
Ends = Annotated[dict[Partition, Offset], msgspec.Meta(max_length=_ENDS_MAX)]


class Selection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All dead letters, or those for which everything holds that is given.

    `reason` is a part of the reason, `offsets` such as `5,10-20,300-`. Times without a zone
    are UTC.
    """

    # An empty one would mean all of them.
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=_TEXT_MAX)] | None = None
    offsets: Annotated[str, msgspec.Meta(max_length=_TEXT_MAX)] | None = None
    partition: Partition | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def plain(self) -> Selection:
        """The selection alone, of what says more."""
        return Selection(
            reason=self.reason,
            offsets=self.offsets,
            partition=self.partition,
            since=self.since,
            until=self.until,
        )


class Wish(Selection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be done to some dead letters, or to `all`.

    `ends` are those that an earlier answer to the same wish told.
    """

    all: bool = False
    dry_run: bool = False
    give_up: bool = False
    ends: Ends | None = None

    @property
    def selection(self) -> Selection:
        """Which are meant; InvalidRequest if that is not clear."""
        found = self.plain
        require_meant(found, everything=self.all)
        return found


class Filters(TypedDict, total=False):
    """The same for programs; `all` has to be said where nothing else is and rows would go."""

    all: bool
    reason: str | None
    offsets: str | None
    partition: int | None
    since: datetime | str | None
    until: datetime | str | None


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A row that was set aside, without its contents."""

    partition: int
    offset: int
    ingested_at: datetime | None
    reason: str
    content_type: str


class ReasonCount(msgspec.Struct, frozen=True, kw_only=True):
    reason: str
    count: int


class LetterList(msgspec.Struct, frozen=True, kw_only=True):
    """How many there are, and why; then the first of them by offset.

    Of very many reasons the rarest are counted together in `other_reasons`.
    """

    topic: str
    count: int
    reasons: list[ReasonCount]
    other_reasons: int
    letters: list[Letter]


class LetterView(msgspec.Struct, frozen=True, kw_only=True):
    """A row that was set aside. Of a text that is too long, `text` is the beginning.

    `values` are the rows of an Arrow stream; `base64` is the original where it is neither.
    """

    topic: str
    partition: int
    offset: int
    ingested_at: datetime | None
    reason: str
    content_type: str
    size_bytes: int
    is_whole: bool
    text: str | None = None
    values: list[dict[str, Any]] | None = None
    base64: bytes | None = None


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What became of dead letters: rows of the topic, or dead letters again at new offsets.

    `is_done` if no more are meant. `ends` are those of what was meant at the beginning, by
    partition, so that what is set aside again is not replayed again by the same wish.
    """

    topic: str
    rows: int
    rejected: int
    reasons: list[str]
    is_done: bool
    ends: dict[int, int]
    dry_run: bool = False


class Discarded(msgspec.Struct, frozen=True, kw_only=True):
    """How many dead letters are gone, or would be."""

    topic: str
    count: int
    is_done: bool
    ends: dict[int, int]
    dry_run: bool = False


def require_meant(selection: Selection, *, everything: bool) -> None:
    """Refuse to take all of them for meant because nothing was said."""
    if everything == (selection != Selection()):
        raise InvalidRequest(
            "it is not clear which dead letters are meant",
            hint="name them by reason, offsets, partition or time, or say all (--all, all=True); "
            "not both",
        )
