"""The log as a state machine: any order of operations and crashes, against a list in memory."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from calve.errors import CalveError
from calve.wal import Log
from tests.fakes.disk import Crash, SimulatedDisk, Survival
from tests.fakes.oracle import TOPIC, Oracle, rows
from tests.faults.test_log_crashes import DIRECTORY, open_with_partitions

PARTITION = st.integers(0, 1)
TORN = st.sampled_from(list(Survival))


class LogMachine(RuleBasedStateMachine):
    """Acknowledged is durable, offsets are dense, retries are known, whatever happens."""

    disk: SimulatedDisk
    log: Log

    @initialize()
    def begin(self) -> None:
        self.disk = SimulatedDisk()
        self.oracle = Oracle()
        self.sequences = {0: 0, 1: 0}
        self.log = open_with_partitions(self.disk)

    @rule(partition=PARTITION, count=st.integers(1, 4), rejected=st.integers(0, 2))
    def append(self, partition: int, count: int, rejected: int) -> None:
        self.oracle.append(self.log, partition, count, rejected=rejected)

    @rule(partition=PARTITION, again=st.booleans())
    def produce(self, partition: int, again: bool) -> None:
        sequence = self.sequences[partition]
        first = self.oracle.append(self.log, partition, producer="p", sequence=sequence)
        self.sequences[partition] += 1
        if again and first is not None:
            stream = self.log.stream(TOPIC, partition)
            repeat = self.log.append(stream, rows(0), producer="p", sequence=sequence)
            assert repeat == first._replace(is_repeat=True)

    @rule(partition=PARTITION)
    def leave_a_gap(self, partition: int) -> None:
        stream = self.log.stream(TOPIC, partition)
        with pytest.raises(CalveError):
            self.log.append(stream, rows(0), producer="p", sequence=self.sequences[partition] + 1)

    @rule(count=st.integers(1, 5))
    def append_together(self, count: int) -> None:
        pending = [self.oracle.submit(self.log, i % 2) for i in range(count)]
        for handle, sent in reversed(pending):
            result = handle.wait()
            assert result.first is not None
            assert result.end is not None
            sent.offsets = (result.first, result.end)

    @rule()
    def rotate(self) -> None:
        self.log.rotate()

    @rule(partition=PARTITION)
    def trim(self, partition: int) -> None:
        stream = self.log.stream(TOPIC, partition)
        end = self.log.next_offset(stream)
        self.oracle.committed[TOPIC, partition] = end
        self.log.trim({stream.id: end})

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = open_with_partitions(self.disk)

    @rule(survival=TORN, seed=st.integers(0, 1000))
    def lose_power(self, survival: Survival, seed: int) -> None:
        self._boot(survival, seed)

    @rule(survival=TORN, seed=st.integers(0, 1000), after=st.integers(0, 12), partition=PARTITION)
    def lose_power_during_appends(
        self, survival: Survival, seed: int, after: int, partition: int
    ) -> None:
        self.disk.crash_at = len(self.disk.operations) + after
        try:
            for i in range(8):
                self.oracle.append(self.log, (partition + i) % 2, 2)
        except Crash:
            pass
        self._boot(survival, seed)

    def _boot(self, survival: Survival, seed: int) -> None:
        self.disk = self.disk.after_crash(survival, seed)
        self.log = open_with_partitions(self.disk)
        self.oracle.check(DIRECTORY, self.disk)
        self.oracle.settle(DIRECTORY, self.disk)

    @precondition(lambda self: hasattr(self, "oracle"))
    @invariant()
    def holds_what_was_acknowledged(self) -> None:
        self.oracle.check(DIRECTORY, self.disk)


SETTINGS = {"deadline": None, "suppress_health_check": list(HealthCheck)}

TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=60, stateful_step_count=25, **SETTINGS)  # type: ignore[arg-type]


@pytest.mark.torture
def test_the_log_for_long() -> None:
    run_state_machine_as_test(
        LogMachine,
        settings=settings(max_examples=5000, stateful_step_count=60, **SETTINGS),  # type: ignore[arg-type]
    )
