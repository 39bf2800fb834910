"""Runs the fuzz target for a bounded time; a finding is a failed test with the input's path."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.running import for_seconds, fuzz, needs_fuzzer


@needs_fuzzer
@for_seconds
def test_no_damage_fools_a_reader(
    seconds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = fuzz(["tests.fuzz.wal_reader"], seconds, tmp_path, longest=2_048)
    with capsys.disabled():
        print(f"\n{told}")
