"""Requests that come while one of their kind is stored wait, and are then stored together.

As appends share a sync of the log, requests share what each costs by itself: hundreds of calls into
Arrow, an append, a wait for the disk. One thread leads, and the others sleep until their answer is
there. Nobody waits for company: whoever comes while nobody leads goes at once, alone.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

T = TypeVar("T")


class Call(Generic[T]):
    """One request. `kind` says with which others it may be stored; `outcome` is for whoever leads
    to set."""

    __slots__ = ("_latch", "body_bytes", "group", "is_alone", "kind", "message", "outcome")

    def __init__(self, kind: Hashable, message: Any, body_bytes: int) -> None:
        self.kind = kind
        self.message = message
        self.body_bytes = body_bytes
        self.outcome: T | None = None
        self.group: Sequence[Call[T]] = ()  # that it is to lead
        self.is_alone = False
        self._latch = threading.Lock()
        self._latch.acquire()

    def sleep(self) -> None:
        """Until somebody wakes it, who may have done so already."""
        self._latch.acquire()

    def wake(self) -> None:
        self._latch.release()


class Gathering(Generic[T]):
    """Safe to share between threads. A group has at most `bytes_max`, or one request."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, list[Call[T]]] = {}  # for each kind that somebody leads

    def group(self, call: Call[T]) -> Sequence[Call[T]]:
        """Wait: for the group that the caller is to lead, itself the first of it; or until another
        has led it, and then there is none."""
        call.group = ()
        with self._lock:
            waiting = self._waiting.get(call.kind)
            if waiting is None:
                self._waiting[call.kind] = []
                return (call,)
            waiting.append(call)
        call.sleep()
        return call.group

    @contextmanager
    def leading(self, group: Sequence[Call[T]]) -> Iterator[None]:
        """Around all that is done for a group; then the next one of its kind begins.

        Those that have no outcome by then ask for a group again, and get one of their own.
        """
        try:
            yield
        finally:
            for each in group:
                each.is_alone = True
            if after := self._next(group[0].kind):
                after[0].group = after
                after[0].wake()
            for each in group[1:]:
                each.wake()

    def _next(self, kind: Hashable) -> Sequence[Call[T]]:
        with self._lock:
            waiting = self._waiting[kind]
            if not waiting:
                del self._waiting[kind]
                return ()
            count = self._count(waiting)
            group, waiting[:] = waiting[:count], waiting[count:]
            return group

    def _count(self, waiting: Sequence[Call[T]]) -> int:
        """How many of those that wait go together, in the order in which they came."""
        room = self._bytes_max
        for count, each in enumerate(waiting):
            room -= each.body_bytes
            if count and (room < 0 or each.is_alone):
                return count
            if each.is_alone:
                return 1
        return len(waiting)
