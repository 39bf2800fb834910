"""`calve wal inspect|verify|dump|repair`, as a user calls them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from calve.errors import Corruption
from calve.model import TableName
from calve.wal import Log, LogOptions, Rejected
from tests.commands import Run, run_command
from tests.fakes.oracle import TOPIC, rows

OPTIONS = LogOptions(free_bytes_min=0)


class Lake:
    """A lake's directory and the command line over it."""

    def __init__(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self.path = path
        self._monkeypatch = monkeypatch
        self._capture = capture

    @property
    def log(self) -> Path:
        return self.path / "_calve" / "wal"

    def open(self) -> Log:
        return Log(self.log, OPTIONS, background=False)

    def run(self, *arguments: str, code: int = 0) -> Run:
        words = ["calve", "wal", *arguments, "--data", str(self.path)]
        result = run_command(words, self._monkeypatch, self._capture)
        assert result.code == code, result.err
        return result

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code).out)

    def damage(self, position: int) -> None:
        path = self.log / "00000000000000000001.seg"
        content = bytearray(path.read_bytes())
        content[position] ^= 1
        path.write_bytes(bytes(content))


@pytest.fixture
def no_lake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Lake:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return Lake(tmp_path, monkeypatch, capsys)


@pytest.fixture
def lake(no_lake: Lake) -> Lake:
    lake = no_lake
    with lake.open() as log:
        stream = log.create_stream(TOPIC)
        log.append(stream, [rows(0, 3), [Rejected(b"{", "application/json", "cut")]])
        log.append(stream, pa.record_batch({"raw": [b"\x00\xff"]}))
    return lake


def test_inspect_shows_topics_and_segments(lake: Lake) -> None:
    shown = lake.run("inspect").out
    assert "orders" in shown
    assert "00000000000000000001.seg" in shown
    found = lake.json("inspect")
    (stream,) = found["streams"]
    assert (stream["topic"], stream["first_offset"], stream["durable_offset"]) == ("orders", 0, 5)
    assert not found["has_writer"]
    with lake.open():
        assert lake.json("inspect")["has_writer"]


def test_inspect_names_damage_inside_of_a_segment(lake: Lake) -> None:
    at = position_of_rows(lake)
    lake.damage(at)
    shown = lake.run("inspect")
    assert "damaged at byte " in shown.out
    assert "calve wal verify" in shown.err
    (segment,) = lake.json("inspect")["segments"]
    assert int(segment["problem"].split()[3].rstrip(":")) <= at
    assert lake.json("inspect", "--quick")["segments"][0]["problem"] is None


def test_verify_is_content_with_a_whole_log(lake: Lake) -> None:
    assert lake.json("verify")["is_whole"]
    assert "whole" in lake.run("verify").err
    with lake.open() as log:
        log.append(log.stream(TOPIC), rows(1))
        assert lake.json("verify")["is_whole"]


def position_of_rows(lake: Lake) -> int:
    content = (lake.log / "00000000000000000001.seg").read_bytes()
    return content.index(b"row 0row 1")


def test_verify_ends_with_7_and_names_the_offsets(lake: Lake) -> None:
    lake.damage(position_of_rows(lake))
    found = lake.json("verify", code=7)
    assert found["lost"] == [
        {"topic": "orders", "partition": 0, "name": "orders/0", "first": 0, "end": 3}
    ]
    result = lake.run("verify", code=7)
    assert "orders/0:0..3" in result.out
    assert "calve wal repair --accept-loss orders/0:0..3" in result.err


def test_dump_prints_rows_rejected_ones_and_holes(lake: Lake) -> None:
    with lake.open() as log:
        log.record_hole(log.stream(TOPIC), 5, 6)
    lines = lake.run("dump", "orders", "--from", "2", "--json").out.splitlines()
    found = [json.loads(line) for line in lines]
    assert [(row["offset"], row["kind"]) for row in found] == [
        (2, "rows"),
        (3, "rejected"),
        (4, "rows"),
        (5, "hole"),
    ]
    assert found[0]["value"] == {"id": 2, "text": "row 2"}
    assert found[1]["value"]["reason"] == "cut"
    assert "row 1" in lake.run("dump", "orders", "--limit", "2").out
    assert lake.run("dump", "nothing", code=4).err.startswith("error: ")


