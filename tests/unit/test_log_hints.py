"""An error of the log, or of what it feeds, names a way out that exists: a command or a call."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import calve.wal
from calve.cli.main import CALVE, LazyGroup
from calve.tables import lineage, offsets, positions

MODULES = [
    *(
        path
        for package in ("wal", "state", "topics", "ingest")
        for path in sorted((Path(calve.__file__).parent / package).rglob("*.py"))
    ),
    *(Path(str(module.__file__)) for module in (lineage, offsets, positions)),
]


def texts(path: Path) -> Iterator[str]:
    """Every string of a module; what a placeholder stands for is X."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(p.value) if isinstance(p, ast.Constant) else "X" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def named(pattern: str) -> list[str]:
    found = (name for path in MODULES for text in texts(path) for name in re.findall(pattern, text))
    return sorted(set(found))


COMMANDS = named(r"`(calve [^`]+)`")
CALLS = named(r"`Log\.(\w+)")


def test_hints_name_commands_and_calls() -> None:
    assert {"calve wal verify", "calve topic verify"} <= set(COMMANDS)
    assert "create_stream" in CALLS


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_a_hint_names_exists(command: str) -> None:
    _, *words = command.split()
    found: click.Command = LazyGroup(CALVE, "calve")
    context = click.Context(found)
    while words and isinstance(found, click.Group):
        name = words.pop(0)
        following = found.get_command(context, name)
        assert following is not None, name
        found = following
    options = {option for parameter in found.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_a_hint_names_exists(call: str) -> None:
    assert callable(getattr(calve.wal.Log, call))
