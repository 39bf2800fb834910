"""Two pipelines without a lease, Spark's compaction and the expiry of snapshots, all at once, over
topics that grow: every acknowledged row is in its table or among the dead letters, once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from calve.errors import Conflict, Unavailable
from calve.maintenance.verify import verify_topic
from calve.model import TableName
from calve.wal import Rejected
from tests.integration.spark_site import SparkSite

TOPICS = ("plain", "parted", "sorted")
_BAD = Rejected(b"{", "application/x-ndjson", "no JSON")
_ROWS = 40
_EXPIRED = ("snapshots expired", "tables expired by Spark")


@dataclass
class Crowd:
    """What is done over and over again, each in a thread, until it is stopped."""

    stop: threading.Event = field(default_factory=threading.Event)
    done: Counter[str] = field(default_factory=Counter)
    failed: list[BaseException] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def add(self, name: str, act: Callable[[], object], pause_seconds: float = 0.02) -> None:
        def run() -> None:
            try:
                while not self.stop.is_set():
                    act()
                    self.done[name] += 1
                    self.stop.wait(pause_seconds)
            except BaseException as error:  # noqa: BLE001
                self.failed.append(error)

        self.threads.append(threading.Thread(target=run, name=name))

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def end(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(120)
        assert not self.failed, self.failed
        assert not any(thread.is_alive() for thread in self.threads)


def compact(both: SparkSite, done: Counter[str]) -> None:
    for topic in TOPICS:
        try:
            (rewritten,) = both.sql(
                f"CALL system.rewrite_data_files(table => 'default.default.{topic}', "
                "options => map('min-input-files', '2', 'partial-progress.enabled', 'false'))"
            )
        except Exception as error:
            # Whoever comes too late with a compaction does it again.
            if "commit" not in str(error).lower():
                raise
            done["compactions too late"] += 1
        else:
            done["files compacted"] += rewritten.rewritten_data_files_count


def expire(both: SparkSite, done: Counter[str]) -> None:
    for topic in TOPICS:
        for name in (topic, f"{topic}__dead_letters"):
            if both.lake.catalog.find_table(name) is None:
                continue
            try:
                expired = both.lake.tables.expire_snapshots(name, 0)
            except (Conflict, Unavailable):
                done["expiries too late"] += 1
            else:
                done["snapshots expired"] += len(expired.snapshot_ids)


def expire_with_spark(both: SparkSite, done: Counter[str]) -> None:
    """As somebody does it who knows nothing of Calve: all but the newest snapshot."""
    for topic in TOPICS:
        for name in (topic, f"{topic}__dead_letters"):
            table = both.lake.catalog.find_table(name)
            if table is None:
                continue
            before = len(table.metadata.snapshots)
            now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
            try:
                both.sql(
                    f"CALL system.expire_snapshots(table => 'default.default.{name}', "
                    f"older_than => TIMESTAMP '{now}+00:00', retain_last => 1)"
                )
            except Exception as error:
                if "commit" not in str(error).lower():
                    raise
                done["Spark's expiries too late"] += 1
            else:
                done["tables expired by Spark"] += before > 1


def produce(both: SparkSite, turn: int) -> int:
    """Rows of each topic, now and then with a bad one and a column that is new; how many each."""
    ids = [turn * _ROWS + n for n in range(_ROWS)]
    columns = {"id": ids, "name": [f"n{each % 7}" for each in ids]}
    if turn % 10 > 4:
        columns[f"c{turn // 10}"] = [{"deep": [each]} for each in ids]
    for topic in TOPICS:
        batch = pa.record_batch(columns)
        given = [batch, [_BAD]] if turn % 3 == 0 else [batch]
        both.site.intake.submit(TableName.parse(topic), given).wait()
    return _ROWS + (turn % 3 == 0)


def crowded(both: SparkSite, seconds: float) -> str:
    for topic, spec in zip(
        TOPICS, ({}, {"partition_by": ["bucket(2, id)"]}, {"sort_by": ["name"]}), strict=True
    ):
        both.site.create(topic, schema={"id": "long", "name": "string"}, **spec)
    crowd = Crowd()
    rows, turn = produce(both, 0), 1
    assert both.pipeline().drain(60)
    compact(both, crowd.done)  # Spark's first time takes seconds
    for number in range(2):
        crowd.add(f"cycles of {number}", both.pipeline().run_cycle)
    crowd.add("compactions", lambda: compact(both, crowd.done), 0.2)

    def expire_in_turns() -> None:
        # Not at once: Spark's fails if another expiry deletes the files that it is about to read.
        expire_with_spark(both, crowd.done)
        expire(both, crowd.done)

    crowd.add("expiries", expire_in_turns, 0.2)
    crowd.start()
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline and not crowd.failed:
            rows += produce(both, turn)
            turn += 1
            time.sleep(0.1)
    finally:
        crowd.end()
    assert both.pipeline().drain(120)
    for topic in TOPICS:
        both.site.require_each_once(topic, rows)
        found = sorted(row["id"] for row in both.site.rows(topic))
        assert found == list(range(turn * _ROWS))
        verified = verify_topic(both.lake.catalog, topic, own_log=both.site.settings.wal.path)
        assert verified.is_sound, verified
        assert verified.dead_letters == rows - turn * _ROWS
    for name in ("cycles of 0", "cycles of 1", "files compacted", *_EXPIRED):
        assert crowd.done[name], crowd.done
    return f"{rows * len(TOPICS)} rows acknowledged, none lost, none doubled; {dict(crowd.done)}"


def test_pipelines_compaction_and_expiry_at_once_lose_and_double_nothing(both: SparkSite) -> None:
    print(crowded(both, 8))


@pytest.mark.torture
def test_pipelines_compaction_and_expiry_at_once_for_minutes(
    both: SparkSite, capsys: pytest.CaptureFixture[str]
) -> None:
    told = crowded(both, 200)
    with capsys.disabled():
        print(told)
