"""Requests under way, and their end: nothing new is let in, and what is in gets its answer.

What would never end is told to end, and has little time for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_ENDLESS_SECONDS: Final = 1.0


class Gate:
    """Used from the event loop alone."""

    def __init__(self) -> None:
        self._inside: set[asyncio.Task[object]] = set()
        self._endless: set[asyncio.Task[object]] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.is_closing = False
        self.is_cut = False

    @property
    def inside_count(self) -> int:
        return len(self._inside)

    @contextmanager
    def inside(self) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._inside.add(task)
        self._is_empty.clear()
        try:
            yield
        finally:
            self._inside.discard(task)
            self._endless.discard(task)
            if not self._inside:
                self._is_empty.set()

    def go_on(self) -> None:
        """Say that the request goes on until somebody ends it: nobody waits long for that."""
        task = asyncio.current_task()
        assert task in self._inside
        self._endless.add(task)

    async def close(self, grace_seconds: float) -> None:
        """Let nothing in, and wait for what is inside; what takes longer is cut off."""
        self.is_closing = True
        endless_seconds = min(grace_seconds, _ENDLESS_SECONDS)
        if await self._emptied(endless_seconds):
            return
        self._cut(self._endless)
        if await self._emptied(grace_seconds - endless_seconds):
            return
        self._cut(self._inside)
        await self._emptied(1.0)

    def _cut(self, tasks: set[asyncio.Task[object]]) -> None:
        self.is_cut = True
        for task in tasks:
            task.cancel()

    async def _emptied(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._is_empty.wait()
        except TimeoutError:
            return False
        return True
