"""How long the command line takes to answer, as a ratio to Python with the CLI library alone.

    make bench, or: .venv/bin/python -m benchmarks.cli_start

The claim: `calve --help` and `calve config show` take at most twice as long as starting Python and
importing click. Runs are interleaved, and the median is compared, because machines are noisy.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 31
RATIO_MAX = 2.0
CALVE = str(Path(sys.executable).with_name("calve"))
LIMIT = [sys.executable, "-c", "import click"]
COMMANDS = {"calve --help": [CALVE, "--help"], "calve config show": [CALVE, "config", "show"]}


def seconds(command: list[str], directory: str) -> float:
    started = time.perf_counter()
    subprocess.run(command, cwd=directory, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def main() -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    measured: dict[str, list[float]] = {
        "python, import click": [],
        **{name: [] for name in COMMANDS},
    }
    with tempfile.TemporaryDirectory() as directory:
        for command in (LIMIT, *COMMANDS.values()):
            seconds(command, directory)
        for _ in range(ROUNDS):
            measured["python, import click"].append(seconds(LIMIT, directory))
            for name, command in COMMANDS.items():
                measured[name].append(seconds(command, directory))
    limit = statistics.median(measured["python, import click"])
    print(f"{'command':<24}{'median':>10}{'ratio':>8}   must be at most {RATIO_MAX:.1f}")
    for name, times in measured.items():
        median = statistics.median(times)
        print(f"{name:<24}{median * 1000:>7.1f} ms{median / limit:>8.2f}")


if __name__ == "__main__":
    main()
