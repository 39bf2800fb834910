"""Runs a command of `calve` or `iceberg-manager` in this process, which costs no start of Python."""

from __future__ import annotations

import json
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
    monkeypatch.setattr("sys.argv", list(arguments))
    with pytest.raises(SystemExit) as ended:
        (main.calve if arguments[0] == "calve" else main.iceberg_manager)()
    captured = capture.readouterr()
    assert "Traceback" not in captured.err
    return Run(int(ended.value.code or 0), captured.out, captured.err)
