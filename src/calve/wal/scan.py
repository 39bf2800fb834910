"""Walking over a segment's frames, and telling a torn tail from damage.

Frames count by whole appends only. Where the walk ends, the rest is a torn tail unless something
proves that it was synced once: the published durable end, or a later frame that was written
when this place was already durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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

_LOOK_BYTES: Final = 1 << 16


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


def written_end(view: memoryview | None) -> int:
    """Where the zeros begin with which a segment ends that is not full."""
    end = len(view) if view is not None else 0
    while view is not None and end:
        begin = max(0, end - _LOOK_BYTES)
        if used := bytes(view[begin:end]).rstrip(b"\0"):
            return begin + len(used)
        end = begin
    return 0


def frame_or_damage(
    view: memoryview, position: int, salt: int
) -> tuple[Frame | None, BadFrame | None]:
    if is_blank(view, position):
        return None, None
    try:
        return read_frame(view, position, salt), None
    except BadFrame as error:
        return None, error


def next_whole(view: memoryview, position: int, salt: int) -> Header | None:
    return next(later_headers(view, position + 1, salt), None)
