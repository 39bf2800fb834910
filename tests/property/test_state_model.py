"""The state against a plain model: offsets, requests, topics, subscriptions, in any order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from calve.errors import Conflict, Fenced, NotFound
from calve.model import TableName
from calve.state import (
    SubscriptionClaim,
    SubscriptionName,
    TopicPartition,
    TopicRecord,
)
from tests.contract.states import STORES, StateStore, state_store

LOG = UUID(int=1)
TOPICS = [UUID(int=5), UUID(int=6)]
NAMES = [TableName.parse("a"), TableName.parse("t.d.b")]
SUBSCRIPTION = SubscriptionName.parse(NAMES[0], "s")
OFFSETS = st.integers(0, 6)
CLAIMS = st.just(-1) | st.integers(0, 50)  # the last one, or any


class StateMachine(RuleBasedStateMachine):
    """Two handles on one state stand for two processes."""

    make: Callable[[], StateStore]

    def __init__(self) -> None:
        super().__init__()
        self.store = type(self).make()
        self.states = [self.store.open(), self.store.open()]
        self.records: dict[TableName, TopicRecord] = {}
        self.old: list[TopicRecord] = []
        self.committed: dict[UUID, int] = {}
        self.resets: dict[UUID, int] = {}
        self.flushes: dict[UUID, int] = {}
        self.positions: dict[int, int] | None = None
        self.claims: list[SubscriptionClaim] = []  # the last is the one that counts
        self.generation = self.made_as = 0  # numbers that only grow
        self.is_claimed = False

    @rule(by=st.integers(0, 1), name=st.sampled_from(NAMES), content=st.binary(max_size=4))
    def create(self, by: int, name: TableName, content: bytes) -> None:
        record = self.states[by].create_topic(name, content)
        assert (record is None) == (name in self.records)
        if record is not None:
            assert record.version not in {each.version for each in self.old}
            self.records[name] = record
            self.old.append(record)

    @rule(by=st.integers(0, 1), which=st.integers(0, 50), content=st.binary(max_size=4))
    def replace(self, by: int, which: int, content: bytes) -> None:
        if self.old:
            expected = self.old[which % len(self.old)]
            record = self.states[by].replace_topic(expected, content)
            assert (record is not None) == (self.records.get(expected.name) == expected)
            if record is not None:
                self.records[expected.name] = record
                self.old.append(record)

    @rule(by=st.integers(0, 1), name=st.sampled_from(NAMES), topic=st.sampled_from(TOPICS))
    def delete(self, by: int, name: TableName, topic: UUID) -> None:
        if name in self.records:
            assert self.states[by].delete_topic(self.records.pop(name), topic, [])
            for kept in (self.committed, self.resets, self.flushes):
                kept.pop(topic, None)

    @rule(by=st.integers(0, 1), topic=st.sampled_from(TOPICS), offset=OFFSETS, late=st.booleans())
    def publish(self, by: int, topic: UUID, offset: int, late: bool) -> None:
        seen = self.resets.get(topic, 0) - late
        self.states[by].publish_committed(topic, 0, log_id=LOG, offset=offset, resets=seen)
        if topic not in self.committed:
            self._set(topic, offset)
        elif not late:
            self._set(topic, max(offset, self.committed[topic]))

    @rule(by=st.integers(0, 1), topic=st.sampled_from(TOPICS), offset=OFFSETS)
    def set_back(self, by: int, topic: UUID, offset: int) -> None:
        if topic not in self.committed:
            self.flushes.pop(topic, None)
        self.states[by].reset_committed(topic, 0, log_id=LOG, offset=offset)
        self.resets[topic] = self.resets.get(topic, 0) + 1
        self._set(topic, offset)

    @rule(by=st.integers(0, 1), topic=st.sampled_from(TOPICS), offset=OFFSETS)
    def flush(self, by: int, topic: UUID, offset: int) -> None:
        self.states[by].request_flush(topic, 0, offset)
        if self.committed.get(topic, -1) < offset:
            self.flushes[topic] = max(offset, self.flushes.get(topic, 0))

    def _set(self, topic: UUID, offset: int) -> None:
        self.committed[topic] = offset
        if self.flushes.get(topic, offset + 1) <= offset:
            del self.flushes[topic]

    @initialize()
    def begin_with_an_owner(self) -> None:
        """Most of what is interesting needs one."""
        self.subscribe(0)
        self.claim(1, "x")

    @rule(by=st.integers(0, 1))
    def subscribe(self, by: int) -> None:
        made = self.states[by].create_subscription(SUBSCRIPTION, TOPICS[0], {0: 3})
        assert (made is None) == (self.positions is not None)
        if made is not None:
            assert made.generation > self.generation
            self.positions, self.generation = {0: 3}, made.generation
            self.made_as = made.generation

    @rule(by=st.integers(0, 1))
    def unsubscribe(self, by: int) -> None:
        assert self.states[by].delete_subscription(SUBSCRIPTION) == (self.positions is not None)
        self.positions, self.is_claimed = None, False

    @rule(by=st.integers(0, 1), owner=st.sampled_from("xyz"), after=st.none() | CLAIMS)
    def claim(self, by: int, owner: str, after: int | None = None) -> None:
        former = (
            self.claims[after % len(self.claims)] if after is not None and self.claims else None
        )
        succeeds = former.token if former is not None else None
        if self.positions is None:
            with pytest.raises(NotFound):
                self.states[by].claim_subscription(SUBSCRIPTION, owner, 600, succeeds=succeeds)
            return
        claim = self.states[by].claim_subscription(SUBSCRIPTION, owner, 600, succeeds=succeeds)
        is_own = self.is_claimed and self.claims[-1].owner == owner
        is_successor = not is_own and former is not None and former.token == self._token()
        if self.is_claimed and not is_own and not is_successor:
            assert claim is None
            return
        assert claim is not None
        assert claim.generation == self.generation
        assert claim.succeeded == (succeeds if is_successor else None)
        if is_own:
            assert claim.token == self.claims[-1].token
        else:
            assert all(claim.token > each.token for each in self.claims)
        self.claims.append(claim)
        self.is_claimed = True

    @rule(by=st.integers(0, 1), which=st.integers(0, 50))
    def release(self, by: int, which: int) -> None:
        if self.claims:
            claim = self.claims[which % len(self.claims)]
            self.states[by].release_subscription(claim)
            self.is_claimed &= claim.token != self.claims[-1].token

    @rule(by=st.integers(0, 1), which=CLAIMS, offset=OFFSETS, on=st.integers(0, 1))
    def acknowledge(self, by: int, which: int, offset: int, on: int) -> None:
        if not self.claims:
            return
        claim = self.claims[which % len(self.claims)]
        refusal: type[Exception] | None = None
        if self.positions is None:
            refusal = NotFound
        elif claim.token != self._token():
            refusal = Fenced
        elif claim.generation != self.generation:
            refusal = Conflict
        if refusal is not None:
            with pytest.raises(refusal):
                self.states[by].acknowledge(claim, on, offset)
            return
        assert self.positions is not None
        wanted = max(offset, self.positions.get(on, 0))
        assert self.states[by].acknowledge(claim, on, offset) == wanted
        self.positions[on] = wanted

    def _token(self) -> int:
        """A subscription that was made again has had no owner yet."""
        last = self.claims[-1].token
        return last if last > self.made_as else 0

    @rule(by=st.integers(0, 1), offset=OFFSETS)
    def move(self, by: int, offset: int) -> None:
        if self.positions is None:
            with pytest.raises(NotFound):
                self.states[by].move_subscription(SUBSCRIPTION, {0: offset})
            return
        moved = self.states[by].move_subscription(SUBSCRIPTION, {0: offset})
        assert moved.generation > self.generation
        self.generation = moved.generation
        self.positions[0] = offset

    @rule(which=st.integers(0, 1))
    def reopen(self, which: int) -> None:
        self.states[which].close()
        self.states[which] = self.store.open()

    @invariant()
    def the_state_is_as_the_model_says(self) -> None:
        state = self.states[0]
        assert {each.name: each for each in state.topics()} == self.records
        for topic in TOPICS:
            known = state.committed(topic, 0)
            expected = self.committed.get(topic)
            assert (known and (known.offset, known.resets)) == (
                None if expected is None else (expected, self.resets.get(topic, 0))
            )
        assert state.flush_requests() == {
            TopicPartition(topic, 0): offset for topic, offset in self.flushes.items()
        }
        assert state.positions(SUBSCRIPTION) == (self.positions or {})

    def teardown(self) -> None:
        for state in self.states:
            state.close()


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("examples", [8, pytest.param(500, marks=pytest.mark.torture)])
def test_the_state_follows_a_model(
    kind: str, examples: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    opened = []

    def make() -> StateStore:
        place = Path(tempfile.mkdtemp(dir=tmp_path))
        context = state_store(kind, request.getfixturevalue, place)
        opened.append(context)
        return context.__enter__()

    class Machine(StateMachine):
        pass

    Machine.make = staticmethod(make)
    try:
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        for context in opened:
            context.__exit__(None, None, None)
