"""Runs a fuzz target for a bounded time, in a process whose memory is its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
# A process begins with the peak memory of the one that started it, and libFuzzer stops a target
# whose peak passes its bound: a shell in between is small, whatever the tests before have taken.
_WITH_OWN_PEAK = ("sh", "-c", '"$@"; exit $?', "sh")

needs_fuzzer = pytest.mark.skipif(
    not importlib.util.find_spec("atheris"), reason="atheris is for Linux only"
)
for_seconds = pytest.mark.parametrize(
    "seconds", [5, pytest.param(300, marks=pytest.mark.torture)], ids="{}s".format
)


def fuzz(target: list[str], seconds: int, findings: Path, *, longest: int) -> str:
    """What the fuzzer tells of its work; a finding fails the test and names its input's path."""
    command = [
        *_WITH_OWN_PEAK, sys.executable, "-m", *target,
        f"-max_total_time={seconds}", f"-artifact_prefix={findings}/", "-print_final_stats=1",
        "-len_control=0", f"-max_len={longest}",
    ]  # fmt: skip
    result = subprocess.run(
        command, cwd=_ROOT, capture_output=True, text=True, check=False, timeout=seconds + 120
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return next(line for line in result.stderr.splitlines() if "number_of_executed_units" in line)
