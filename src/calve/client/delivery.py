"""What becomes of rows that were handed to the client: a handle to wait on, or to await."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Final, NamedTuple

from calve.errors import CalveError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_log: Final = logging.getLogger(__name__)


class Delivered(NamedTuple):
    """The offsets of the rows, `first` up to but not including `end`; they are durable.

    None, both, for a repeat of something that was sent too long ago to be known by number. Where
    rows went in as several appends, others' may lie in between.
    """

    first: int | None
    end: int | None
    is_repeat: bool = False


class Delivery:
    """Returned by `Client.produce`: `result()`, or `await` it. Safe to share between threads."""

    __slots__ = ("_awaited", "_callbacks", "_done", "_hurry", "_lock", "_missing", "is_seen")

    def __init__(self, hurry: Callable[[], None]) -> None:
        self._hurry = hurry
        self._lock = threading.Lock()
        self._missing = 1  # pieces that are not decided; one stands for those still to come
        self._done: Delivered | CalveError | None = None  # of the pieces so far
        self._awaited: threading.Event | None = None
        self._callbacks: list[Callable[[Delivery], object]] = []
        self.is_seen = False  # whether somebody was told, or will be

    @property
    def is_done(self) -> bool:
        return self._missing == 0

    def result(self, timeout_seconds: float | None = None) -> Delivered:
        """Wait for the rows to be durable; raises the CalveError that kept them from it.

        Unavailable after the time-out: they may still arrive.
        """
        with self._lock:
            self.is_seen = True
            if self._missing and self._awaited is None:
                self._awaited = threading.Event()
        if self._missing:
            self._hurry()
            assert self._awaited is not None
            if not self._awaited.wait(timeout_seconds):
                self.is_seen = False
                raise Unavailable(
                    f"no acknowledgement within {timeout_seconds} s",
                    hint="the rows may still arrive: wait again on the same delivery",
                )
        return self._outcome()

    def _outcome(self) -> Delivered:
        if isinstance(self._done, CalveError):
            raise copy(self._done)
        assert self._done is not None
        return self._done

    @property
    def error(self) -> CalveError | None:
        """What kept the rows from being appended; None while that is not decided, and if not."""
        return self._done if self.is_done and isinstance(self._done, CalveError) else None

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call back once it is decided, from the client's thread; at once if it is already."""
        self.is_seen = True
        with self._lock:
            if self._missing:
                self._callbacks.append(callback)
                return
        callback(self)

    def __await__(self) -> Generator[object, None, Delivered]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        def tell(_: Delivery) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(wake)

        self.add_done_callback(tell)
        self._hurry()
        yield from future
        return self._outcome()

    def expect_piece(self) -> None:
        with self._lock:
            self._missing += 1

    def expect_no_more(self) -> None:
        self._decide(None)

    def piece_done(self, piece: Delivered | CalveError) -> None:
        self._decide(piece)

    def _decide(self, piece: Delivered | CalveError | None) -> None:
        with self._lock:
            self._done = _together(self._done, piece)
            self._missing -= 1
            if self._missing:
                return
            callbacks, self._callbacks = self._callbacks, []
            awaited = self._awaited
        if awaited is not None:
            awaited.set()
        for callback in callbacks:
            try:
                callback(self)
            except Exception:  # noqa: BLE001
                _log.exception("a callback of a delivery failed")


def _together(
    before: Delivered | CalveError | None, piece: Delivered | CalveError | None
) -> Delivered | CalveError | None:
    if before is None or piece is None:
        return before or piece
    if isinstance(before, CalveError):
        return before
    if isinstance(piece, CalveError):
        return piece
    return Delivered(before.first, piece.end, before.is_repeat and piece.is_repeat)
