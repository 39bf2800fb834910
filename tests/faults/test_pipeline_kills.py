"""Ingest, the driver, its JVM and its Python workers are killed while rows come in, at any moment
and at named ones: at the end every acknowledged row is in its table, or among the dead letters, once.

The oracle is beside it all: what each producer was told, in a file that outlives everybody.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from operator import ge
from pathlib import Path
from typing import Any

import pytest

from calve import Client
from calve.errors import NotFound
from calve.maintenance.verify import verify_topic
from calve.model import TableName
from calve.settings import Settings
from calve.tables.catalog import LakeCatalog
from tests.conftest import MakeCatalogSettings, MakeSettings
from tests.faults.killed_pipeline import DRIVER_POINTS, GROWTH_POINTS, WORKER_POINTS
from tests.faults.noted_producers import Notes
from tests.faults.pipeline_producers import ORDERS
from tests.services import ROOT, Up, environment, up, wait_until

PRODUCERS = Path(__file__).with_name("pipeline_producers.py")
# Which process is killed at a random moment; and the points at which one kills itself.
KINDS = (
    *(WORKER_POINTS[0], "ingest", "worker", "driver"),
    *(WORKER_POINTS[1], "jvm", "one of two drivers"),
    *DRIVER_POINTS,
)
_COMMITS = 3  # of each of two drivers, before one of them is killed
_PATIENCE_SECONDS = 180.0
FLAGS = {
    "wal__segment_bytes_max": 1 << 20,
    "wal__free_bytes_min": 0,
    "pipeline__flush_interval_ms": 300,
    "pipeline__cycle_interval_ms": 50,
    "spark__master": "local[2]",
    "log__level": "error",
}


@dataclass
class Place:
    """A lake whose processes are killed, and what came of it."""

    settings: Settings
    flags: dict[str, Any]
    notes: Path
    service: Up
    chance: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    drivers: list[subprocess.Popen[str]] = field(default_factory=list)
    evolved_before: int | None = None  # when the first was killed
    # Ids of rows that no producer sends.
    fresh: Iterator[int] = field(default_factory=lambda: count(1_000_000_000_000))

    def start(self, *fate: str) -> subprocess.Popen[str]:
        """A pipeline that works, or one that dies at its point, in place of the one before."""
        self.end()
        return self._start_another(*fate)

    def _start_another(self, *fate: str) -> subprocess.Popen[str]:
        with self.notes.with_suffix(".driver").open("ab") as words:
            driver = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.faults.killed_pipeline",
                    json.dumps(self.flags),
                    *fate,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
                env=environment(),
                cwd=ROOT,
            )
        self.drivers.append(driver)
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n", self.words()
        return driver

    def end(self) -> None:
        while self.drivers:
            self._kill_driver(self.drivers[0])

    def _kill_driver(self, driver: subprocess.Popen[str]) -> None:
        self.drivers.remove(driver)
        driver.kill()
        driver.communicate()

    def words(self) -> str:
        return self.notes.with_suffix(".driver").read_text()[-3_000:]

    def kill(self, kind: str) -> None:
        if kind in DRIVER_POINTS:
            times = self.chance.randint(1, 3)
            dying = self.start(kind, str(times))
            if kind == "table made":
                self._make_topics(times)
            elif kind in GROWTH_POINTS:
                self._make_columns(dying)
            assert dying.wait(_PATIENCE_SECONDS) == -signal.SIGKILL, self.words()
        elif kind in WORKER_POINTS:
            mark = self.notes.with_name(f"worker-{self.start(kind).pid}")
            wait_until(mark.exists, _PATIENCE_SECONDS)
            self._work_a_while()
        else:
            working = [each for each in self.drivers if each.poll() is None]
            driver = working[0] if working else self.start()
            self._work_a_while()
            if kind == "one of two drivers":
                self._kill_one_of_two(driver)
            else:
                self._kill_now(kind, driver)
        self.kills[kind] += 1
        if self.evolved_before is None:
            self.evolved_before = self.evolutions()

    def evolutions(self) -> int:
        """How often a table got new columns."""
        topics = {topic for topic, _, _ in self._noted()}
        with LakeCatalog(self.settings) as catalog:
            return sum(_growth(catalog, topic) for topic in topics)

    def _make_topics(self, times: int) -> None:
        """As many more as need a table; the producers have made all of theirs after a while."""
        notes = Notes(str(self.notes))
        with Client(self.service.addresses()["flight"]) as client:
            for _ in range(times):
                first = next(self.fresh)
                topic = f"fresh{first}"
                client.produce(topic, [{"id": first}]).result()
                notes.write(topic, first, 1)

    def _make_columns(self, dying: subprocess.Popen[str]) -> None:
        """One after the other until it has died: those that come together make a table grow once."""
        notes = Notes(str(self.notes))
        client = Client(self.service.addresses()["flight"])
        with client, LakeCatalog(self.settings) as catalog:
            while dying.poll() is None:
                first, wanted = next(self.fresh), _growth(catalog, ORDERS) + 1
                client.produce(ORDERS, [{"id": first, f"late{first}": first}]).result()
                notes.write(ORDERS, first, 1)
                is_done = partial(_has_grown_or_died, catalog, wanted, dying)
                wait_until(is_done, _PATIENCE_SECONDS)

    def _kill_one_of_two(self, first: subprocess.Popen[str]) -> None:
        """Two that take the same rows to the same tables; no lease keeps them apart."""
        second = self._start_another()
        both = (first, second)
        wanted = [self._commits(each) + _COMMITS for each in both]
        wait_until(
            lambda: all(map(ge, map(self._commits, both), wanted)),
            _PATIENCE_SECONDS,
        )
        self._kill_driver(self.chance.choice(both))

    def _commits(self, driver: subprocess.Popen[str]) -> int:
        noted = self.notes.with_name(f"commits-{driver.pid}")
        return len(noted.read_text().splitlines()) if noted.exists() else 0

    def _kill_now(self, kind: str, driver: subprocess.Popen[str]) -> None:
        if kind == "driver":
            self.end()
        elif kind == "ingest":
            before = self.service.ingest_pid
            os.kill(before, signal.SIGKILL)
            wait_until(lambda: self.service.ingest_pid != before, _PATIENCE_SECONDS)
        else:
            name = "java" if kind == "jvm" else "python"
            wait_until(lambda: bool(_below(driver.pid, name)), _PATIENCE_SECONDS)
            os.kill(self.chance.choice(_below(driver.pid, name)), signal.SIGKILL)
        self._work_a_while()
        if kind == "jvm":
            self.end()

    def _work_a_while(self) -> None:
        """Until some more rows were acknowledged, so that there is always something under way."""
        wanted = self._count() + self.chance.randint(100, 1_000)
        wait_until(lambda: self._count() >= wanted, _PATIENCE_SECONDS)

    def _count(self) -> int:
        return sum(rows for _, _, rows in self._noted())

    def _noted(self) -> Iterator[tuple[str, int, int]]:
        """Of each acknowledgement the topic, the first id and how many."""
        for line in self.notes.read_text().splitlines():
            topic, first, rows = line.split()
            yield topic, int(first), int(rows)

    def acknowledged(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for topic, first, rows in self._noted():
            found.setdefault(topic, []).extend(range(first, first + rows))
        return found

    def drain(self) -> None:
        """Have a pipeline that nobody kills bring everything to its table."""
        said, _ = self.start().communicate(timeout=_PATIENCE_SECONDS)
        assert said == "drained\n", self.words()


def _growth(catalog: LakeCatalog, topic: str) -> int:
    """How often a topic's table got new columns."""
    table = catalog.find_table(topic)
    return max(each.schema_id for each in table.metadata.schemas) if table else 0


