"""An answer to a question in SQL, on its way out: written by a thread, sent by the event loop.

The status is known when the first bytes are: what is wrong before that is a problem, what goes
wrong later cuts the answer off, so that nobody takes it for whole. A client that goes ends the
query, also while nothing was sent yet; so does one whose token counts no more, also while it does
not read.
"""

from __future__ import annotations

import asyncio
import io
import logging
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import pyarrow as pa
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from calve.errors import CalveError, Unavailable
from calve.ingest.answering import facts_of
from calve.ingest.http.peer import peer_of
from calve.query.formats import write_rows
from calve.query.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from starlette.types import Receive, Scope, Send

    from calve.access import Caller
    from calve.query.queries import Answer, Queries, Question

_log: Final = logging.getLogger(__name__)
_PIECE_BYTES: Final = 64 << 10
_AHEAD_MAX: Final = 4  # pieces
_LOOK_SECONDS: Final = 0.1
_TAKE_SECONDS: Final = 30.0  # in which a client has to take a piece


Piece: TypeAlias = bytes | CalveError | None


class AnswerWriter(io.RawIOBase):
    """Works a question out in a thread of its own, and hands its bytes to the event loop."""

    def __init__(
        self,
        queries: Queries,
        question: Question,
        kind: str,
        *,
        recheck: Callable[[Caller], None],
    ) -> None:
        """`recheck` raises when whoever asked may no longer."""
        super().__init__()
        self._recheck = recheck
        self._queries = queries
        self._question = question
        self._kind = kind
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[Piece] = asyncio.Queue(_AHEAD_MAX)
        self._is_gone = threading.Event()
        self._cut: asyncio.Future[CalveError] = self._loop.create_future()
        self._buffer = bytearray()
        self.headers: dict[str, str] = {}
        threading.Thread(target=self._run, name="calve-http-query", daemon=True).start()

    async def next(self) -> Piece:
        """The next bytes, or what went wrong, or None at the end."""
        return await self._pieces.get()

    async def cut(self) -> CalveError:
        """Why the client is not to have the rest, when it does not take what would tell it so."""
        return await asyncio.shield(self._cut)

    def give_up(self) -> None:
        """Nobody waits for the rest."""
        self._is_gone.set()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._buffer += view
        if len(self._buffer) >= _PIECE_BYTES:
            self._send()
        return len(view)

    def _run(self) -> None:
        try:
            answer = self._queries.ask(self._question, self._is_over)
            self.headers = _headers(answer)
            self._write(answer)
            self._send()
        except CalveError as error:
            self._put(self._refusal() or error)
        except Exception as error:  # noqa: BLE001
            _log.exception("a query failed")
            self._put(CalveError(f"the service failed at this query: {type(error).__name__}"))
        self._put(None)

    def _write(self, answer: Answer) -> None:
        def stream() -> pa.RecordBatchReader:
            batches = answer.batches(self._is_over)
            return pa.RecordBatchReader.from_batches(answer.schema, batches)

        try:
            write_rows(Rows(stream), self, self._kind)  # type: ignore[arg-type]
        finally:
            answer.close()

    def _is_over(self) -> bool:
        return self._is_gone.is_set() or self._refusal() is not None

    def _refusal(self) -> CalveError | None:
        try:
            self._recheck(self._question.caller)
        except CalveError as error:
            return error
        return None

    def _send(self) -> None:
        piece, self._buffer = bytes(self._buffer), bytearray()
        if piece and not self._put(piece):
            raise Unavailable("whoever asked has gone")

    def _put(self, piece: Piece) -> bool:
        """Wait until there is room for it; False if nobody takes it."""
        try:
            waiting: Future[None] = asyncio.run_coroutine_threadsafe(
                self._pieces.put(piece), self._loop
            )
        except RuntimeError:  # the loop has ended
            return False
        for _ in range(int(_TAKE_SECONDS / _LOOK_SECONDS)):
            try:
                waiting.result(_LOOK_SECONDS)
            except NotYet:
                if not self._is_over():
                    continue
                break
            except asyncio.CancelledError:
                return False
            return True
        waiting.cancel()
        self._is_gone.set()
        reason = self._refusal() or Unavailable("whoever asked does not take it")
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._cut_off, reason)
        return False

    def _cut_off(self, reason: CalveError) -> None:
        if not self._cut.done():
            self._cut.set_result(reason)


class AnswerResponse(Response):
    """Sends what a writer writes."""

    def __init__(self, writer: AnswerWriter, first: bytes | None, media_type: str) -> None:
        super().__init__(media_type=media_type, headers=writer.headers)
        del self.headers["content-length"]
        self._writer = writer
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(disconnected(receive))
        cut = asyncio.ensure_future(self._writer.cut())
        sent = asyncio.ensure_future(self._sent(send))
        try:
            await asyncio.wait((gone, sent, cut), return_when=asyncio.FIRST_COMPLETED)
            problem = next((each.result() for each in (sent, cut) if each.done()), None)
            if problem is not None and not gone.done():
                _log.warning("an answer was cut off: %s", problem.message)
                peer_of(scope).leave()
                await gone
        finally:
            for each in (gone, sent, cut):
                each.cancel()
            self._writer.give_up()

    async def _sent(self, send: Send) -> CalveError | None:
        """What cuts the answer off; None when all of it was sent."""
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        piece: Piece = self._first
        while piece is not None and not isinstance(piece, CalveError):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            piece = await self._writer.next()
        if piece is None:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        return piece


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def either(wanted: Coroutine[Any, Any, Piece], gone: asyncio.Future[None]) -> Piece:
    """What is wanted; ClientDisconnect if the client goes before it is there."""
    waiting = asyncio.ensure_future(wanted)
    both: set[asyncio.Future[Any]] = {waiting, gone}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ClientDisconnect
        return waiting.result()
    finally:
        waiting.cancel()


def _headers(answer: Answer) -> dict[str, str]:
    facts = facts_of(answer)
    return {
        "Calve-Query": facts.id,
        "Calve-As-Of": msgspec.json.encode(facts.as_of).decode(),
        "Cache-Control": "no-store",
    }
