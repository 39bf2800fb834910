"""The names inside a log's directory. No topic's name is ever part of a path.

<wal>/
  log.json                    who this log is
  lock                        held by the one writer
  durable                     the end of what is synced, for readers and for recovery
  00000000000000000001.seg    segments, in order
  aside/                      bytes that a repair took out
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from calve.wal.files import Files

TEMPORARY: Final = ".tmp"

_SEGMENT: Final = re.compile(r"(\d{20})\.seg", re.ASCII)


@dataclass(frozen=True, slots=True)
class LogLayout:
    root: Path

    @property
    def identity(self) -> Path:
        return self.root / "log.json"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def durable(self) -> Path:
        return self.root / "durable"

    @property
    def aside(self) -> Path:
        return self.root / "aside"

    def segment(self, number: int) -> Path:
        return self.root / f"{number:020}.seg"


def temporary(path: Path) -> Path:
    return path.with_name(path.name + TEMPORARY)


def is_own(name: str) -> bool:
    """Whether a file is one that a log makes, the lock apart."""
    finished = name.removesuffix(TEMPORARY)
    return finished in ("durable", "log.json") or segment_number(finished) is not None


def segment_number(name: str) -> int | None:
    """The number in a segment's file name, or None for another file."""
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match else None


def is_log(files: Files, layout: LogLayout) -> bool:
    """Whether a log is here, or what is left of one."""
    if not files.exists(layout.root):
        return False
    return files.exists(layout.identity) or bool(segment_numbers(files, layout))


def segment_numbers(files: Files, layout: LogLayout) -> list[int]:
    """Of the segments that are there, in order."""
    numbers = (segment_number(name) for name in files.names(layout.root))
    return sorted(number for number in numbers if number is not None)
