"""Does many small pieces of work side by side, and does not wait for one that hangs.

When nothing has been finished for a while, whoever is still at work is left behind: others take
over what has not begun, and the caller goes on. What was left behind ends by itself, or never.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Crew:
    """A bounded number of threads at once, apart from those that were left behind."""

    def __init__(self, threads: int, *, patience_seconds: float) -> None:
        self._threads = threads
        self.patience_seconds = patience_seconds

    def run(
        self,
        items: Sequence[_T],
        work: Callable[[_T], None],
        failed: Callable[[_T, Exception], None],
    ) -> None:
        """Work on each item; return when every one is done or left behind.

        What the work raises goes to `failed`, so that one item's trouble is no other's. An
        interrupt of the program, or what stands for one, comes out here.
        """
        shift = _Shift(items, work, failed)
        shift.begin(self._threads)
        while not shift.is_over:
            if not shift.progressed(self.patience_seconds):
                if not shift.unbegun:
                    return
                shift.begin(self._threads)


class _Shift(Generic[_T]):
    """One run of a crew."""

    def __init__(
        self,
        items: Sequence[_T],
        work: Callable[[_T], None],
        failed: Callable[[_T, Exception], None],
    ) -> None:
        self._items = deque(items)
        self._count = len(items)
        self._work = work
        self._failed = failed
        self._done = 0
        self._changed = threading.Condition()
        self._interrupt: BaseException | None = None

    @property
    def unbegun(self) -> int:
        return len(self._items)

    @property
    def is_over(self) -> bool:
        if self._interrupt is not None:
            raise self._interrupt
        return self._done == self._count

    def begin(self, threads: int) -> None:
        for _ in range(min(threads, self.unbegun)):
            threading.Thread(target=self._serve, name="calve-pipeline", daemon=True).start()

    def progressed(self, seconds: float) -> bool:
        """Whether something was finished before the time was over."""
        with self._changed:
            before = self._done
            self._changed.wait_for(
                lambda: self._done == self._count or self._interrupt is not None, timeout=seconds
            )
            return self._done > before

    def _serve(self) -> None:
        while True:
            try:
                item = self._items.popleft()
            except IndexError:
                return
            try:
                self._work(item)
            except Exception as error:  # noqa: BLE001
                self._failed(item, error)
            except BaseException as interrupt:  # noqa: BLE001
                self._interrupt = interrupt
                self._items.clear()
            with self._changed:
                self._done += 1
                self._changed.notify_all()
