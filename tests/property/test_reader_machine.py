"""Readers deliver what a plain model says, whatever happens to table and log meanwhile.

Rows are appended, set aside, lost, committed, compacted, deleted, rolled back and trimmed in any
order, with readers at any place. Invariant 5: one order for readers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from calve.errors import Conflict
from calve.subscriptions import TopicReader
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


@dataclass
class Reading:
    """A reader, where the model has it, and from where on a rollback took out what it has passed."""

    reader: TopicReader
    policy: str
    at: dict[int, int]
    lowest: dict[int, int] = field(default_factory=dict)

    def told_of(self, gone: dict[int, int]) -> None:
        for partition, lowest in gone.items():
            if lowest < self.at[partition]:
                self.lowest[partition] = min(lowest, self.lowest.get(partition, lowest))


class ReaderMachine(TopicMachine):
    def __init__(self) -> None:
        super().__init__()
        self.readings: list[Reading] = []
        for partition in PARTITIONS:
            self.append(partition, 20)
        self.commit()
        for policy in ("fail", "skip", "from"):
            self.open_reader(dict.fromkeys(PARTITIONS, 0), policy)

    def teardown(self) -> None:
        try:
            for each in self.readings:
                self.read_all(each)
                each.reader.close()
        finally:
            self.opened.close()

    def before_change(self, what: str, luck: Luck) -> None:
        # What a reader has not seen before its snapshot is gone, nobody can tell it.
        for each in self.readings if what == "expire" else ():
            self.read_one(each)
        if what in {"back", "replay"}:
            self.read_all(luck.choice(self.readings))

    def was_rolled_back(self, gone: dict[int, int]) -> None:
        for reading in self.readings:
            reading.told_of(gone)

    @rule(
        what=st.sampled_from(["open", "anew", "one", "one", "all"]),
        policy=st.sampled_from(["fail", "skip", "from"]),
        luck=lucks,
    )
    def read(self, what: str, policy: Any, luck: Luck) -> None:
        reading = luck.choice(self.readings)
        match what:
            case "open":
                ends = self.model.durable
                at = {each: luck.randint(0, ends[each]) for each in PARTITIONS}
                self.open_reader(at, policy)
            case "anew":
                self.begin_anew(reading)
            case "one":
                self.read_one(reading)
            case _:
                self.read_all(reading)

    def open_reader(self, at: dict[int, int], policy: Any) -> None:
        if len(self.readings) == 4:
            self.readings.pop(0).reader.close()
        self.readings.append(Reading(self.site.read(dict(at), on_rollback=policy), policy, at))

    def begin_anew(self, reading: Reading) -> None:
        """Close the reader, and begin another one where it was."""
        reading.reader.close()
        assert reading.reader.positions == reading.at
        reading.reader = self.site.read(reading.at, on_rollback=reading.policy)
        reading.lowest = {}

    def read_all(self, reading: Reading) -> None:
        deadline = time.monotonic() + 20
        while reading.at != self.model.durable or reading.lowest:
            self.read_one(reading)
            assert time.monotonic() < deadline

    def read_one(self, reading: Reading) -> None:
        """A batch, if there is one, held against the model; so is what was passed without rows."""
        time.sleep(0.002)  # longer than what is known of the table may be old
        self.notice_rollback(reading)
        batch = reading.reader.poll(0.01)
        for partition, position in reading.reader.positions.items():
            is_its = batch is not None and batch.partition == partition
            found = batch_offsets(batch) if batch is not None and is_its else []
            expected = self.model.rows(partition, reading.at[partition], position)
            assert found == expected, (partition, reading.at, position)
            if batch is not None and is_its:
                assert batch.next_offset == position
            reading.at[partition] = position

    def notice_rollback(self, reading: Reading) -> None:
        if not reading.lowest:
            return
        if reading.policy == "from":
            reading.at |= reading.lowest
        elif reading.policy == "fail":
            with pytest.raises(Conflict) as caught:
                reading.reader.poll(0.01)
            partition = int(caught.value.context["partition"])
            assert int(caught.value.context["lowest"]) == reading.lowest[partition]
            assert int(caught.value.context["position"]) == reading.at[partition]
            reading.reader.seek(reading.at)
        reading.lowest = {}


def test_one_order_for_readers() -> None:
    run_state_machine_as_test(ReaderMachine, settings=settings_of(12, 20))


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_one_order_for_readers_at_length() -> None:
    run_state_machine_as_test(ReaderMachine, settings=settings_of(200, 60))
