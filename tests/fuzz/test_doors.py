"""Runs the fuzz targets of the doors for a bounded time; a finding is a failed test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.running import for_seconds, fuzz, needs_fuzzer


@needs_fuzzer
@pytest.mark.parametrize("target", ["http", "flight", "authorization", "otlp"])
@for_seconds
def test_no_bytes_open_a_door_or_break_it(
    target: str, seconds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = fuzz(["tests.fuzz.doors", target], seconds, tmp_path, longest=4_096)
    with capsys.disabled():
        print(f"\n{target}: {told}")
