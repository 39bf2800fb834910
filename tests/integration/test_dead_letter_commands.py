"""`calve dead-letter`, in the lake and through its service: the same words, the same answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import calve
from calve.client import Client
from calve.errors import InvalidRequest, NotFound
from calve.ingest.dead_letters import plan
from calve.lake import Lake
from calve.model import TableName
from calve.topics import TopicChange, TopicSpec
from calve.wal import Rejected
from tests.commands import Run, run_command
from tests.fakes.small_pipeline import drain

ORDERS = TableName.parse("orders")
FRESH = TableName.parse("fresh")
NDJSON = "application/x-ndjson"
Command = Callable[..., Run]


def fill(lake: Lake) -> None:
    spec = TopicSpec(schema={"id": "long"}, on_unknown_column="dead_letter")
    lake.intake.create_topic(ORDERS, spec)
    rejected = [
        Rejected(b'{"id": 1, "x": 1}', NDJSON, "no column x"),
        Rejected('{"id": "grün"}'.encode(), NDJSON, "no number\nat all"),
        Rejected(b"\x00\xff", "image/png", "no rows"),
        Rejected(b'{"id": 2, "x": 1}', NDJSON, "no column x"),
    ]
    lake.intake.submit(ORDERS, rejected).wait()
    drain(lake.intake, lake.catalog, ORDERS)
    lake.intake.alter_topic(ORDERS, TopicChange(on_unknown_column="ignore"))
    lake.intake.create_topic(FRESH, spec)
    lake.intake.submit(FRESH, rejected).wait()


@pytest.fixture(params=["in the lake", "through the service"])
def command(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Command]:
    """A command on a lake with dead letters; with `--server`, where there is a service."""
    data = tmp_path / "lake"

    def run(*words: str) -> Run:
        return run_command(["calve", "dead-letter", *words], monkeypatch, capsys)

    if request.param == "in the lake":
        with calve.open(data) as lake:
            fill(lake)
        yield lambda *words: run(*words, "--data", str(data))
        return
    flags = {"data": str(data), "ingest.http_port": 0, "ingest.flight_port": 0}
    settings = calve.load_settings(flags=flags, environ={}).settings
    with Lake(settings) as lake:
        fill(lake)
        url = lake.serve().addresses.flight
        yield lambda *words: run(*words, "--server", url)


def test_they_are_listed_by_reason_and_offset(command: Command) -> None:
    done = command("list", "orders")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[:2] == ["COUNT  REASON", "2      no column x"]
    assert "no number\\nat all" in done.out
    assert [line.split()[1] for line in lines[-4:]] == ["0", "1", "2", "3"]
    some = command("list", "orders", "--reason", "no column", "--limit", "1")
    assert "and 1 more: --offsets 1- shows the next" in some.err
    found = command("list", "orders", "--offsets", "3-", "--since", "2020-01-01", "--json").json()
    assert (found["count"], found["letters"][0]["offset"]) == (1, 3)
    assert "no such dead letters" in command("list", "orders", "--until", "2020-01-01").err


def test_one_is_shown(command: Command) -> None:
    assert '{"id": "grün"}' in command("show", "orders", "1").out
    assert command("show", "orders", "2", "--json").json()["base64"] == "AP8="
    assert command("show", "orders", "1", "--raw").out == '{"id": "grün"}'
    assert command("show", "orders", "9").code == NotFound.exit_code


@pytest.mark.parametrize(
    ("original", "shown"),
    [
        (b'{"id": "\x1b[2J\x1b]0;gr\xc3\xbcn\x07"}', r'{"id": "\x1b[2J\x1b]0;grün\x07"}'),
        (b'{\t"id":\r\n "\xc2\x9b1m"}\n', '{\t"id":\\r\n "\\x9b1m"}\n'),
        ("\u202egnp".encode(), r"\u202egnp"),
    ],
)
def test_what_a_producer_sent_does_nothing_to_the_terminal_that_shows_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    original: bytes,
    shown: str,
) -> None:
    with calve.open(tmp_path) as lake:
        lake.intake.create_topic(ORDERS, TopicSpec(schema={"id": "long"}))
        lake.intake.submit(ORDERS, [Rejected(original, "text/plain", "no row")]).wait()
        drain(lake.intake, lake.catalog, ORDERS)
    # As on a terminal: what goes into a pipe is cleaned by click.
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)
    words = ["calve", "dead-letter", "show", "orders", "0", "--data", str(tmp_path)]
    done = run_command(words, monkeypatch, capsys)
    assert done.out.endswith(f"\n\n{shown}\n")
    assert run_command([*words, "--raw"], monkeypatch, capsys).out.encode() == original


def test_they_are_replayed_once(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "ROUND_ROWS_MAX", 3)
    tried = command("replay", "orders", "--all", "--dry-run", "--json").json()
    assert (tried["rows"], tried["rejected"]) == (1, 2)
    said = command("replay", "orders", "--all", "--dry-run").err
    assert "1 row of the first would be sent to the topic again" in said
    done = command("replay", "orders", "--all")
    assert done.code == 0
    assert "2 rows sent to the topic again" in done.err
    assert "2 still do not fit, and are dead letters again" in done.err
    again = command("replay", "orders", "--all", "--json").json()
    assert (again["rows"], again["rejected"], again["is_done"]) == (0, 0, True)


def test_they_are_discarded_when_it_is_meant(command: Command) -> None:
    assert command("discard", "orders", "--all").code == 2
    assert (
        "2 dead letters would be"
        in command("discard", "orders", "--reason", "no column", "--dry-run").err
    )
    done = command("discard", "orders", "--reason", "no column", "--yes", "--json").json()
    assert (done["count"], done["dry_run"]) == (2, False)
    assert command("list", "orders", "--json").json()["count"] == 2


WAITING = "the next commit brings what came since"


def test_those_that_wait_in_the_log_are_not_denied(command: Command) -> None:
    with_all = ("orders", "--all")
    assert command("discard", *with_all, "--yes").code == 0
    for words in (("replay", *with_all), ("discard", *with_all, "--yes")):
        done = command(*words)
        assert (done.code, WAITING in done.err) == (0, True), done.err
    for words in (
        ("replay", "fresh", "--all"),
        ("discard", "fresh", "--all"),
        ("show", "fresh", "1"),
    ):
        done = command(*words)
        assert (done.code, WAITING in done.err) == (NotFound.exit_code, True), done.err
        assert "ever" not in done.err
    assert WAITING in command("show", "orders", "9").err


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("show", "orders", str(10**26)), NotFound.exit_code, f"offset {10**26} in"),
        (("replay", "orders"), 2, "say which"),
        (("replay", "orders", "--all", "--reason", "x"), 2, "say which"),
        (("discard", "orders", "--yes"), 2, "say which"),
        (("discard", "orders", "--reason", "", "--yes"), InvalidRequest.exit_code, "is empty"),
        (("list", "orders", "--reason", ""), InvalidRequest.exit_code, "is empty"),
        (("list", "orders", "--offsets", "x"), InvalidRequest.exit_code, "no range"),
        (("list", "orders", "--since", "x"), InvalidRequest.exit_code, "not a time"),
        (("list", "order"), NotFound.exit_code, "there is no topic order"),
        (("replay", "others", "--all"), NotFound.exit_code, "there is no topic others"),
        (("list", "orders__dead_letters"), InvalidRequest.exit_code, "dead letters"),
        (("list", "No Name"), InvalidRequest.exit_code, "not a valid part"),
    ],
)
def test_mistakes_are_told(command: Command, words: tuple[str, ...], code: int, told: str) -> None:
    done = command(*words)
    assert (done.code, told in done.err) == (code, True), done.err


def test_a_lake_that_is_not_there_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["calve", "dead-letter", "list", "orders", "--data", str(tmp_path / "none")]
    assert run_command(words, monkeypatch, capsys).code == NotFound.exit_code
    assert not (tmp_path / "none").exists()


def test_a_client_has_the_same_as_a_lake(tmp_path: Path) -> None:
    flags = {"data": str(tmp_path / "lake"), "ingest.http_port": 0, "ingest.flight_port": 0}
    settings = calve.load_settings(flags=flags, environ={}).settings
    with Lake(settings) as lake:
        fill(lake)
        with Client(lake.serve().addresses.flight) as client:
            letters = client.dead_letters("orders")
            assert letters.list(limit=1)["count"] == 4
            assert letters.original(2) == b"\x00\xff"
            assert letters.replay(reason="no column")["rows"] == 2
            assert letters.discard(all=True)["count"] == 2
            with pytest.raises(InvalidRequest, match="not clear which"):
                letters.discard()
            with pytest.raises(InvalidRequest, match="reason"):
                letters.discard(reason="")
        with pytest.raises(InvalidRequest, match="reason"):
            lake.dead_letters("orders").discard(reason="")
