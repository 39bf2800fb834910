"""`calve produce`: every format, in the lake itself, over Flight and over HTTP."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import calve
from calve.lake import Lake
from calve.model import TableName
from calve.service.announcement import running_service
from calve.service.survey import survey
from calve.wal import Kind, LogReader
from tests.commands import Run, run_command
from tests.services import environment, settings_of, up, wait_until

Calve = Callable[..., Run]
ROWS: list[dict[str, Any]] = [
    {"id": 1, "name": "Zoë"},
    {"id": 2, "name": None},
    {"id": 3, "name": 'a "b", c'},
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture(params=["lake", "flight", "http"])
def way(request: pytest.FixtureRequest, data: Path) -> Iterator[tuple[str, ...]]:
    """Options with which rows go straight into the lake, or through one of the doors."""
    if request.param == "lake":
        yield ()
        return
    settings = settings_of(data, ingest__http_port=0, ingest__flight_port=0)
    with calve.open(settings) as lake, lake.serve() as serving:
        yield () if request.param == "flight" else ("--server", serving.addresses.http)


@pytest.fixture
def flight(data: Path, way: tuple[str, ...]) -> str:
    """Where the service takes Arrow."""
    running = running_service(settings_of(data))
    assert running is not None
    return running.addresses.flight


@pytest.fixture
def produce(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data: Path
) -> Calve:
    monkeypatch.chdir(data.parent)

    def run(*words: str) -> Run:
        words = ("calve", "produce", *words, "--lake", str(data))
        return run_command(words, monkeypatch, capsys)

    return run


@pytest.fixture
def make_topic(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    data: Path,
    way: tuple[str, ...],
) -> Callable[..., None]:
    """Makes `events`, with an `id` and a `pad`, and the policies that are named."""

    def make(*policies: str) -> None:
        schema = data.parent / "schema.json"
        columns = [{"name": "id", "type": "long"}, {"name": "pad", "type": "string"}]
        schema.write_text(json.dumps({"columns": columns}))
        words = ("topic", "create", "events", "--schema", str(schema), *policies)
        made = run_command(("calve", *words, "--data", str(data)), monkeypatch, capsys)
        assert made.code == 0, made.err

    return make


def padded(ids: range, size: int = 1_000) -> str:
    return "".join(f'{{"id": {n}, "pad": "{"x" * size}"}}\n' for n in ids)


def in_log(data: Path, topic: str = "events") -> tuple[list[dict[str, Any]], list[bytes]]:
    """Rows and rejected ones, in the order of their offsets."""
    wal = settings_of(data).wal.path
    assert wal is not None
    with LogReader(wal) as reader:
        rows: list[dict[str, Any]] = []
        rejected: list[bytes] = []
        for entry in reader.read(reader.stream(TableName.parse(topic)), 0):
            if entry.kind == Kind.REJECTED:
                rejected += [each.original for each in entry.rejected]
            elif entry.batch is not None:
                rows += entry.batch.to_pylist()
    return rows, rejected


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=2))
    elif path.suffix == ".ndjson":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        comma = "\t" if path.suffix == ".tsv" else ","
        lines = ["id", "1", "2", "3"], ["name", "Zoë", "", '"a ""b"", c"']
        path.write_text("".join(f"{comma.join(cells)}\n" for cells in zip(*lines, strict=True)))


@pytest.mark.parametrize("ending", ["ndjson", "json", "csv", "tsv", "parquet", "arrow"])
def test_rows_of_every_format_arrive_once_and_in_order(
    produce: Calve, data: Path, way: tuple[str, ...], ending: str
) -> None:
    file = data.parent / f"rows.{ending}"
    write(file, ROWS)
    for count in (1, 2):
        run = produce("events", "--data", str(file), *way, "--json")
        assert run.code == 0, run.err
        told = run.json()
        assert (told["rows"], told["end"]) == (3, 3 * count)
        assert [(c["name"], c["type"]) for c in told["columns"]] == [
            ("id", "long"),
            ("name", "string"),
        ]
    assert in_log(data) == (ROWS * 2, [])


def test_the_words_say_where_what_and_how_to_go_on(
    produce: Calve, data: Path, way: tuple[str, ...]
) -> None:
    write(data.parent / "rows.csv", ROWS)
    run = produce("events", "--data", "rows.csv", *way)
    assert "in the lake at" in run.err or "through the service at" in run.err
    assert "3 rows are durable, offsets 0 up to 3" in run.err
    assert "try: calve " in run.err
    assert run.out.split() == ["COLUMN", "TYPE", "id", "long", "name", "string"]


def test_columns_that_come_late_are_added(
    produce: Calve, data: Path, way: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f'{{"id": {n}, "pad": "{"x" * 1000}"}}\n' for n in range(3_000)]
    lines.append('{"id": 3000, "late": 1.5}\n')
    standard = io.TextIOWrapper(io.BytesIO("".join(lines).encode()))
    monkeypatch.setattr("sys.stdin", standard)
    run = produce("events", "--data", "-", *way, "--json")
    assert run.code == 0, run.err
    assert [c["name"] for c in run.json()["columns"]] == ["id", "pad", "late"]
    rows, _ = in_log(data)
    assert [row["id"] for row in rows] == list(range(3_001))
    assert rows[-1]["late"] == 1.5


def test_a_topic_with_types_reads_text_with_them(
    produce: Calve, data: Path, way: tuple[str, ...]
) -> None:
    first = pa.table(
        {"id": pa.array([1], pa.int64()), "amount": pa.array(["1.50"]).cast(pa.decimal128(9, 2))}
    )
    pq.write_table(first, data.parent / "first.parquet")
    assert produce("events", "--data", "first.parquet", *way).code == 0
    (data.parent / "more.csv").write_text("id,amount\n9007199254740993,12.34\n")
    (data.parent / "more.ndjson").write_text('{"id": 9007199254740993, "amount": 12.34}\n')
    for file in ("more.csv", "more.ndjson"):
        assert produce("events", "--data", file, *way).code == 0
    rows, _ = in_log(data)
    assert {row["id"] for row in rows[1:]} == {9007199254740993}
    assert {str(row["amount"]) for row in rows[1:]} == {"12.34"}


@pytest.mark.parametrize("ending", ["csv", "ndjson"])
def test_a_bad_row_is_named_and_nothing_of_its_piece_appended(
    produce: Calve, data: Path, way: tuple[str, ...], ending: str
) -> None:
    write(data.parent / f"good.{ending}", ROWS)
    assert produce("events", "--data", f"good.{ending}", *way).code == 0
    bad = {"csv": "id,name\n4,x\nfive,y\n", "ndjson": '{"id": 4}\n{"id": "five"}\n'}[ending]
    (data.parent / f"bad.{ending}").write_text(bad)
    run = produce("events", "--data", f"bad.{ending}", *way)
    assert run.code == 3
    assert "row 2" in run.err
    assert "'id'" in run.err
    assert "five" in run.err
    assert len(in_log(data)[0]) == 3


@pytest.mark.parametrize("ending", ["csv", "ndjson"])
def test_bad_rows_are_set_aside_when_asked_for(
    produce: Calve, data: Path, way: tuple[str, ...], ending: str
) -> None:
    write(data.parent / f"good.{ending}", ROWS)
    assert produce("events", "--data", f"good.{ending}", *way).code == 0
    bad = {
        "csv": "id,name\n4,x\nfive,y\n6,z\n",
        "ndjson": '{"id": 4}\n{"id": "five"}\n{"id": 6}\n',
    }[ending]
    (data.parent / f"bad.{ending}").write_text(bad)
    run = produce("events", "--data", f"bad.{ending}", *way, "--on-error", "dead-letter", "--json")
    assert run.code == 0, run.err
    told = run.json()
    assert (told["rows"], told["rejected"], told["first"], told["end"]) == (2, 1, 3, 6)
    assert "five" in told["reasons"][0]
    rows, rejected = in_log(data)
    assert [row["id"] for row in rows] == [1, 2, 3, 4, 6]
    assert len(rejected) == 1
    assert b"five" in rejected[0]


def test_what_was_durable_before_an_error_is_said(
    produce: Calve, data: Path, way: tuple[str, ...]
) -> None:
    (data.parent / "rows.ndjson").write_text(padded(range(9_000)) + "{broken\n")
    run = produce("events", "--data", "rows.ndjson", *way)
    assert run.code == 3
    assert "row 9,001" in run.err
    rows, _ = in_log(data)
    assert f"{len(rows):,} rows are durable before that, up to offset {len(rows)}" in run.err
    assert 0 < len(rows) < 9_000


@pytest.mark.parametrize("way", ["flight"], indirect=True)
def test_what_was_refused_while_more_was_under_way_is_said(
    produce: Calve, make_topic: Callable[..., None], data: Path
) -> None:
    make_topic("--on-unknown-column", "refuse")
    lines = padded(range(4_500)) + '{"id": 4500, "late": 1}\n' + padded(range(4_501, 9_000))
    (data.parent / "rows.ndjson").write_text(lines + "{broken\n")
    run = produce("events", "--data", "rows.ndjson")
    assert run.code == 3
    ids = {row["id"] for row in in_log(data)[0]}
    said = re.search(
        r"rows ([\d,]+) to ([\d,]+) of the file did not come in: topic events", run.err
    )
    assert said is not None, run.err
    first, last = (int(number.replace(",", "")) for number in said.groups())
    assert first <= 4_501 <= last
    handed = len(ids) + last - first + 1
    assert f"{len(ids):,} rows are durable of the first {handed:,} of the file" in run.err
    assert ids == set(range(handed)) - set(range(first - 1, last))


def test_a_row_set_aside_is_named_by_its_place_in_the_file(
    produce: Calve, make_topic: Callable[..., None], data: Path, way: tuple[str, ...]
) -> None:
    make_topic()
    lines = padded(range(3_000)) + '{"id": "bad"}\n'
    (data.parent / "rows.ndjson").write_text(lines)
    table = "".join(f"{n},{'x' * 1_000}\n" for n in range(3_000))
    (data.parent / "rows.csv").write_text(f"id,pad\n{table}bad,x\n")
    for file in ("rows.ndjson", "rows.csv"):
        run = produce("events", "--data", file, *way, "--on-error", "dead-letter", "--json")
        assert run.code == 0, run.err
        told = run.json()
        assert (told["rows"], told["rejected"]) == (3_000, 1)
        assert told["reasons"][0].startswith("row 3,001, column 'id'")


def test_rows_set_aside_before_an_error_are_said(
    produce: Calve, make_topic: Callable[..., None], data: Path, way: tuple[str, ...]
) -> None:
    make_topic("--on-unknown-column", "dead-letter")
    lines = "".join(f'{{"id": {n}, "new": 1}}\n' for n in range(30_000))
    (data.parent / "rows.ndjson").write_text(lines)
    run = produce("events", "--data", "rows.ndjson", *way, "--on-error", "dead-letter")
    assert run.code == 3
    assert "more than 10,000 rows" in run.err
    rows, rejected = in_log(data)
    assert not rows
    assert (
        f"{len(rejected):,} rows were bad and are kept apart before that, as dead letters"
        in run.err
    )
    assert 0 < len(rejected) < 10_000


@pytest.mark.parametrize("ending", ["csv", "ndjson"])
def test_a_topic_that_sets_bad_rows_aside_does_so_unasked(
    produce: Calve, make_topic: Callable[..., None], data: Path, way: tuple[str, ...], ending: str
) -> None:
    make_topic("--on-bad-row", "dead-letter")
    two = {"csv": "id\n1\nfive\n", "ndjson": '{"id": 1}\n{"id": "five"}\n'}[ending]
    (data.parent / f"two.{ending}").write_text(two)
    run = produce("events", "--data", f"two.{ending}", *way, "--json")
    assert run.code == 0, run.err
    told = run.json()
    assert (told["rows"], told["rejected"]) == (1, 1)
    rows, rejected = in_log(data)
    assert [row["id"] for row in rows] == [1]
    assert b"five" in rejected[0]


@pytest.mark.parametrize("way", ["flight"], indirect=True)
def test_a_service_that_is_named_by_flight_alone_cannot_set_text_aside_and_it_is_said(
    produce: Calve, make_topic: Callable[..., None], data: Path, flight: str
) -> None:
    make_topic("--on-bad-row", "dead-letter")
    (data.parent / "two.ndjson").write_text('{"id": 1}\n{"id": "five"}\n')
    run = produce("events", "--data", "two.ndjson", "--server", flight)
    assert run.code == 3
    assert "sets bad rows aside, which goes over HTTP" in run.err
    assert in_log(data) == ([], [])


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("events", "--data", "nothing.csv"), 4),
        (("events", "--data", "."), 2),
        (("Events", "--data", "rows.csv"), 3),
        (("events", "--data", "rows.csv", "--format", "xml"), 3),
        (("events", "--data", "empty.csv"), 3),
        (("events", "--data", "rows.csv", "--server", "ftp://here"), 3),
        (("events", "--data", "rows.csv", "--server", "http://127.0.0.1:1/x"), 6),
        (("events", "--data", "rows.csv", "--server", "grpc://x", "--on-error", "dead-letter"), 3),
    ],
)
def test_a_mistake_ends_with_its_code(
    produce: Calve, data: Path, words: tuple[str, ...], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calve.client.posting.PATIENCE_SECONDS", 0.3)
    write(data.parent / "rows.csv", ROWS)
    (data.parent / "empty.csv").touch()
    run = produce(*words)
    assert run.code == code, run.err


def test_topics_are_made_only_if_allowed(produce: Calve, data: Path) -> None:
    write(data.parent / "rows.csv", ROWS)
    run = produce("events", "--data", "rows.csv", "--set", "ingest.auto_create=false")
    assert run.code == 4
    assert "no topic events" in run.err


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="tells the memory's peak")
def test_a_file_larger_than_memory_may_hold_is_streamed(data: Path) -> None:
    file = data.parent / "large.ndjson"
    line = '{"id": 1, "pad": "' + "x" * 980 + '"}\n'
    with file.open("w") as output:
        for _ in range(200):
            output.write(line * 1_024)
    code = (
        "import sys\nfrom calve.cli.main import calve\n"
        f"sys.argv = ['calve', 'produce', 'events', '--data', {str(file)!r}, '--lake', {str(data)!r}]\n"
        "try:\n    calve()\nexcept SystemExit as ended:\n    assert not ended.code\n"
        "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True
    )
    kib = int(run.stdout.split()[-1])
    assert file.stat().st_size > 200_000_000
    assert kib < 300 << 10, f"{kib:,} KiB"
    with Lake(settings_of(data)) as lake:
        assert lake.intake.offsets(TableName.parse("events")).durable == 200 * 1_024


@pytest.mark.parametrize("door", ["flight", "http"])
def test_a_service_that_is_killed_on_the_way_gets_every_row_once(data: Path, door: str) -> None:
    count = 60_000
    file = data.parent / "rows.ndjson"
    file.write_text("".join(f'{{"id": {n}, "pad": "{"x" * 200}"}}\n' for n in range(count)))
    with up(data) as service:
        at = service.addresses()
        command = [sys.executable, "-c", "from calve.cli.main import calve; calve()", "produce"]
        options = ["events", "--data", str(file), "--server", at[door], "--json"]
        with subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, text=True, env=environment()
        ) as sending:
            wait_until(lambda: durable(data) > 0)
            os.kill(service.ingest_pid, signal.SIGKILL)
            out, _ = sending.communicate(timeout=120)
        assert sending.returncode == 0
        assert json.loads(out)["rows"] == count
    assert [row["id"] for row in in_log(data)[0]] == list(range(count))


def durable(data: Path) -> int:
    topics = survey(settings_of(data)).topics
    return (topics[0].durable or 0) if topics else 0
