"""What the state keeps of subscriptions and of followers of tables that no topic feeds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from calve.errors import InvalidRequest
from calve.model import TableName

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)


class SubscriptionName(NamedTuple):
    """A subscription of a topic; one of another topic may have the same name."""

    topic: TableName
    name: str

    @classmethod
    def parse(cls, topic: TableName, name: str) -> SubscriptionName:
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"{name!r} is not a name for a subscription",
                hint="write 1 to 63 of a-z, A-Z, 0-9, ., _ and -, beginning and ending with a "
                "letter or a digit",
            )
        return cls(topic, name)

    def __str__(self) -> str:
        return f"{self.name} of {self.topic}"


class Subscription(NamedTuple):
    """As it is kept. What is acknowledged under an earlier generation does not count.

    `topic_id` tells a topic from a later one of the same name.
    """

    name: SubscriptionName
    topic_id: UUID
    generation: int
    created_at: datetime
    owner: str | None = None  # who has it at present
    until: datetime | None = None


class SubscriptionClaim(NamedTuple):
    """The right to consume a subscription. A later claim has a greater token, whoever's it is.

    `succeeded` is the token of the owner before, if the claim named it: nobody else was between.
    """

    name: SubscriptionName
    owner: str
    token: int
    generation: int
    succeeded: int | None = None


class Follower(NamedTuple):
    """Somebody who follows a table's snapshots, and the last one that is done with, if any is.

    What comes after it is to stay until then; None if that time is over.
    """

    table: TableName
    name: str
    snapshot_id: int | None
    at: datetime
    until: datetime | None = None


Positions = Mapping[int, int]  # by partition: the offset below which everything is acknowledged
