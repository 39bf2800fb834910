"""Appends to a table of a lake again and again, as one of several processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from calve.lake import Lake
from calve.settings import load_settings


class Barrier(Protocol):
    def wait(self, timeout: float | None = None) -> int: ...


def append(
    flags: dict[str, Any], table: str, writer: int, appends: int, began: Barrier, words: str
) -> None:
    """Begin when all do; what it has to say goes to a file."""
    with Path(words).open("w") as file:
        os.dup2(file.fileno(), 2)
    with Lake(load_settings(flags=flags, environ={}).settings) as lake:
        began.wait(60)
        for number in range(appends):
            row = {
                "writer": pa.array([writer], pa.int32()),
                "number": pa.array([number], pa.int32()),
            }
            lake.catalog.load_table(table).append(pa.table(row))
