"""Rows as server-sent events: read and written by a thread of their own, sent by the event loop.

The thread is at most a few pieces ahead of the client, so that a slow one costs no memory. A
comment goes out where no rows come, so that everybody on the way knows that the stream lives.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.responses import StreamingResponse

from calve.errors import CalveError, Overloaded
from calve.ingest.refusals import as_refusal
from calve.protocol import problem_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from starlette.types import Receive, Scope, Send

    from calve.subscriptions.batch import Batch
    from calve.subscriptions.place import Place
    from calve.subscriptions.stream import RowStream

EVENTS: Final = "text/event-stream"
LAST_EVENT: Final = "Last-Event-ID"
_AHEAD_MAX: Final = 2  # pieces
_PIECE_ROWS: Final = 500
_LOOK_SECONDS: Final = 0.25
_LIVES_SECONDS: Final = 5.0
_HELLO: Final = b"retry: 1000\n: calve\n\n"
_LIVES: Final = b": calve\n\n"
_encoder: Final = msgspec.json.Encoder(enc_hook=str)


class Streams:
    """Counts those that are open, and refuses more than there may be. Safe between threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open = 0

    def enter(self) -> None:
        with self._lock:
            if self._open >= self._most:
                raise Overloaded(
                    f"{self._most} streams are open (ingest.streams_max)",
                    hint="close some, or try again later",
                )
            self._open += 1

    def leave(self) -> None:
        with self._lock:
            self._open -= 1


class EventStream(StreamingResponse):
    """An answer that goes on. Made in the event loop; whatever becomes of it, it lets go."""

    def __init__(
        self, stream: RowStream, *, is_stopping: Callable[[], bool], ended: Callable[[], None]
    ) -> None:
        """`stream` is closed, and `ended` called, when nobody reads any more."""
        super().__init__(
            self._sent(),
            media_type=EVENTS,
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        self._stream = stream
        self._is_stopping = is_stopping
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(_AHEAD_MAX)
        self._is_gone = threading.Event()
        # Also where the client has gone before the answer began.
        self._let_go = weakref.finalize(self, _let_go, stream, ended)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        thread = threading.Thread(target=self._run, name="calve-http-stream", daemon=True)
        thread.start()
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._is_gone.set()

    async def _sent(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece

    def _run(self) -> None:
        try:
            if self._put(_HELLO):
                self._send_all()
        except CalveError as error:
            self._put(_problem(error))
        finally:
            self._let_go()
            self._put(None)

    def _send_all(self) -> None:
        said_at = time.monotonic()
        while not self._is_gone.is_set() and not self._is_stopping():
            batch = self._stream.poll(_LOOK_SECONDS)
            if batch is not None:
                place = self._stream.place
                assert place is not None
                for piece in _pieces(batch, place):
                    if not self._put(piece):
                        return
            elif self._stream.is_done:
                return
            elif time.monotonic() - said_at < _LIVES_SECONDS:
                continue
            elif not self._put(_LIVES):
                return
            said_at = time.monotonic()

    def _put(self, piece: bytes | None) -> bool:
        """Wait until there is room for it; False if the client is gone, or the service stops."""
        try:
            waiting: Future[None] = asyncio.run_coroutine_threadsafe(
                self._pieces.put(piece), self._loop
            )
        except RuntimeError:  # the loop has ended
            return False
        while not self._is_gone.is_set():
            try:
                waiting.result(_LOOK_SECONDS)
            except NotYet:
                continue
            except asyncio.CancelledError:
                return False
            return True
        waiting.cancel()
        return False


def _let_go(stream: RowStream, ended: Callable[[], None]) -> None:
    stream.close()
    ended()


def _pieces(batch: Batch, place: Place) -> Iterator[bytes]:
    """The events of a batch; `place` is behind it."""
    # Whoever only takes rows in need not load what reads tables.
    from calve.subscriptions.row_json import row_documents

    for start in range(0, len(batch), _PIECE_ROWS):
        rows = list(row_documents(batch.rows.slice(start, _PIECE_ROWS)))
        is_last = start + _PIECE_ROWS >= len(batch)
        parts: list[bytes] = []
        for number, row in enumerate(rows, 1):
            is_end = is_last and number == len(rows)
            after = batch.next_offset if is_end else row["offset"] + 1
            here = place.at(batch.partition, after)
            parts.append(f"id: {here}\ndata: ".encode() + _encoder.encode(row) + b"\n\n")
        yield b"".join(parts)


def _problem(error: CalveError) -> bytes:
    return b"event: problem\ndata: " + problem_of(as_refusal(error)).encoded() + b"\n\n"
