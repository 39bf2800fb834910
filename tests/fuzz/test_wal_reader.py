"""Runs the fuzz target for a bounded time; a finding is a failed test with the input's path."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def fuzz(seconds: int, directory: Path) -> str:
    command = [
        sys.executable, "-m", "tests.fuzz.wal_reader",
        f"-max_total_time={seconds}", f"-artifact_prefix={directory}/", "-print_final_stats=1",
        "-len_control=0", "-max_len=2048",
    ]  # fmt: skip
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds + 120
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return next(line for line in result.stderr.splitlines() if "number_of_executed_units" in line)


@pytest.mark.skipif(not importlib.util.find_spec("atheris"), reason="atheris is for Linux only")
@pytest.mark.parametrize(
    "seconds", [5, pytest.param(300, marks=pytest.mark.torture)], ids="{}s".format
)
def test_no_damage_fools_a_reader(
    seconds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = fuzz(seconds, tmp_path)
    with capsys.disabled():
        print(f"\n{told}")
