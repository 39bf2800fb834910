"""Runs a command of `calve` or `iceberg-manager` in this process, which costs no start of Python."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from calve.cli import main


class Run(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def run_command(
    arguments: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    capture: pytest.CaptureFixture[str],
) -> Run:
    """What the words, the program first, would do in a shell."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        code = exit_code(arguments, monkeypatch)
    finally:
        # A program's logs go to the standard error of its time, which a test replaces.
        root.handlers[:] = handlers
        root.setLevel(level)
    captured = capture.readouterr()
    assert "Traceback" not in captured.err
    return Run(code, captured.out, captured.err)


def exit_code(arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """With what the program ends; what it prints goes where prints go."""
    monkeypatch.setattr("sys.argv", list(arguments))
    with pytest.raises(SystemExit) as ended:
        (main.calve if arguments[0] == "calve" else main.iceberg_manager)()
    return int(ended.value.code or 0)
