"""The command line: help for everything, errors in words, exit codes that mean something."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from calve.cli.main import BRANCH, CALVE, ICEBERG_MANAGER, TABLE, TAG, Entry, LazyGroup, Noun
from tests.commands import Run, run_command

Calve = Callable[..., Run]


@pytest.fixture
def calve(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Calve:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, program: str = "calve") -> Run:
        return run_command([program, *arguments], monkeypatch, capsys)

    return run


def commands(group: click.Group, words: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{words} {name}")
        else:
            yield f"{words} {name}", command


ALL = dict(
    [
        *commands(LazyGroup(CALVE, "calve"), "calve"),
        *commands(LazyGroup(ICEBERG_MANAGER, "iceberg-manager"), "iceberg-manager"),
    ]
)


@pytest.mark.parametrize("name", ALL)
def test_every_command_is_explained_and_ends_with_an_example(name: str) -> None:
    command = ALL[name]
    assert command.help
    assert "Example: calve" in command.help
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--json", "--data", "--config", "--set", "-v"} <= options


@pytest.mark.parametrize("entries", [CALVE, ICEBERG_MANAGER, TABLE, BRANCH, TAG])
def test_the_summary_shown_without_loading_a_command_is_its_own(
    entries: dict[str, Entry | Noun],
) -> None:
    group = LazyGroup(entries, "x")
    for name, entry in entries.items():
        command = group.get_command(click.Context(group), name)
        assert command is not None
        assert (command.help or "").startswith(
            entry.summary.rstrip(".").split(";")[0].split(",")[0]
        )


def test_no_arguments_and_help_show_the_commands(calve: Calve) -> None:
    for arguments in ((), ("--help",), ("-h",)):
        run = calve(*arguments)
        assert all(name in run.out + run.err for name in CALVE)
    assert calve("--help").code == 0
    assert calve("--version").out.startswith("calve, version ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("frobnicate",), "No such command"),
        (("config", "show", "--nope"), "No such option"),
        (("config", "show", "--set", "novalue"), "--set takes KEY=VALUE"),
        (("table", "describe"), "Missing argument"),
    ],
)
def test_wrong_usage_ends_with_2(calve: Calve, arguments: tuple[str, ...], said: str) -> None:
    run = calve(*arguments)
    assert run.code == 2
    assert said in run.err
    assert not run.out


def test_config_init_show_and_check(calve: Calve, tmp_path: Path) -> None:
    assert calve("config", "init").code == 0
    assert calve("config", "init").code == 5
    assert calve("config", "init", "--force").code == 0
    assert calve("config", "check").code == 0
    (tmp_path / "calve.toml").write_text(
        "[storage]\naccess_key_id = 'me'\nsecret_access_key = 'canary-1'\n[wal]\nsync_mode = 'none'"
    )
    run = calve("config", "show")
    assert "canary" not in run.out
    assert [line.split() for line in run.out.splitlines() if line.startswith("wal.sync_mode")] == [
        ["wal.sync_mode", "none", "calve.toml"]
    ]
    shown = json.loads(calve("config", "show", "--json").out)
    assert shown["wal.sync_mode"] == {"value": "none", "origin": "calve.toml"}
    assert shown["storage.secret_access_key"]["value"] == "******"


def test_an_invalid_configuration_ends_with_3_and_leaves_nothing(
    calve: Calve, tmp_path: Path
) -> None:
    (tmp_path / "calve.toml").write_text("[catalog]\ntype = 'hive'")
    for arguments in (
        ("config", "show"),
        ("config", "check"),
        ("table", "list"),
        ("doctor",),
        ("setup",),
    ):
        run = calve(*arguments)
        assert run.code == 3
        assert "'hive' is not one of sql, memory, rest, glue" in run.err
        assert "Traceback" not in run.err
    assert [path.name for path in tmp_path.iterdir()] == ["calve.toml"]


def test_config_init_makes_no_file_that_would_stop_everything(calve: Calve, tmp_path: Path) -> None:
    assert calve("config", "init", "--config", "x.yaml").code == 3
    assert calve("config", "init", "--config", "nowhere/calve.toml").code == 4
    (tmp_path / "calve.yaml").write_text("log: {level: error}")
    assert calve("config", "init").code == 5
    assert [path.name for path in tmp_path.iterdir()] == ["calve.yaml"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_ends_early_is_no_defect() -> None:
    program = Path(sys.executable).with_name("calve")
    piped = subprocess.run(f"set -o pipefail; {program} config show | head -1", shell=True, check=False,
                           executable="/bin/bash", capture_output=True, text=True)  # fmt: skip
    assert (piped.returncode, piped.stderr) == (0, "")
    full = subprocess.run(
        f"{program} config show > /dev/full",
        shell=True,
        check=False,
        capture_output=True,
        text=True,
    )
    assert full.returncode == 6
    assert "no room left" in full.stderr


def test_a_missing_configuration_file_ends_with_4(calve: Calve) -> None:
    assert calve("config", "show", "--config", "nowhere.toml").code == 4


def test_looking_at_a_lake_that_is_not_there_ends_with_4_and_makes_none(
    calve: Calve, tmp_path: Path
) -> None:
    run = calve("table", "list", "--data", "nowhere")
    assert run.code == 4
    assert "there is no lake in" in run.err
    assert not list(tmp_path.iterdir())


def test_a_defect_is_one_line_unless_asked_for(
    calve: Calve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("in Calve")

    monkeypatch.setattr("calve.cli.options.load_settings", broken)
    run = calve("config", "show")
    assert run.code == 1
    assert run.err.startswith("unexpected error: ZeroDivisionError: in Calve\nhint: ")
    with pytest.raises(ZeroDivisionError):
        calve("config", "show", "-v")


def test_interrupting_ends_with_130(calve: Calve, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("calve.cli.options.load_settings", interrupted)
    assert calve("config", "show").code == 130


def test_an_interrupt_that_a_library_makes_an_error_of_is_one(
    calve: Calve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("a validator could not be built") from None

    monkeypatch.setattr("calve.cli.main._interrupts", [])
    # Where tests run side by side, their processes leave Ctrl-C to the one that started them.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr("calve.cli.options.load_settings", interrupted)
    try:
        run = calve("config", "show")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (run.code, run.err) == (130, "interrupted\n")


READS_ON = """
import sys, time
from pyarrow import csv
from calve.cli import entry, main

class Rows:
    closed = False
    left = [b"a,b\\n1,2\\n3\\n5,6\\n"] * 4

    def read(self, length):
        if len(self.left) < 2:
            time.sleep(0.2)
        return self.left.pop() if self.left else b""

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.6)

def refuse():
    global slow
    slow = Slow()  # Python takes its time to be taken apart
    print("said", end="")
    try:
        csv.open_csv(Rows(), csv.ReadOptions(block_size=14, use_threads=False))
    except Exception:
        sys.exit(3)

main.calve = refuse
entry.calve()
"""


def test_a_library_that_reads_on_does_not_abort_the_program() -> None:
    run = subprocess.run(
        [sys.executable, "-c", READS_ON], check=False, capture_output=True, text=True
    )
    assert (run.returncode, run.stdout, run.stderr) == (3, "said", "")
