"""What may happen to a topic, its table and its logs, in any order, and a plain model of it.

Two partitions, each with a log of its own, a real catalog and pipeline. Machines add those who read.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from calve.errors import CalveError
from calve.settings import load_settings
from calve.subscriptions import windows
from calve.wal import Rejected
from tests.fakes.topic_site import TopicSite, topic_site

FLAGS: dict[str, Any] = {
    "wal.free_bytes_min": 0,
    "wal.hot_window_seconds": 0,
    "pipeline.flush_interval_ms": 1,
    "reader.prefetch_size": 2,
    "retry.initial_delay_ms": 10,
}
PARTITIONS = (0, 1)
partitions = st.sampled_from(PARTITIONS)


class Luck(Random):
    """Chooses among those who are there, which depends on when things happened: what Hypothesis
    draws must not."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._seed = seed

    def __repr__(self) -> str:
        return f"Luck({self._seed})"


lucks = st.builds(Luck, st.integers(0, 2**32 - 1))


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

    def roll_back(self, snapshot_id: int, replay: bool) -> dict[int, int]:
        """From where on each partition has lost rows, or is to get them again."""
        before, after = self.table, deepcopy(self.snapshots[snapshot_id])
        gone: dict[int, int] = {}
        for each in PARTITIONS:
            if not replay:
                after.committed[each] = before.committed[each]
            lost = [o for o in before.rows[each] - after.rows[each] if o < after.committed[each]]
            lost += [after.committed[each]] * (after.committed[each] < before.committed[each])
            if lost:
                gone[each] = min(lost)
        self.table = after
        return gone


class TopicMachine(RuleBasedStateMachine):
    """Its heirs say what readers are to do before and after what matters to them."""

    poll_interval_ms: ClassVar = 1

    def __init__(self) -> None:
        super().__init__()
        self.opened = ExitStack()
        self.patch = self.opened.enter_context(pytest.MonkeyPatch.context())
        self.patch.setattr(windows, "WINDOW_ROWS", 6)
        root = Path(tempfile.mkdtemp())
        self.opened.callback(shutil.rmtree, root)
        flags = {"data": str(root), **FLAGS, "reader.poll_interval_ms": self.poll_interval_ms}
        settings = load_settings(flags=flags, environ={}).settings
        self.site: TopicSite = self.opened.enter_context(topic_site(settings, partitions=2))
        self.model = Model()

    def before_change(self, what: str, luck: Luck) -> None:
        """The table is about to lose rows or snapshots."""

    def after_change(self, what: str) -> None:
        """It has lost some."""

    def was_rolled_back(self, gone: dict[int, int]) -> None:
        """Rows from there on, by partition, were taken out."""

    @rule(
        partition=partitions,
        counts=st.lists(st.integers(1, 7), min_size=1, max_size=5),
        kind=st.sampled_from(["rows", "rows", "rows", "rejected", "hole"]),
    )
    def produce(self, partition: int, counts: list[int], kind: str) -> None:
        for count in counts if kind == "rows" else ():
            self.append(partition, count)
        if kind != "rows":
            self.append_what_is_no_row(partition, kind == "hole", min(counts[0], 3))

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

    @rule(trims=st.booleans(), restarts=st.sampled_from([None, None, *PARTITIONS]))
    def bring_to_the_table(self, trims: bool, restarts: int | None) -> None:
        """Rotate and trim the logs too, or have one of them closed and opened again."""
        self.commit()
        for partition in PARTITIONS if trims else ():
            self.site.trim(partition)
        if restarts is not None:
            self.site.restart(restarts)

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
        luck=lucks,
    )
    def change_the_table(self, what: str, number: int, luck: Luck) -> None:
        self.before_change(what, luck)
        match what:
            case "compact":
                self.site.compact(descending=number % 2 == 0, file_rows=3 * number)
                self.remember()
            case "expire":
                self.site.lake.tables.expire_snapshots("orders", 0)
            case "delete":
                self.delete(number)
            case _:
                self.roll_back(luck, replay=what == "replay")
        self.after_change(what)

    def delete(self, divisor: int) -> None:
        self.site.lake.tables.delete_data("orders", f"id % {divisor} = 1", flush=False)
        for rows in self.model.table.rows.values():
            rows -= {offset for offset in rows if offset % divisor == 1}
        self.remember()

    def roll_back(self, luck: Luck, replay: bool) -> None:
        kept = [each.id for each in self.site.lake.tables.list_snapshots("orders")]
        known = [each for each in kept if each in self.model.snapshots][:-1]
        if not known:
            return
        wanted = luck.choice(known)
        log = self.site.log_path(luck.choice(PARTITIONS))  # of the one that is to come again
        try:
            self.site.lake.tables.rollback("orders", wanted, replay=replay, log=log)
        except CalveError:
            return  # not an ancestor, or not all of it can come again
        gone = self.model.roll_back(wanted, replay)
        self.remember()
        self.was_rolled_back(gone)


def settings_of(examples: int, steps: int) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody pulls the plug here."""
    monkeypatch.setattr("os.fdatasync", lambda _: None)
    monkeypatch.setattr("os.fsync", lambda _: None)
