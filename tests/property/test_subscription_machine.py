"""Subscriptions deliver and count what a plain model says, whoever has them and wherever they are.

Two partitions, a real catalog and pipeline; consumers that read alone and such that share a read
come, poll, acknowledge, refuse, move and go in any order, while rows are appended, committed,
compacted and trimmed. At least once: nothing below what is acknowledged was ever left out.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from calve.errors import Conflict, Fenced
from calve.settings import load_settings
from calve.state import SubscriptionName
from calve.subscriptions import Batch, Subscription, tail, windows
from calve.subscriptions.served import ServedSubscriptions
from tests.fakes.topic_site import TopicSite, batch_offsets, topic_site
from tests.property.test_reader_machine import FLAGS, PARTITIONS

LEASE_SECONDS = 600  # what is renewed in the background comes at no known time


@dataclass(eq=False)
class Consumer:
    """A subscription, and where the model has it; nowhere until it has read."""

    subscription: Subscription
    at: dict[int, int] | None = None
    generation: int | None = None
    out: list[Batch] = field(default_factory=list)
    void: dict[int, int] = field(default_factory=dict)
    is_lost: bool = False

    def place(self, at: dict[int, int], generation: int) -> None:
        self.at, self.generation = dict(at), generation
        self.forget(*PARTITIONS)

    def forget(self, *partitions: int) -> None:
        self.void |= dict.fromkeys(partitions, len(self.out))

    def counts(self, number: int) -> bool:
        return number >= self.void.get(self.out[number].partition, 0)


class SubscriptionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.opened = ExitStack()
        patch = self.opened.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(windows, "WINDOW_ROWS", 6)
        patch.setattr(tail, "RING_BATCHES_MAX", 3)
        root = Path(tempfile.mkdtemp())
        self.opened.callback(shutil.rmtree, root)
        flags = {"data": str(root), **FLAGS, "reader.poll_interval_ms": 200}
        settings = load_settings(flags=flags, environ={}).settings
        self.site: TopicSite = self.opened.enter_context(topic_site(settings, partitions=2))
        self.served = ServedSubscriptions(self.site.settings, lambda: self.site.lake.catalog)
        self.opened.callback(self.served.close)
        for partition in PARTITIONS:
            self.site.append(5, partition)
        self.name = SubscriptionName(self.site.name, "billing")
        self.acknowledged = dict.fromkeys(PARTITIONS, 0)
        self.generation = 0
        self.owner: Consumer | None = None
        self.consumers: list[Consumer] = []
        self.come(is_shared=True)
        self.come(is_shared=False)

    def teardown(self) -> None:
        try:
            for each in self.consumers:
                each.subscription.close()
            self.owner = None
            self.come(is_shared=True)
            self.read_to_the_end(self.consumers[-1])
            self.consumers[-1].subscription.close()
        finally:
            self.opened.close()

    @rule(
        what=st.sampled_from(["rows", "rows", "rows", "commit", "trim", "compact"]),
        partition=st.sampled_from(PARTITIONS),
        counts=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    )
    def change_the_topic(self, what: str, partition: int, counts: list[int]) -> None:
        if what == "rows":
            for count in counts:  # more batches than a ring has
                self.site.append(count, partition)
                time.sleep(0.002)
            return
        self.site.commit()
        if what == "trim":
            for each in PARTITIONS:
                self.site.trim(each)
        elif what == "compact":
            self.site.compact(descending=True, file_rows=7)

    @rule(is_shared=st.booleans(), data=st.data())
    def come_and_go(self, is_shared: bool, data: st.DataObject) -> None:
        if data.draw(st.booleans()):
            self.come(is_shared)
        elif len(self.consumers) > 1:
            self.leave(data.draw(st.sampled_from(self.consumers)))

    def come(self, is_shared: bool) -> None:
        if len(self.consumers) == 3:
            self.leave(self.consumers[0])
        register = self.served if is_shared else self.site.lake.subscriptions
        made = register.open("orders", "billing", lease_seconds=LEASE_SECONDS)
        self.consumers.append(Consumer(made))

    def leave(self, consumer: Consumer) -> None:
        consumer.subscription.close()
        self.consumers.remove(consumer)
        if self.owner is consumer:
            self.owner = None

    @rule(
        what=st.sampled_from(["poll", "poll", "ack", "ack", "ack", "nack", "nack", "move", "lose"]),
        data=st.data(),
    )
    def consume(self, what: str, data: st.DataObject) -> None:
        match what:
            case "poll":
                self.poll(data)
            case "ack":
                self.acknowledge(data)
            case "nack":
                self.refuse(data)
            case "move":
                self.move(data, is_operator=data.draw(st.booleans()))
            case _:
                self.take_away()

    def poll(self, data: st.DataObject) -> None:
        among = [self.owner] * 3 if self.owner is not None else []
        consumer = data.draw(st.sampled_from([*among, *self.consumers]))
        for _ in range(data.draw(st.integers(1, 4))):
            self.read_one(consumer)

    def read_one(self, consumer: Consumer) -> None:
        if consumer.is_lost:
            return
        batch = consumer.subscription.poll(0.02)
        self.owner = self.owner or consumer
        if self.owner is not consumer:
            assert batch is None
            return
        if consumer.generation is None:
            consumer.place(self.acknowledged, self.generation)
        if batch is None:
            return
        assert consumer.at is not None
        start = consumer.at[batch.partition]
        assert batch_offsets(batch) == list(range(start, batch.next_offset))
        consumer.at[batch.partition] = batch.next_offset
        consumer.out.append(batch)

    def read_to_the_end(self, consumer: Consumer) -> None:
        ends = {each: self.site.durable(each) for each in PARTITIONS}
        deadline = time.monotonic() + 20
        while consumer.at != ends:
            assert time.monotonic() < deadline
            self.read_one(consumer)

    def acknowledge(self, data: st.DataObject) -> None:
        with_rows = [each for each in self.consumers if each.out]
        if not with_rows:
            return
        consumer = data.draw(st.sampled_from(with_rows))
        number = data.draw(st.integers(max(0, len(consumer.out) - 4), len(consumer.out) - 1))
        batch = consumer.out[number]
        offset = data.draw(st.sampled_from([batch.next_offset, batch.first_offset + 1]))
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

    def refuse(self, data: st.DataObject) -> None:
        if self.owner is None or not self.owner.out or self.owner.is_lost:
            return
        number = data.draw(st.integers(max(0, len(self.owner.out) - 4), len(self.owner.out) - 1))
        batch = self.owner.out[number]
        counts = self.owner.counts(number)
        self.owner.subscription.nack(batch)
        if counts:
            assert self.owner.at is not None
            self.owner.at[batch.partition] = self.acknowledged[batch.partition]
            self.owner.forget(batch.partition)

    def move(self, data: st.DataObject, is_operator: bool) -> None:
        to = {p: data.draw(st.integers(0, self.site.durable(p))) for p in PARTITIONS}
        consumer = data.draw(st.sampled_from(self.consumers))
        if is_operator:
            self.site.lake.subscriptions.seek("orders", "billing", to)
        elif consumer.is_lost:
            return
        elif self.owner not in {None, consumer}:
            with pytest.raises(Conflict, match="another consumer"):
                consumer.subscription.seek(to)
            return
        else:
            consumer.subscription.seek(to)
            self.owner = consumer
            consumer.generation = None
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


def settings_of(examples: int, steps: int) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody pulls the plug here."""
    monkeypatch.setattr("os.fdatasync", lambda _: None)
    monkeypatch.setattr("os.fsync", lambda _: None)


def test_subscriptions_follow_a_model() -> None:
    run_state_machine_as_test(SubscriptionMachine, settings=settings_of(8, 25))


@pytest.mark.torture
def test_subscriptions_follow_a_model_at_length() -> None:
    run_state_machine_as_test(SubscriptionMachine, settings=settings_of(300, 60))
