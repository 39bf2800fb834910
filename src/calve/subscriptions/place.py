"""A consumer's place as one word, which goes over the wire and comes back.

It names the owner's token, the generation of the subscription and the offsets that come next: what
an acknowledgement says, and what a stream that broke goes on from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from calve.errors import InvalidRequest

_FORM: Final = re.compile(
    r"([0-9]{1,18})-([0-9]{1,18})-((?:[0-9]{1,9}:[0-9]{1,18}(?:,[0-9]{1,9}:[0-9]{1,18})*)?)",
    re.ASCII,
)


class Place(NamedTuple):
    """Without a subscription, token and generation are 0."""

    token: int
    generation: int
    positions: Mapping[int, int]

    @classmethod
    def parse(cls, text: str) -> Place:
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise InvalidRequest(
                f"{text[:100]!r} is not the id of an event", hint="send one as the stream gave it"
            )
        token, generation, positions = found.groups()
        pairs = (each.split(":") for each in positions.split(",") if each)
        return cls(int(token), int(generation), {int(p): int(offset) for p, offset in pairs})

    def at(self, partition: int, offset: int) -> Place:
        """The same, with another offset of one partition."""
        return self._replace(positions={**self.positions, partition: offset})

    def furthest(self, other: Place) -> Place | None:
        """Up to both; None if they are of different owners or generations."""
        if other[:2] != self[:2]:
            return None
        known = {*self.positions, *other.positions}
        return self._replace(
            positions={p: max(self.positions.get(p, 0), other.positions.get(p, 0)) for p in known}
        )

    def __str__(self) -> str:
        positions = ",".join(f"{p}:{offset}" for p, offset in sorted(self.positions.items()))
        return f"{self.token}-{self.generation}-{positions}"
