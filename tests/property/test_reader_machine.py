"""Readers deliver what a plain model says, whatever happens to table and log meanwhile.

Two partitions, each with a log of its own, a real catalog and pipeline; rows are appended, set
aside, lost, committed, compacted, deleted, rolled back and trimmed in any order, with readers at any
place. Invariant 5: one order for readers.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from calve.errors import CalveError, Conflict
from calve.settings import load_settings
from calve.subscriptions import TopicReader, windows
from calve.wal import Rejected
from tests.fakes.topic_site import TopicSite, batch_offsets, topic_site

FLAGS = {
    "wal.free_bytes_min": 0,
    "wal.hot_window_seconds": 0,
    "pipeline.flush_interval_ms": 1,
    "reader.poll_interval_ms": 1,
    "reader.prefetch_size": 2,
    "retry.initial_delay_ms": 10,
}
PARTITIONS = (0, 1)
partitions = st.sampled_from(PARTITIONS)


@dataclass
class Held:
    """What is in the table, and how far it has come, by partition."""

    rows: dict[int, set[int]] = field(default_factory=lambda: {p: set() for p in PARTITIONS})
    committed: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))


@dataclass
class Model:
    """Which offsets have rows in the logs, and what the table was in each snapshot."""

    log: dict[int, set[int]] = field(default_factory=lambda: {p: set() for p in PARTITIONS})
    durable: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    table: Held = field(default_factory=Held)
    snapshots: dict[int, Held] = field(default_factory=dict)

    def rows(self, partition: int, start: int, end: int) -> list[int]:
        """What is to be delivered of a range."""
        committed = self.table.committed[partition]
        return [
            offset
            for offset in range(start, end)
            if offset in (self.table.rows if offset < committed else self.log)[partition]
        ]

    def commit(self) -> None:
        for each in PARTITIONS:
            start = self.table.committed[each]
            self.table.rows[each] |= {offset for offset in self.log[each] if offset >= start}
            self.table.committed[each] = self.durable[each]


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


class ReaderMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.opened = ExitStack()
        patch = self.opened.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(windows, "WINDOW_ROWS", 6)
        root = Path(tempfile.mkdtemp())
        self.opened.callback(shutil.rmtree, root)
        settings = load_settings(flags={"data": str(root), **FLAGS}, environ={}).settings
        self.site: TopicSite = self.opened.enter_context(topic_site(settings, partitions=2))
        self.model = Model()
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

    @rule(
        partition=partitions,
        count=st.integers(1, 20),
        kind=st.sampled_from(["rows", "rows", "rejected", "hole"]),
    )
    def produce(self, partition: int, count: int, kind: str) -> None:
        if kind == "rows":
            self.append(partition, count)
        else:
            self.append_what_is_no_row(partition, kind == "hole", min(count, 3))

    def append(self, partition: int, count: int) -> None:
        end = self.site.append(count, partition)
        self.model.log[partition] |= set(range(end - count, end))
        self.model.durable[partition] = end

    def append_what_is_no_row(self, partition: int, is_hole: bool, count: int) -> None:
        log = self.site.intakes[partition].log
        stream, start = log.stream(self.site.name, partition), self.model.durable[partition]
        if is_hole:
            log.record_hole(stream, start, start + count)
        else:
            log.append(stream, [[Rejected(b"?", "text/plain", "no row")] * count])
        self.model.durable[partition] = start + count

    @rule(trims=st.booleans())
    def bring_to_the_table(self, trims: bool) -> None:
        self.commit()
        for partition in PARTITIONS if trims else ():
            self.site.trim(partition)

    def commit(self) -> None:
        self.site.commit()
        self.model.commit()
        self.remember()

    def remember(self) -> None:
        current = self.site.table.metadata.current_snapshot_id
        assert current is not None
        self.model.snapshots[current] = deepcopy(self.model.table)

    @rule(
        what=st.sampled_from(["compact", "expire", "delete", "delete", "back", "back", "replay"]),
        number=st.integers(2, 5),
        data=st.data(),
    )
    def change_the_table(self, what: str, number: int, data: st.DataObject) -> None:
        match what:
            case "compact":
                self.compact(descending=number % 2 == 0, file_rows=3 * number)
            case "expire":
                self.expire()
            case "delete":
                self.delete(number)
            case _:
                self.roll_back(data, replay=what == "replay")

    def compact(self, descending: bool, file_rows: int) -> None:
        self.site.compact(descending=descending, file_rows=file_rows)
        self.remember()

    def expire(self) -> None:
        # What a reader has not seen before its snapshot is gone, nobody can tell it.
        for each in self.readings:
            self.read_one(each)
        self.site.lake.tables.expire_snapshots("orders", 0)

    def delete(self, divisor: int) -> None:
        self.site.lake.tables.delete_data("orders", f"id % {divisor} = 1")
        for rows in self.model.table.rows.values():
            rows -= {offset for offset in rows if offset % divisor == 1}
        self.remember()

    def roll_back(self, data: st.DataObject, replay: bool) -> None:
        kept = [each.id for each in self.site.lake.tables.list_snapshots("orders")]
        known = [each for each in kept if each in self.model.snapshots][:-1]
        if not known:
            return
        self.read_all(data.draw(st.sampled_from(self.readings)))
        wanted = data.draw(st.sampled_from(known))
        # Both partitions go back, so each log is asked.
        log = self.site.settings.wal.path
        try:
            self.site.lake.tables.rollback("orders", wanted, replay=replay, log=log)
        except CalveError:
            return  # not an ancestor, or not all of it can come again
        before, after = self.model.table, deepcopy(self.model.snapshots[wanted])
        gone: dict[int, int] = {}
        for each in PARTITIONS:
            if not replay:
                after.committed[each] = before.committed[each]
            lost = [o for o in before.rows[each] - after.rows[each] if o < after.committed[each]]
            lost += [after.committed[each]] * (after.committed[each] < before.committed[each])
            if lost:
                gone[each] = min(lost)
        self.model.table = after
        self.remember()
        for reading in self.readings:
            reading.told_of(gone)

    @rule(
        what=st.sampled_from(["open", "anew", "one", "one", "all"]),
        policy=st.sampled_from(["fail", "skip", "from"]),
        data=st.data(),
    )
    def read(self, what: str, policy: Any, data: st.DataObject) -> None:
        reading = data.draw(st.sampled_from(self.readings))
        match what:
            case "open":
                ends = self.model.durable
                at = {each: data.draw(st.integers(0, ends[each])) for each in PARTITIONS}
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


def test_one_order_for_readers() -> None:
    run_state_machine_as_test(ReaderMachine, settings=settings_of(12, 20))


@pytest.mark.torture
def test_one_order_for_readers_at_length() -> None:
    run_state_machine_as_test(ReaderMachine, settings=settings_of(200, 60))
