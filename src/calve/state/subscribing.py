"""The calls of a state about subscriptions and followers, whatever keeps the records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from calve.model import TableName
from calve.state import recorded_subscriptions as kept
from calve.state.subscriptions import Follower, Subscription, SubscriptionClaim, SubscriptionName
from calve.state.transactions import Transactions

_GENERATIONS: Final = "generations"


class RecordedSubscriptions(Transactions):
    """That part of a `State`; see there."""

    def create_subscription(
        self, name: SubscriptionName, topic_id: UUID, positions: Mapping[int, int]
    ) -> Subscription | None:
        return self._change(
            [_scope(name), _GENERATIONS],
            lambda found: kept.create(found, name, topic_id, positions),
            is_repeatable=False,
        )

    def subscription(self, name: SubscriptionName) -> Subscription | None:
        return self._read(lambda found: kept.find(found, name))

    def subscriptions(self, topic: TableName | None = None) -> list[Subscription]:
        return self._read(lambda found: kept.all_of(found, topic))

    def positions(self, name: SubscriptionName) -> dict[int, int]:
        return self._read(lambda found: kept.positions(found, name))

    def delete_subscription(self, name: SubscriptionName) -> bool:
        return self._change(
            [_scope(name)], lambda found: kept.delete(found, name), is_repeatable=False
        )

    def claim_subscription(
        self, name: SubscriptionName, owner: str, seconds: float, *, succeeds: int | None = None
    ) -> SubscriptionClaim | None:
        return self._change(
            [_scope(name), _GENERATIONS],
            lambda found: kept.claim(found, name, owner, seconds=seconds, succeeds=succeeds),
        )

    def renew_subscription(self, claimed: SubscriptionClaim, seconds: float) -> SubscriptionClaim:
        return self._change(
            [_scope(claimed.name)], lambda found: kept.renew(found, claimed, seconds=seconds)
        )

    def release_subscription(self, claimed: SubscriptionClaim) -> None:
        self._change([_scope(claimed.name)], lambda found: kept.release(found, claimed))

    def acknowledge(self, claimed: SubscriptionClaim, partition: int, offset: int) -> int:
        return self._change(
            [_scope(claimed.name)],
            lambda found: kept.acknowledge(found, claimed, partition, offset),
        )

    def move_subscription(self, name: SubscriptionName, to: Mapping[int, int]) -> Subscription:
        return self._change([_scope(name), _GENERATIONS], lambda found: kept.move(found, name, to))

    def follow(
        self, table: TableName, follower: str, snapshot_id: int | None, seconds: float
    ) -> None:
        self._change(
            [f"followers {table}"],
            lambda found: kept.follow(
                found, table, follower, snapshot_id=snapshot_id, seconds=seconds
            ),
        )

    def unfollow(self, table: TableName, follower: str) -> None:
        self._change([f"followers {table}"], lambda found: kept.unfollow(found, table, follower))

    def follower(self, table: TableName, name: str) -> Follower | None:
        return self._read(lambda found: kept.follower(found, table, name))

    def followers(self, table: TableName) -> list[Follower]:
        return self._read(lambda found: kept.followers(found, table))


def _scope(name: SubscriptionName) -> str:
    return f"subscription {name}"
