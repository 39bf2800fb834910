"""What all readers of a process hold of history together: how much, and whose turn it is.

A reader asks for room before it reads a window, and gives it back with the window's last row. Those
who wait come in the order they asked, for one window each; whoever reads ahead gets what nobody
waits for. One that does not come for its rows keeps them until somebody else wants the room: then
they are taken from it, and it reads them once more when it comes.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from calve.clock import Clock

STALLED_SECONDS: Final = 1.0


class NoRoom(Exception):
    """A window cannot be read now: others come first, or what was read has been taken away."""


class HistoryMemory:
    """Safe to share between threads."""

    def __init__(
        self, bytes_max: int, *, clock: Clock, stalled_seconds: float = STALLED_SECONDS
    ) -> None:
        self._bytes_max = bytes_max
        self._clock = clock
        self._stalled_seconds = stalled_seconds
        self._lock = threading.Lock()
        self._shares: list[Share] = []
        self._waiting: list[Share] = []

    @property
    def held_bytes(self) -> int:
        return sum(share.held_bytes for share in list(self._shares))

    def share(self, let_go: Callable[[], None], wake: Callable[[], None]) -> Share:
        """For one reader of a range. `let_go` drops what it holds, `wake` says that there is room.

        Both are called with a lock held: they do nothing else.
        """
        made = Share(self, let_go, wake)
        with self._lock:
            self._shares.append(made)
        return made

    @contextmanager
    def in_use(self, share: Share) -> Iterator[None]:
        """Nothing is taken away from it in the block; NoRoom if it was before."""
        with self._lock:
            if share.is_taken_away:
                raise NoRoom
            share.is_busy = True
        try:
            yield
        finally:
            with self._lock:
                share.is_busy = False
                share.used_at = self._clock.monotonic()

    def take(self, share: Share, size_bytes: int) -> None:
        """Room for its next window, when it is its turn; NoRoom until then."""
        with self._lock:
            if not share.is_granted:
                share.wanted_bytes = size_bytes
                if share not in self._waiting:
                    self._waiting.append(share)
                self._serve()
            if not share.is_granted:
                raise NoRoom
            share.is_granted = False
            share.held_bytes += size_bytes - share.wanted_bytes

    def take_spare(self, share: Share, size_bytes: int) -> bool:
        """Room to read ahead, if nobody waits for any."""
        with self._lock:
            if self._waiting or not self._fits(size_bytes):
                return False
            share.held_bytes += size_bytes
            return True

    def give_back(self, share: Share, size_bytes: int) -> None:
        """What is done with; less than nothing, if more was read than was thought."""
        with self._lock:
            self._give_back(share, size_bytes)

    def leave(self, share: Share) -> None:
        with self._lock:
            if share in self._shares:
                self._shares.remove(share)
            self._give_back(share, share.held_bytes)

    def _give_back(self, share: Share, size_bytes: int) -> None:
        share.held_bytes -= size_bytes
        self._serve()

    def _fits(self, size_bytes: int) -> bool:
        """What is larger than everything may be read alone."""
        held = self.held_bytes
        return held == 0 or held + size_bytes <= self._bytes_max

    def _serve(self) -> None:
        """Give room to those who wait, in their order."""
        self._waiting = [share for share in self._waiting if share in self._shares]
        while self._waiting:
            share = self._waiting[0]
            if not self._fits(share.wanted_bytes) and not self._take_from_stalled(share):
                return
            del self._waiting[0]
            share.held_bytes += share.wanted_bytes
            share.is_granted = True
            share.used_at = self._clock.monotonic()
            share.wake()

    def _take_from_stalled(self, wanting: Share) -> bool:
        """Whether there is room by now, from those who have not come for theirs the longest."""
        latest = self._clock.monotonic() - self._stalled_seconds
        for share in sorted(self._shares, key=lambda each: each.used_at):
            if self._fits(wanting.wanted_bytes):
                break
            is_stalled = not share.is_busy and share.used_at <= latest
            if share is not wanting and share.held_bytes and is_stalled:
                share.is_taken_away, share.is_granted, share.held_bytes = True, False, 0
                share.let_go()
        return self._fits(wanting.wanted_bytes)


class Share:
    """What one reader of a range holds, and how it asks for more. See `HistoryMemory`."""

    def __init__(
        self, memory: HistoryMemory, let_go: Callable[[], None], wake: Callable[[], None]
    ) -> None:
        self._memory = memory
        self.let_go = let_go
        self.wake = wake
        self.held_bytes = 0
        self.wanted_bytes = 0
        self.used_at = 0.0
        self.is_busy = False
        self.is_granted = False  # what it wanted, and has not come for yet
        self.is_taken_away = False

    def in_use(self) -> AbstractContextManager[None]:
        return self._memory.in_use(self)

    def take(self, size_bytes: int) -> None:
        self._memory.take(self, size_bytes)

    def take_spare(self, size_bytes: int) -> bool:
        return self._memory.take_spare(self, size_bytes)

    def give_back(self, size_bytes: int) -> None:
        self._memory.give_back(self, size_bytes)

    def close(self) -> None:
        self._memory.leave(self)