def test_the_holes_of_a_repair_have_one_shape(lake: Lake) -> None:
    lake.damage(position_of_rows(lake))
    for how in ("--dry-run", "--yes"):
        found = lake.json("repair", "--accept-loss=orders/0:0..5", how)
        assert found["holes"] == [{"name": "orders/0", "first": 0, "end": 3}]


def test_repair_asks_and_gives_up_only_what_is_accepted(lake: Lake) -> None:
    lake.damage(position_of_rows(lake))
    lake.run("repair", "--yes", code=5)
    lake.run("repair", "orders", "--accept-loss", "0..2", "--yes", code=5)
    planned = lake.json("repair", "orders", "--accept-loss", "0..3", "--dry-run")
    assert len(planned["rewritten"]) == 1
    asked = lake.run("repair", "orders", "--accept-loss", "0..3", code=2)
    assert "Say --yes, as there is nobody to ask" in asked.err
    lake.json("verify", code=7)
    report = lake.json("repair", "orders", "--accept-loss", "0..3", "--yes")
    assert Path(report["kept_aside"][0]).exists()
    assert lake.json("verify")["is_whole"]
    lines = lake.run("dump", "orders", "--json").out.splitlines()
    assert [json.loads(line)["kind"] for line in lines] == [*["hole"] * 3, "rejected", "rows"]


def test_repair_records_offsets_that_an_older_log_does_not_have(lake: Lake) -> None:
    lake.run("repair", "orders", "--accept-loss", "7..9", "--yes", code=5)
    lake.run("repair", "--accept-loss", "orders/0:5..9", "--yes")
    with lake.open() as log:
        assert log.append(log.stream(TOPIC), rows(9)).first == 9


@pytest.mark.parametrize("how", ["--dry-run", "--yes"])
@pytest.mark.parametrize(
    ("losses", "code", "told"),
    [
        (["others/0:5..9"], 4, "no topic others"),
        (["orders/1:5..9"], 4, "partition 1"),
        (["orders/0:2..4"], 5, "ends at 5"),
        (["orders/0:7..9"], 5, "ends at 5"),
        (["orders/0:5..9", "orders/0:11..12"], 5, "ends at 9"),
        (["orders/0:5..9", "others/0:0..1"], 4, "no topic others"),
        ([f"orders/0:5..{1 << 63}"], 3, "too large"),
    ],
)
def test_what_a_repair_refuses_its_dry_run_refuses_and_nothing_is_recorded(
    lake: Lake, losses: list[str], code: int, told: str, how: str
) -> None:
    given = [f"--accept-loss={each}" for each in losses]
    assert told in lake.run("repair", *given, how, code=code).err
    with lake.open() as log:
        assert (
            "writer already" in lake.run("repair", "--accept-loss=orders/0:5..9", how, code=5).err
        )
        assert log.append(log.stream(TOPIC), rows(5)).first == 5


def test_a_dry_run_says_what_would_be_recorded_and_records_nothing(lake: Lake) -> None:
    losses = ["--accept-loss=orders/0:5..9", "--accept-loss=orders/0:9..12"]
    holes = [{"name": "orders/0", "first": first, "end": end} for first, end in ((5, 9), (9, 12))]
    for _ in range(2):
        found = lake.json("repair", *losses, "--dry-run")
        assert (found["dry_run"], found["holes"]) == (True, holes)
    lake.run("repair", *losses, "--yes")
    with lake.open() as log:
        assert log.append(log.stream(TOPIC), rows(12)).first == 12


