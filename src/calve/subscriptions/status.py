"""Where a subscription is, as those who look after it want to know."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from calve.errors import NotFound
from calve.tables.nearest import meant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from calve.state import State, SubscriptionName


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """`positions` are the offsets that come next; `ends` where the partitions of the topic end.

    Without `ends` the topic could not be looked at, or is another one by now.
    """

    topic: str
    name: str
    positions: Mapping[int, int]
    ends: Mapping[int, int]
    owner: str | None
    owned_until: datetime | None
    created_at: datetime

    @classmethod
    def of(
        cls, state: State, name: SubscriptionName, ends: Mapping[int, int]
    ) -> SubscriptionStatus:
        found = state.subscription(name)
        if found is None:
            raise unknown(state, name)
        return cls(
            topic=str(name.topic),
            name=name.name,
            positions=state.positions(name),
            ends=dict(ends),
            owner=found.owner,
            owned_until=found.until,
            created_at=found.created_at,
        )

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> SubscriptionStatus:
        """What `document` made."""
        until, partitions = document["owned_until"], document["partitions"]
        ends = {each["partition"]: each["end"] for each in partitions}
        return cls(
            topic=document["topic"],
            name=document["name"],
            positions={each["partition"]: each["position"] for each in partitions},
            ends={p: end for p, end in ends.items() if end is not None},
            owner=document["owner"],
            owned_until=None if until is None else datetime.fromisoformat(until),
            created_at=datetime.fromisoformat(document["created_at"]),
        )

    @property
    def lag(self) -> int:
        """How many offsets are not acknowledged, of all partitions."""
        return sum(max(0, end - self.positions.get(p, 0)) for p, end in self.ends.items())

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "topic": self.topic,
            "name": self.name,
            "partitions": [
                {
                    "partition": partition,
                    "position": self.positions.get(partition, 0),
                    "end": self.ends.get(partition),
                }
                for partition in sorted({*self.positions, *self.ends})
            ],
            "lag": self.lag if self.ends else None,
            "owner": self.owner,
            "owned_until": self.owned_until.isoformat() if self.owned_until else None,
            "created_at": self.created_at.isoformat(),
        }


def unknown(state: State, name: SubscriptionName) -> NotFound:
    others = [each.name.name for each in state.subscriptions(name.topic)]
    return NotFound(
        f"there is no subscription {name}{meant(name.name, others)}",
        hint=f"`calve subscription list {name.topic}` shows those that there are",
    )
