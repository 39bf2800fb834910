"""What a reader has done so far, counted."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ReaderStats:
    """Counts since the reader was made.

    `polls` are looks for rows, `table_looks` those at the table's metadata among them.
    `files_opened` are data files, as often as each was opened, and `file_bytes` what they hold.
    Rows and batches are those that were handed out; `history_rows` came from the table, `tail_rows`
    from the log.
    """

    polls: int = 0
    table_looks: int = 0
    files_opened: int = 0
    file_bytes: int = 0
    batches: int = 0
    history_rows: int = 0
    tail_rows: int = 0


class Counts:
    """Counts up. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = ReaderStats()

    def add(self, **more: int) -> None:
        with self._lock:
            sums = {name: getattr(self._now, name) + count for name, count in more.items()}
            self._now = replace(self._now, **sums)

    @property
    def now(self) -> ReaderStats:
        return self._now