def test_a_segment_of_another_log_is_named_and_can_be_given_up(lake: Lake) -> None:
    other = lake.path / "other"
    for path in (lake.log, other):
        with Log(path, OPTIONS, background=False) as log:
            stream = log.stream(TOPIC) if log.streams else log.create_stream(TOPIC)
            log.append(stream, rows(6))
            log.rotate()
            log.append(stream, rows(7))
    name = "00000000000000000001.seg"
    (lake.log / name).write_bytes((other / name).read_bytes())
    assert "it is segment 1 of log" in lake.run("inspect").out
    assert "orders/0:0..6" in lake.run("verify", code=7).out
    assert "does not belong here" in lake.run("dump", "orders", code=5).err
    lake.run("repair", "--accept-loss", "orders/0:0..6", "--yes")
    assert lake.json("verify")["is_whole"]
    lines = lake.run("dump", "orders", "--json").out.splitlines()
    assert [json.loads(line)["kind"] for line in lines] == [*["hole"] * 6, "rows"]


@pytest.fixture
def doubtful(lake: Lake) -> Lake:
    """The last frames of two partitions are cut off; the durable end knows of one of them."""
    with lake.open() as log:
        log.create_stream(TOPIC, 1)
        begin = log.bytes_used
        for partition in (0, 1):
            log.append(log.stream(TOPIC, partition), rows(5))
    path = lake.log / "00000000000000000001.seg"
    path.write_bytes(path.read_bytes()[:begin])
    return lake


def test_the_command_that_a_refusal_names_works_whatever_was_accepted_before(
    doubtful: Lake,
) -> None:
    command = "repair --accept-loss orders/1:0..1 --accept-unknown"
    for given in ([], ["--accept-unknown"], ["--accept-loss=orders/1:0..1"]):
        assert f"`calve wal {command}`" in doubtful.run("repair", *given, "--yes", code=5).err
    doubtful.run(*command.split(), "--yes")
    assert doubtful.json("verify")["is_whole"]


def test_a_repair_says_which_offsets_it_gives_up_before_it_does(doubtful: Lake) -> None:
    losses = ["--accept-loss=orders/1:0..1", "--accept-unknown"]
    told = doubtful.run("repair", *losses, "--dry-run").err
    assert "would keep 1 file aside" in told
    assert "would record as lost: orders/0:5.." in told
    assert "would record as lost: orders/1:0..1" in told
    assert "\nrecorded as lost: orders/0:5.." in doubtful.run("repair", *losses, "--yes").err


def test_what_a_damaged_log_cannot_count_is_not_given_up(doubtful: Lake) -> None:
    losses = ["--accept-loss=orders/1:0..1", f"--accept-loss=orders/0:5..{1 << 63}"]
    told = doubtful.run("repair", *losses, "--accept-unknown", "--yes", code=3).err
    assert "too large" in told


def test_what_is_unknown_is_not_of_one_topic(doubtful: Lake) -> None:
    doubtful.run("repair", "orders", "--accept-unknown", "--yes", code=2)
    assert not doubtful.json("verify", code=7)["is_whole"]


def test_verify_says_when_nobody_knows_what_is_lost(lake: Lake) -> None:
    with lake.open() as log:
        log.rotate()
    (lake.log / "00000000000000000002.seg").unlink()
    assert not lake.json("verify", code=7)["damages"][0]["is_loss_known"]
    result = lake.run("verify", code=7)
    assert "maybe rows of 1 other topic: nothing tells" in result.out
    assert "calve wal repair --accept-unknown" in result.err
    lake.run("repair", "--accept-unknown", "--yes")
    with lake.open() as log:
        assert log.next_offset(log.stream(TOPIC)) > 5


@pytest.fixture
def nameless(lake: Lake) -> Lake:
    """What opened another topic is destroyed; its three rows are whole."""
    with lake.open() as log:
        begin = log.bytes_used
        stream = log.create_stream(TableName.parse("clicks"))
        end = log.bytes_used
        log.append(stream, rows(0, 3))
    path = lake.log / "00000000000000000001.seg"
    content = bytearray(path.read_bytes())
    content[begin:end] = bytes(end - begin)
    path.write_bytes(content)
    return lake


