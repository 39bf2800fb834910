"""Rows of a stream, taken by a thread of their own and handed to the event loop in pieces.

The thread is at most a few pieces ahead of the client, so that a slow one costs no memory.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from calve.errors import CalveError, Overloaded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from calve.ingest.http.peer import Peer
    from calve.subscriptions.batch import Batch
    from calve.subscriptions.place import Place
    from calve.subscriptions.stream import RowStream

_AHEAD_MAX: Final = 2  # pieces
_PIECE_ROWS: Final = 500
_LOOK_SECONDS: Final = 0.25
_LIVES_SECONDS: Final = 5.0
_SIGNS: Final = 3  # of life, in the time after which a client that answers none is gone
Piece = TypeVar("Piece")
Written_co = TypeVar("Written_co", covariant=True)


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


class Form(Protocol[Written_co]):
    """How a door writes what a stream gives."""

    def rows(self, rows: list[tuple[Place, dict[str, Any]]]) -> Written_co:
        """Rows, each with the place behind it."""
        ...

    def place(self, place: Place | None) -> Written_co | None:
        """Where the stream is while no rows come; None while somebody else has the subscription.

        Nothing, if the client need not hear of it.
        """
        ...


class Pump(Generic[Piece]):
    """Made in the event loop; whatever becomes of it, it lets go of the stream."""

    def __init__(
        self,
        stream: RowStream,
        form: Form[Piece],
        *,
        peer: Peer,
        is_stopping: Callable[[], bool],
        ended: Callable[[], None],
        recheck: Callable[[], None],
    ) -> None:
        """`stream` is closed, and `ended` called, when nobody reads any more.

        `recheck` raises when the client may read no longer.
        """
        self.problem: CalveError | None = None  # by which the stream ended
        self._stream = stream
        self._form = form
        self._peer = peer
        self._lives_seconds = min(_LIVES_SECONDS, peer.silent_seconds_max / _SIGNS)
        self._is_stopping = is_stopping
        self._recheck = recheck
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[Piece | None] = asyncio.Queue(_AHEAD_MAX)
        self._is_gone = threading.Event()
        # Also where the client has gone before the answer began.
        self._let_go = weakref.finalize(self, _let_go, stream, ended)

    @property
    def is_stopped(self) -> bool:
        """Whether there would be more, if the service did not stop."""
        return self._is_stopping()

    async def pieces(self) -> AsyncIterator[Piece]:
        thread = threading.Thread(target=self._run, name="calve-http-stream", daemon=True)
        thread.start()
        try:
            while (piece := await self._pieces.get()) is not None:
                yield piece
        finally:
            self.end()

    def end(self) -> None:
        """The client is gone."""
        self._is_gone.set()

    def _run(self) -> None:
        try:
            self._take_all()
        except CalveError as error:
            self.problem = error
        finally:
            self._let_go()
            self._put(None)

    def _take_all(self) -> None:
        told: Place | None = None
        said_at = time.monotonic()
        while not self._has_left() and not self._is_stopping():
            self._recheck()
            batch = self._stream.poll(_LOOK_SECONDS)
            place = self._stream.place
            if batch is not None:
                assert place is not None
                pieces = self._of_batch(batch, place)
            elif self._stream.is_done:
                return
            elif (told is None) == (place is None) and self._is_recent(said_at):
                continue
            else:
                pieces = self._of_place(place)
            for piece in pieces:
                if not self._put(piece):
                    return
            told, said_at = place, time.monotonic()

    def _is_recent(self, said_at: float) -> bool:
        return time.monotonic() - said_at < self._lives_seconds

    def _has_left(self) -> bool:
        """Whether the client has gone, with or without a word."""
        if not self._is_gone.is_set() and self._peer.is_gone:
            self._is_gone.set()
            self._peer.leave()
        return self._is_gone.is_set()

    def _of_batch(self, batch: Batch, place: Place) -> Iterator[Piece]:
        """The rows of a batch; `place` is behind it."""
        # Whoever only takes rows in need not load what reads tables.
        from calve.subscriptions.row_json import row_documents

        for start in range(0, len(batch), _PIECE_ROWS):
            rows = list(row_documents(batch.rows.slice(start, _PIECE_ROWS)))
            ends = [row["offset"] + 1 for row in rows]
            if start + _PIECE_ROWS >= len(batch):
                ends[-1] = batch.next_offset
            places = [place.at(batch.partition, end) for end in ends]
            yield self._form.rows(list(zip(places, rows, strict=True)))

    def _of_place(self, place: Place | None) -> Iterator[Piece]:
        piece = self._form.place(place)
        if piece is not None:
            yield piece

    def _put(self, piece: Piece | None) -> bool:
        """Wait until there is room for it; False if the client is gone, or the service stops.

        Raises if it may read no longer: one that does not read must not keep its stream by that.
        """
        try:
            waiting: Future[None] = asyncio.run_coroutine_threadsafe(
                self._pieces.put(piece), self._loop
            )
        except RuntimeError:  # the loop has ended
            return False
        while not self._has_left():
            try:
                waiting.result(_LOOK_SECONDS)
            except NotYet:
                if piece is not None:  # the end is for everybody
                    self._recheck_waiting(waiting)
                continue
            except asyncio.CancelledError:
                return False
            return True
        waiting.cancel()
        return False

    def _recheck_waiting(self, waiting: Future[None]) -> None:
        try:
            self._recheck()
        except CalveError:
            waiting.cancel()
            raise


def _let_go(stream: RowStream, ended: Callable[[], None]) -> None:
    stream.close()
    ended()