def _has_grown_or_died(catalog: LakeCatalog, wanted: int, driver: subprocess.Popen[str]) -> bool:
    return driver.poll() is not None or _growth(catalog, ORDERS) >= wanted


def _below(pid: int, name: str) -> list[int]:
    """The processes that a process has started, and those that they have, by what they run."""
    parents = {}
    for each in Path("/proc").glob("[0-9]*"):
        try:
            fields = (each / "stat").read_text().rpartition(")")[2].split()
            command = (each / "cmdline").read_bytes().split(b"\0")[0].decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(each.name)] = (int(fields[1]), Path(command).name)
    found, known = [], {pid}
    while more := {each for each, (parent, _) in parents.items() if parent in known} - known:
        known |= more
        found += [each for each in more if parents[each][1].startswith(name)]
    return found


@contextmanager
def producing(service: Up, notes: Path) -> Iterator[None]:
    at = service.addresses()
    words = notes.with_suffix(".err").open("ab")
    process = subprocess.Popen(
        [sys.executable, str(PRODUCERS), at["flight"], at["http"], str(notes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=words,
        env=environment(),
    )
    with process, words:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"started\n", notes.with_suffix(".err").read_text()
        try:
            yield
        finally:
            process.stdin.close()
            code = process.wait(_PATIENCE_SECONDS)
    assert code == 0, notes.with_suffix(".err").read_text()[-3_000:]


def in_tables(catalog: LakeCatalog, topic: str) -> Counter[int]:
    """How often each id is in the topic's table, or among its dead letters."""
    found: Counter[int] = Counter()
    rows = catalog.load_table(topic).scan(selected_fields=("id",)).to_arrow()
    found.update(rows.column("id").to_pylist())
    try:
        letters = catalog.load_table(TableName.parse(topic).dead_letters)
    except NotFound:
        return found
    originals = letters.scan(selected_fields=("original",)).to_arrow().column("original")
    found.update(json.loads(each)["id"] for each in originals.to_pylist())
    return found


def require_once(place: Place) -> str:
    """What came of it all, if nothing is lost or doubled."""
    acknowledged = place.acknowledged()
    lost = doubled = unknown = orphans = 0
    with LakeCatalog(place.settings) as catalog:
        for topic, ids in acknowledged.items():
            found = in_tables(catalog, topic)
            lost += len(set(ids) - found.keys())
            doubled += sum(count - 1 for count in found.values())
            unknown += len(found.keys() - set(ids))
            verified = verify_topic(catalog, topic, log=place.settings.wal.path, with_orphans=True)
            assert verified.is_sound, verified
            assert verified.orphans is not None
            orphans += len(verified.orphans)
            names = [Path(each.path).name for each in verified.orphans]
            assert all(name.startswith("offsets-") for name in names), names
    total = sum(map(len, acknowledged.values()))
    evolved = place.evolutions()
    evolved_later = evolved - (place.evolved_before or 0)
    told = (
        f"{place.kills.total()} kills: {dict(place.kills)}\n"
        f"{total} rows acknowledged, {lost} lost, {doubled} doubled, {orphans} files left over\n"
        f"{evolved} evolutions of tables, {evolved_later} of them after the first kill"
    )
    assert (lost, doubled, unknown) == (0, 0, 0), told
    assert total > 0
    assert evolved_later > 0, told
    return told


def killed(settings: Settings, flags: dict[str, Any], kinds: list[str], seed: int) -> Place:
    notes = Path(settings.data).with_name("notes")
    sets = [
        word
        for key, value in flags.items()
        if key != "data"
        for word in ("--set", f"{key}={value}")
    ]
    with up(Path(settings.data), "--only", "ingest", *sets) as service:
        place = Place(settings, flags, notes, service, random.Random(seed))
        with producing(service, notes):
            wait_until(lambda: notes.exists() and bool(place.acknowledged()), _PATIENCE_SECONDS)
            try:
                for kind in kinds:
                    place.kill(kind)
            finally:
                place.end()
        place.drain()
    return place


def flags_of(settings: Settings, more: dict[str, object]) -> dict[str, Any]:
    """What makes the same settings in another process."""
    assert settings.catalog.uri is not None
    return {
        "data": str(settings.data),
        "catalog.type": settings.catalog.type,
        "catalog.uri": settings.catalog.uri.reveal(),
        "storage.dsn": str(settings.storage.dsn),
        **{name.replace("__", "."): value for name, value in more.items()},
    }


def test_acknowledged_rows_are_in_their_tables_once_after_kills(
    make_settings: MakeSettings,
) -> None:
    settings = make_settings(**FLAGS)
    # Every step of the driver has its turn in the long form, and in a process that only seems to die.
    kinds = [WORKER_POINTS[1], "ingest", "jvm", GROWTH_POINTS[1]]
    print(require_once(killed(settings, flags_of(settings, FLAGS), kinds, seed=1)))


@pytest.mark.torture
@pytest.mark.usefixtures("more_jars")
@pytest.mark.parametrize("catalog", ["sqlite", "postgres", "rest"])
def test_acknowledged_rows_are_in_their_tables_once_after_many_kills(
    catalog_settings: MakeCatalogSettings, catalog: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = catalog_settings(catalog, **FLAGS)
    chance = random.Random(catalog)
    kinds = [*KINDS * 2, *chance.choices(KINDS, k=67 - 2 * len(KINDS))]
    chance.shuffle(kinds)
    told = require_once(killed(settings, flags_of(settings, FLAGS), kinds, seed=2))
    with capsys.disabled():
        print(f"\n{catalog}: {told}")