def test_rows_of_a_topic_whose_name_is_destroyed_keep_no_other_topic_shut(nameless: Lake) -> None:
    assert nameless.json("verify", code=7)["damages"][0]["nameless_streams"] == 1
    shown = nameless.run("verify", code=7)
    assert "the names of 1 topic" in shown.out
    assert "`calve wal repair --accept-unknown`" in shown.err
    refused = nameless.run("repair", "--yes", code=5).err
    assert "nothing else tells their names; 3 rows of them, in 1 frames" in refused
    assert "cannot be read" not in refused
    told = nameless.run("repair", "--accept-unknown", "--dry-run").err
    assert "3 rows in 1 frame of 1 topic whose name is destroyed would be only in" in told
    found = nameless.json("repair", "--accept-unknown", "--yes")
    assert found["left_out"] == {"streams": 1, "frames": 1, "rows": 3}
    assert len(found["kept_aside"]) == 1
    assert nameless.json("verify")["is_whole"]
    with nameless.open() as log:
        assert [stream.name for stream in log.streams] == ["orders/0"]
        assert log.append(log.stream(TOPIC), rows(9)).first == 5


def test_a_loss_that_is_recorded_already_is_told_so(lake: Lake) -> None:
    loss = "--accept-loss=orders/0:5..9"
    assert "\nrecorded as lost: orders/0:5..9" in f"\n{lake.run('repair', loss, '--yes').err}"
    for more in (["--yes"], ["--dry-run"]):
        assert "recorded as lost already: orders/0:5..9" in lake.run("repair", loss, *more).err
    assert "ends at 9" in lake.run("repair", "--accept-loss=orders/0:4..9", code=5).err
    lake.run("repair", loss, "--accept-loss=orders/0:9..10", "--yes")
    with lake.open() as log:
        assert log.next_offset(log.stream(TOPIC)) == 10


def test_the_audit_record_of_a_repair_says_what_it_gave_up(doubtful: Lake) -> None:
    doubtful.run("repair", "--accept-loss=orders/1:0..1", "--accept-unknown", "--yes")
    text = "".join(
        path.read_text() for path in (doubtful.path / "_calve").rglob("*audit*/*") if path.is_file()
    )
    assert '"accept_unknown":true' in text
    assert '"accepted":["orders/1:0..1"]' in text
    assert '"holes":["orders/0:5..' in text


def test_repair_writes_lost_files_again(lake: Lake) -> None:
    (lake.log / "durable").write_bytes(b"")
    (lake.log / "log.json").unlink()
    lake.run("verify", code=7)
    lake.run("repair", "--identity", "--durable", "--yes")
    assert lake.json("verify")["is_whole"]
    with lake.open() as log:
        assert log.append(log.stream(TOPIC), rows(9)).first == 5


@pytest.mark.parametrize("file", ["durable", "log.json"])
@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_what_nothing_else_can_be_told_of_is_told_in_json_too(
    lake: Lake, command: str, file: str
) -> None:
    (lake.log / file).write_bytes(b"?")
    found = lake.json(command, code=7)
    assert file in found["error"]["message"]
    assert "calve wal repair" in found["error"]["hint"]
    assert found.get("is_whole", False) is False


def test_a_repair_of_files_gives_up_no_offsets(lake: Lake) -> None:
    for switch in ("--durable", "--identity", "--adopt"):
        for given in (["--accept-loss=orders/0:5..9"], ["--accept-unknown"], ["orders"]):
            assert "second call" in lake.run("repair", switch, *given, "--yes", code=2).err


def test_a_lake_without_a_log_is_not_found(no_lake: Lake) -> None:
    for command in (["inspect"], ["verify"], ["repair"], ["dump", "orders"]):
        told = no_lake.run(*command, code=4).err
        assert "holds no log" in told
        assert "hint: --data" in told


