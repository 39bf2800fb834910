"""Subscriptions deliver and count what a plain model says, whoever has them and wherever they are.

Consumers that read alone and such that share a read come, poll, acknowledge, refuse, move and go in
any order, while rows are appended, committed, compacted, deleted, rolled back and trimmed, snapshots
expire and logs are opened anew. At least once: nothing below what is acknowledged was ever left out.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from calve.errors import Conflict, Fenced
from calve.state import SubscriptionName
from calve.subscriptions import Batch, Subscription, tail
from calve.subscriptions.served import ServedSubscriptions
from tests.fakes.topic_site import batch_offsets
from tests.property.topic_machine import (
    PARTITIONS,
    Luck,
    TopicMachine,
    lucks,
    quick_disk,
    settings_of,
)

__all__ = ["quick_disk"]
pytestmark = pytest.mark.usefixtures("quick_disk")
LEASE_SECONDS = 600  # what is renewed in the background comes at no known time


@dataclass(eq=False)
class Consumer:
    """A subscription, and where the model has it; nowhere until it has read."""

    subscription: Subscription
    is_shared: bool
    policy: str
    at: dict[int, int] = field(default_factory=dict)
    generation: int | None = None
    out: list[Batch] = field(default_factory=list)
    void: dict[int, int] = field(default_factory=dict)
    is_lost: bool = False
    gone: dict[int, int] = field(default_factory=dict)  # by rollbacks since it has looked

    @property
    def positions(self) -> dict[int, int]:
        """Where it reads on: behind what it was given, and what had no rows."""
        return self.subscription._reading.positions

    @property
    def has_passed(self) -> dict[int, int]:
        """The lowest of what is gone, where it has come further."""
        return {p: lowest for p, lowest in self.gone.items() if lowest < self.at[p]}

    def place(self, at: dict[int, int], generation: int) -> None:
        self.at, self.generation = dict(at), generation
        self.forget(*PARTITIONS)

    def forget(self, *partitions: int) -> None:
        self.void |= dict.fromkeys(partitions, len(self.out))

    def counts(self, number: int) -> bool:
        return number >= self.void.get(self.out[number].partition, 0)


class SubscriptionMachine(TopicMachine):
    poll_interval_ms: ClassVar = 50

    def __init__(self) -> None:
        super().__init__()
        self.patch.setattr(tail, "RING_BATCHES_MAX", 3)
        self.served = ServedSubscriptions(self.site.settings, lambda: self.site.lake.catalog)
        self.opened.callback(self.served.close)
        for partition in PARTITIONS:
            self.append(partition, 5)
        self.commit()
        self.name = SubscriptionName(self.site.name, "billing")
        self.acknowledged = dict.fromkeys(PARTITIONS, 0)
        self.generation = 0
        self.owner: Consumer | None = None
        self.consumers: list[Consumer] = []
        for policy in ("shared", "fail"):
            self.come(policy)

    def teardown(self) -> None:
        try:
            for each in self.consumers:
                each.subscription.close()
            self.owner = None
            self.come("shared")
            self.read_to_the_end(self.consumers[-1])
            self.consumers[-1].subscription.close()
        finally:
            self.opened.close()

    def before_change(self, what: str, luck: Luck) -> None:
        # What somebody has not seen before its snapshot is gone, nobody can tell him.
        if what == "expire":
            if self.owner is not None:
                self.read_one(self.owner)
            for each in [each for each in self.consumers if each.gone]:
                self.leave(each)

    def after_change(self, what: str) -> None:
        if what not in {"compact", "expire"}:
            time.sleep(1.2 * self.poll_interval_ms / 1000)  # so old may be what is known

    def was_rolled_back(self, gone: dict[int, int]) -> None:
        for consumer in self.consumers:
            for partition, lowest in gone.items():
                known = consumer.gone.get(partition, lowest)
                consumer.gone[partition] = min(lowest, known)

    @rule(policy=st.sampled_from(["shared", "shared", "fail", "skip", "from"]), luck=lucks)
    def come_and_go(self, policy: str, luck: Luck) -> None:
        if luck.random() < 0.5 or not self.consumers:
            self.come(policy)
        else:
            self.leave(luck.choice(self.consumers))

    def come(self, policy: Any) -> None:
        if len(self.consumers) == 3:
            self.leave(self.consumers[0])
        is_shared = policy == "shared"
        policy = "fail" if is_shared else policy
        register = self.served if is_shared else self.site.lake.subscriptions
        made = register.open("orders", "billing", lease_seconds=LEASE_SECONDS, on_rollback=policy)
        self.consumers.append(Consumer(made, is_shared, policy))

    def leave(self, consumer: Consumer) -> None:
        consumer.subscription.close()
        self.consumers.remove(consumer)
        if self.owner is consumer:
            self.owner = None

    def was_told(self, consumer: Consumer, error: Conflict) -> None:
        """It is to subscribe again then."""
        assert "rolled back" in str(error)
        assert consumer.gone
        assert consumer.policy == "fail"
        self.leave(consumer)

    @rule(
        what=st.lists(
            st.sampled_from(["poll", "poll", "ack", "ack", "ack", "nack", "move", "lose"]),
            min_size=1,
            max_size=4,
        ),
        luck=lucks,
    )
    def consume(self, what: list[str], luck: Luck) -> None:
        for each in what:
            if not self.consumers:
                return
            match each:
                case "poll":
                    self.poll(luck)
                case "ack":
                    self.acknowledge(luck)
                case "nack":
                    self.refuse(luck)
                case "move":
                    self.move(luck, is_operator=luck.random() < 0.5)
                case _:
                    self.take_away()

    def poll(self, luck: Luck) -> None:
        among = [self.owner] * 3 if self.owner is not None else []
        consumer = luck.choice([*among, *self.consumers])
        for _ in range(luck.randint(1, 4)):
            self.read_one(consumer)

    def read_one(self, consumer: Consumer) -> None:
        if consumer.is_lost or consumer not in self.consumers:
            return
        if self.owner not in {None, consumer}:
            assert consumer.subscription.poll(0.02) is None
            return
        self.owner = consumer
        if consumer.generation is None:
            consumer.place(self.acknowledged, self.generation)
        has_passed = consumer.has_passed
        if consumer.policy == "from":
            consumer.at |= has_passed
        try:
            batch = consumer.subscription.poll(0.02)
            deadline = time.monotonic() + 10
            while consumer.policy == "fail" and has_passed:
                # Who shares a read is told when that one has looked.
                assert consumer.is_shared
                assert time.monotonic() < deadline
                consumer.subscription.poll(0.02)
        except Conflict as error:
            self.was_told(consumer, error)
            return
        if not consumer.is_shared:
            consumer.gone = {}
        self.check(consumer, batch)

    def check(self, consumer: Consumer, batch: Batch | None) -> None:
        """What came, and what was passed without rows, and that nothing else counts as done."""
        for partition, position in consumer.positions.items():
            is_its = batch is not None and batch.partition == partition
            found = batch_offsets(batch) if batch is not None and is_its else []
            expected = self.model.rows(partition, consumer.at[partition], position)
            assert found == expected, (partition, consumer.at, position)
            consumer.at[partition] = position
        if batch is not None:
            consumer.out.append(batch)
        for partition, done in self.site.state.positions(self.name).items():
            known = self.acknowledged[partition]
            assert known <= done <= consumer.at[partition] or done == known
            assert self.model.rows(partition, known, done) == []
            self.acknowledged[partition] = done
        if consumer.subscription._generation is None:
            assert consumer.generation != self.generation
            consumer.generation = None  # it wanted to pass over some, and was told that it moved

    def read_to_the_end(self, consumer: Consumer) -> None:
        deadline = time.monotonic() + 20
        while consumer.at != self.model.durable:
            assert time.monotonic() < deadline
            self.read_one(consumer)

    def acknowledge(self, luck: Luck) -> None:
        with_rows = [each for each in self.consumers if each.out]
        if not with_rows:
            return
        consumer = luck.choice(with_rows)
        number = luck.randint(max(0, len(consumer.out) - 4), len(consumer.out) - 1)
        batch = consumer.out[number]
        offset = luck.choice([batch.next_offset, batch.first_offset + 1])
        if not consumer.counts(number) or consumer.generation is None:
            assert not consumer.subscription.ack(batch, offset)
        elif consumer.is_lost:
            with pytest.raises(Fenced):
                consumer.subscription.ack(batch, offset)
        else:
            is_current = consumer.generation == self.generation
            assert consumer.subscription.ack(batch, offset) == is_current
            if is_current:
                known = self.acknowledged[batch.partition]
                self.acknowledged[batch.partition] = max(offset, known)
            else:
                consumer.generation = None  # it is told, and goes where the subscription is
        assert self.site.state.positions(self.name) == self.acknowledged

    def refuse(self, luck: Luck) -> None:
        if self.owner is None or not self.owner.out or self.owner.is_lost:
            return
        consumer = self.owner
        number = luck.randint(max(0, len(consumer.out) - 4), len(consumer.out) - 1)
        batch = consumer.out[number]
        counts = consumer.counts(number)
        try:
            consumer.subscription.nack(batch)
        except Conflict as error:
            self.was_told(consumer, error)
            return
        if counts:
            consumer.at[batch.partition] = self.acknowledged[batch.partition]
            consumer.forget(batch.partition)

    def move(self, luck: Luck, is_operator: bool) -> None:
        to = {p: luck.randint(0, self.model.durable[p]) for p in PARTITIONS}
        consumer = luck.choice(self.consumers)
        if is_operator:
            self.site.lake.subscriptions.seek("orders", "billing", to)
        elif consumer.is_lost:
            return
        elif self.owner not in {None, consumer}:
            with pytest.raises(Conflict, match="another consumer"):
                consumer.subscription.seek(to)
            return
        else:
            try:
                consumer.subscription.seek(to)
            except Conflict as error:
                self.was_told(consumer, error)
                return
            self.owner = consumer
            consumer.generation = None
            if not consumer.is_shared:
                consumer.gone = {}
        self.generation += 1
        self.acknowledged = to

    def take_away(self) -> None:
        """As if the owner's time had been over, and somebody else had come and gone."""
        if self.owner is None or self.owner.is_lost or not self.owner.out:
            return
        found = self.site.state.subscription(self.name)
        assert found is not None
        assert found.owner is not None
        held = self.site.state.claim_subscription(self.name, found.owner, 60)
        assert held is not None
        self.site.state.release_subscription(held)
        other = self.site.state.claim_subscription(self.name, "another", 60)
        assert other is not None
        self.site.state.release_subscription(other)
        self.owner.is_lost = True
        self.owner = None


def test_subscriptions_follow_a_model() -> None:
    run_state_machine_as_test(SubscriptionMachine, settings=settings_of(8, 25))


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_subscriptions_follow_a_model_at_length() -> None:
    run_state_machine_as_test(SubscriptionMachine, settings=settings_of(300, 60))
