"""A round of a replay, written down in the dead-letter table before its first row is sent.

The property `calve.replay` names the rows, the stream that they go to and, by the round's id, the
producers under which they are sent: whoever goes on with a round sends under the same ones, so that
the log takes each chunk once. The commit that removes the rows takes the property back. There is
never more than one round at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

import msgspec

from calve.errors import Corruption
from calve.tables.ranges import Ranges
from calve.tables.runs import Runs

if TYPE_CHECKING:
    from collections.abc import Mapping

REPLAY: Final = "calve.replay"
Count = Annotated[int, msgspec.Meta(ge=0)]


class Chunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dead letters of one partition, which are one append."""

    partition: Count
    offsets: str

    @property
    def runs(self) -> Runs:
        return Runs.of_pairs((each.first, each.end) for each in Ranges.parse(self.offsets))


class Round(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is on its way back, and where to."""

    id: UUID
    stream: UUID
    to_partition: Count
    chunks: tuple[Chunk, ...]

    def producer(self, number: int) -> str:
        """Who sends a chunk; what it sends has the sequence 0."""
        return f"calve-replay-{self.id}-{number}"

    @property
    def offsets(self) -> dict[int, Runs]:
        found: dict[int, Runs] = {}
        for chunk in self.chunks:
            before = found.get(chunk.partition, Runs.empty())
            found[chunk.partition] = before.union(chunk.runs)
        return found

    def entry(self) -> dict[str, str]:
        """The property that holds it."""
        return {REPLAY: msgspec.json.encode(self).decode()}


NO_ROUND: Final = {REPLAY: ""}


def round_under_way(properties: Mapping[str, str]) -> Round | None:
    """The round that a dead-letter table names; Corruption if it cannot be read."""
    text = properties.get(REPLAY, "")
    if not text:
        return None
    try:
        found = msgspec.json.decode(text, type=Round)
        for chunk in found.chunks:
            _ = chunk.runs
    except (msgspec.MsgspecError, ValueError) as error:
        raise Corruption(
            f"{REPLAY}, which says what is being replayed, is unreadable: {error}",
            hint="set the table's property to what the metadata file before this one says; set to "
            "an empty text, rows that were sent already would be sent again",
            context={"property": REPLAY, "value": text},
        ) from error
    return found
