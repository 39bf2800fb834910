"""Requests under way, and their end: nothing new is let in, and what is in gets its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Used from the event loop alone."""

    def __init__(self) -> None:
        self._inside: set[asyncio.Task[object]] = set()
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
            if not self._inside:
                self._is_empty.set()

    async def close(self, grace_seconds: float) -> None:
        """Let nothing in, and wait for what is inside; what takes longer is cut off."""
        self.is_closing = True
        if await self._emptied(grace_seconds):
            return
        self.is_cut = True
        for task in self._inside:
            task.cancel()
        await self._emptied(1.0)

    async def _emptied(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._is_empty.wait()
        except TimeoutError:
            return False
        return True
