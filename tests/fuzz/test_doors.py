"""Runs the fuzz targets of the doors for a bounded time; a finding is a failed test."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not importlib.util.find_spec("atheris"), reason="atheris is for Linux only")
@pytest.mark.parametrize("target", ["http", "flight", "authorization", "otlp"])
@pytest.mark.parametrize(
    "seconds", [5, pytest.param(300, marks=pytest.mark.torture)], ids="{}s".format
)
def test_no_bytes_open_a_door_or_break_it(
    target: str, seconds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        sys.executable, "-m", "tests.fuzz.doors", target,
        f"-max_total_time={seconds}", f"-artifact_prefix={tmp_path}/", "-print_final_stats=1",
        "-len_control=0", "-max_len=4096",
    ]  # fmt: skip
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds + 120
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    told = [line for line in result.stderr.splitlines() if "number_of_executed_units" in line]
    with capsys.disabled():
        print(f"\n{target}: {told[0]}")