def test_dump_says_what_there_is_instead(lake: Lake) -> None:
    assert "hint: it has orders/0" in lake.run("dump", "oders", code=4).err
    assert "hint: it has orders/0" in lake.run("dump", "orders", "--partition", "3", code=4).err
    beyond = lake.run("dump", "orders", "--from", "99")
    assert "orders/0 ends at offset 5" in beyond.err
    lake.run("dump", "orders", "--limit", "-1", code=2)


def test_a_repair_that_is_half_said_is_refused(lake: Lake) -> None:
    """Never the offsets of another partition than was meant."""
    loss = "--accept-loss=orders/x:5..9"
    assert "names no partition" in lake.run("repair", loss, "--yes", code=3).err
    assert "--accept-loss" in lake.run("repair", "orders", code=2).err


def test_dump_into_a_pipe_that_closes_ends_quietly(lake: Lake) -> None:
    with lake.open() as log:
        stream = log.stream(TOPIC)
        log.append(stream, pa.record_batch({"text": ["x" * 1000] * 2000}))
    program = f"{sys.executable} -c 'from calve.cli.main import calve; calve()'"
    line = f"{program} wal dump orders --limit 3000 --json --data {lake.path} | head -1"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
    assert (done.stderr, len(done.stdout.splitlines())) == ("", 1)


@pytest.mark.parametrize(
    "text",
    ["5", "5..5", "9..5", "a..b", "..", "-1..5", "²..3", "1..³", "٣..٥", f"5..{'9' * 5_000}"],
)
def test_a_range_that_is_none_is_refused(lake: Lake, text: str) -> None:
    assert "range" in lake.run("repair", "orders", f"--accept-loss={text}", code=3).err


def test_a_partition_that_is_none_is_refused(lake: Lake) -> None:
    given = ["repair", "orders", "--accept-loss", "5..9", "--yes"]
    assert "--partition" in lake.run(*given, "--partition", "-1", code=2).err
    for number in ("²", "9" * 5_000):
        told = lake.run("repair", f"--accept-loss=orders/{number}:5..9", code=3).err
        assert "names no partition" in told


def test_a_lost_segment_ends_every_look_at_its_rows_with_7(lake: Lake) -> None:
    with lake.open() as log:
        log.rotate()
        log.append(log.stream(TOPIC), rows(5))
    (lake.log / "00000000000000000001.seg").unlink()
    (damage,) = lake.json("verify", code=7)["damages"]
    assert damage["reason"] == "the file is missing"
    assert "orders/0:0..5" in lake.run("verify", code=7).out
    assert "is missing" in lake.run("dump", "orders", code=7).err
    with pytest.raises(Corruption, match="is missing"):
        lake.open()
    lake.run("repair", "--accept-loss", "orders/0:0..5", "--yes")
    assert lake.json("verify")["is_whole"]


@pytest.mark.parametrize(
    ("switches", "written"),
    [
        (["--adopt"], ["log.json"]),
        (["--identity"], ["log.json"]),
        (["--durable"], ["durable"]),
        (["--adopt", "--identity", "--durable"], ["log.json", "durable"]),
    ],
)
def test_repair_names_the_files_that_it_writes_again(
    lake: Lake, switches: list[str], written: list[str]
) -> None:
    for how, is_dry in (("--dry-run", True), ("--yes", False)):
        assert lake.json("repair", *switches, how) == {"dry_run": is_dry, "written": written}
    assert lake.json("verify")["is_whole"]


@pytest.mark.parametrize(
    ("command", "purpose"),
    [
        (["inspect"], "read"),
        (["verify"], "read"),
        (["dump", "orders"], "read"),
        (["repair"], "repaired"),
    ],
)
def test_what_the_disk_refuses_says_what_to_do(
    lake: Lake, command: list[str], purpose: str
) -> None:
    path = lake.log / "00000000000000000001.seg"
    path.unlink()
    path.mkdir()
    message, hint = lake.run(*command, code=6).err.splitlines()
    assert message.startswith(f"error: the log in {lake.log} cannot be {purpose}: [Errno ")
    assert hint == "hint: look at the disk and the directory's permissions, then try again"
