"""Walking over a segment's frames, and telling a torn tail from damage.

Frames count by whole appends only. Where the walk ends, the rest is a torn tail unless something
proves that it was synced once: the published durable end, or a later frame that was written
when this place was already durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calve.wal.frame import (
    BadFrame,
    Flag,
    Frame,
    Header,
    Kind,
    candidates,
    is_blank,
    read_frame,
    read_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class Walk:
    """Iterates over whole appends; afterwards `end` is behind the last one and `stop` says why."""

    def __init__(self, view: memoryview, position: int, salt: int) -> None:
        self._view = view
        self._salt = salt
        self.end = position
        self.stop: BadFrame | None = None
        self.index_at: int | None = None

    def __iter__(self) -> Iterator[list[Frame]]:
        append: list[Frame] = []
        position = self.end
        while True:
            frame = self._next(position)
            if frame is None:
                return
            append.append(frame)
            position = frame.end
            if not frame.header.flags & Flag.MORE:
                yield append
                self.end = position
                append = []

    def _next(self, position: int) -> Frame | None:
        if is_blank(self._view, position):
            return None
        try:
            frame = read_frame(self._view, position, self._salt)
        except BadFrame as stop:
            self.stop = stop
            return None
        if frame.header.kind == Kind.INDEX:
            self.index_at = position
            return None
        return frame


def proof_of_damage(view: memoryview, end: int, salt: int, durable: int) -> str | None:
    """Why the bytes behind `end` cannot be a torn tail, or None."""
    if durable > end:
        return f"the log was synced to byte {durable}"
    for header in later_headers(view, end, salt):
        if header.durable > end:
            return f"the frame at byte {header.position} was written after a sync behind it"
    return None


def later_headers(view: memoryview, start: int, salt: int) -> Iterator[Header]:
    """Headers that are whole, behind `start`, however broken the bytes between them are."""
    for position in candidates(view, start):
        try:
            yield read_header(view, position, salt)[0]
        except BadFrame:
            continue
