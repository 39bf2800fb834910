"""What every handler works with: the intake, the threads beside the event loop, and the bounds."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeAlias, TypeVar

import msgspec
from starlette.responses import Response

from calve.errors import CalveError, InvalidRequest, UnknownOutcome
from calve.ingest.formats import decompressed
from calve.ingest.formats.types import TypesCache
from calve.ingest.http.callers import caller_of
from calve.ingest.http.gate import Gate
from calve.ingest.http.headers import encoding_of, identity_of
from calve.ingest.http.pump import Streams
from calve.ingest.refusals import as_refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import HTTPConnection, Request

    from calve.ingest.admission import Admitted
    from calve.ingest.http.upload import Upload
    from calve.ingest.intake import Intake
    from calve.model import TableName
    from calve.settings.tree import IngestSettings
    from calve.wal import Acknowledgement, PendingAppend
    from calve.wal.payload import Part

_THREADS_MAX: Final = 8
_DOCUMENT_BYTES_MAX: Final = 4 << 20
_RECHECK_SECONDS: Final = 1.0  # what came faster is not worth another thread

Grow: TypeAlias = "Callable[[int], object]"
Given = ParamSpec("Given")
Result = TypeVar("Result")
Found = TypeVar("Found", bound="HasParts")
Body = TypeVar("Body")


class HasParts(Protocol):
    """What was read from a body, as the intake takes it."""

    @property
    def parts(self) -> Sequence[Part]: ...


class Service:
    def __init__(self, intake: Intake, settings: IngestSettings) -> None:
        self.intake = intake
        self.settings = settings
        self.gate = Gate()
        self.streams = Streams(settings.streams_max)
        self.types = TypesCache()
        self.replaying = asyncio.Lock()
        threads = min(_THREADS_MAX, 2 + (os.cpu_count() or 1))
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="calve-http")

    async def in_thread(
        self, work: Callable[Given, Result], *given: Given.args, **named: Given.kwargs
    ) -> Result:
        """Do what would hold up the event loop."""
        loop = asyncio.get_running_loop()
        # What is done there is done by whoever sent the request.
        run = partial(copy_context().run, work, *given, **named)
        return await loop.run_in_executor(self._threads, run)

    async def body(
        self, request: Request, *, bytes_max: int | None = None
    ) -> tuple[bytes, Admitted]:
        """The request's bytes as they came, and what was admitted for them.

        Unauthenticated if the sender lost the right to while they came.
        """
        upload: Upload = request.scope["calve.upload"]
        caller = caller_of(request)
        begun = time.monotonic()
        body, admitted = await upload.read(
            self.intake.admission,
            caller.share(request.client.host if request.client else ""),
            bytes_max=min(bytes_max or sys.maxsize, self.settings.request_bytes_max),
            timeout_seconds=self.settings.http_body_timeout_ms / 1000,
        )
        if time.monotonic() - begun > _RECHECK_SECONDS:
            try:
                await self.in_thread(self.intake.doorkeeper.recheck, caller)
            except BaseException:
                admitted.release()
                raise
        return body, admitted

    async def document(self, request: Request, kind: type[Body]) -> Body:
        """The request's body as one of our types."""
        body, admitted = await self.body(request, bytes_max=_DOCUMENT_BYTES_MAX)
        with admitted:
            return await self.in_thread(parsed, body, kind)

    async def append(
        self, request: Request, name: TableName, read: Callable[[bytes, Grow], Found]
    ) -> tuple[Acknowledgement, Found | None]:
        """Append what `read` makes of the body, all or nothing; returns when it is durable.

        `read` is also given what it has to tell of the memory that it takes. A repeat that would
        be refused now is acknowledged all the same, without what was read.
        """
        producer, sequence = identity_of(request.headers)
        try:
            pending, found = await self._submitted(request, name, read)
        except InvalidRequest:
            repeat = await self.in_thread(self.intake.repeated, name, producer, sequence)
            if repeat is None:
                raise
            return repeat, None
        return await self._acknowledged(pending), found

    async def _submitted(
        self, request: Request, name: TableName, read: Callable[[bytes, Grow], Found]
    ) -> tuple[PendingAppend, Found]:
        encoding = encoding_of(request.headers)
        producer, sequence = identity_of(request.headers)
        if self.intake.limits is not None:
            self.intake.limits.require_room(name.tenant)  # before its bytes are read
        body, admitted = await self.body(request)

        def submit() -> tuple[PendingAppend, Found]:
            try:
                content = self.unpacked(body, encoding, admitted)
                found = read(content, admitted.grow)
            except BaseException:
                admitted.release()
                raise
            pending = self.intake.submit(
                name, found.parts, producer=producer, sequence=sequence, admitted=admitted
            )
            return pending, found

        return await self.in_thread(submit)

    def unpacked(self, body: bytes, encoding: str | None, admitted: Admitted) -> bytes:
        """What a body holds; it is counted as admitted while it comes out."""
        if encoding is None:
            return body
        content: bytes = decompressed(
            body, encoding, bytes_max=self.settings.request_bytes_max, grow=admitted.grow
        ).to_pybytes()
        return content

    async def _acknowledged(self, pending: PendingAppend) -> Acknowledgement:
        """What became of an append, without a thread that waits for it."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def tell(_: PendingAppend) -> None:
            loop.call_soon_threadsafe(_finish, done)

        pending.add_done_callback(tell)
        try:
            await done
        except asyncio.CancelledError:
            if not self.gate.is_cut:
                raise
            raise UnknownOutcome(
                "the service stops, and it is not known whether the rows are durable",
                hint="send them again with the same producer and sequence",
            ) from None
        outcome = pending.outcome
        if isinstance(outcome, CalveError):
            raise as_refusal(outcome)
        assert outcome is not None
        return outcome

    def close(self) -> None:
        """Begin nothing more; what a thread is in the middle of has been answered already."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def row_count(done: Acknowledgement) -> int:
    """How many rows an append has, by its offsets; 0 if they are not known any more."""
    return 0 if done.first is None or done.end is None else done.end - done.first


def topic_name(request: HTTPConnection) -> TableName:
    """The topic of the path, which is in the caller's reach."""
    return caller_of(request).topic(request.path_params["topic"])


def answer(value: object, status: int = HTTPStatus.OK) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def parsed(body: bytes, kind: type[Body]) -> Body:
    """A JSON body of one of our types."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InvalidRequest(
            f"the body is not what is expected: {error}", hint="see /docs for its form"
        ) from error


def number(
    request: Request, name: str, *, default: int | None, least: int, most: int
) -> int | None:
    """A whole number from the query."""
    text = request.query_params.get(name)
    if text is None:
        return default
    value = int(text) if text.isdecimal() and text.isascii() and len(text) < 20 else -1
    if not least <= value <= most:
        raise InvalidRequest(
            f"{name} is {text!r}", hint=f"give a whole number from {least} to {most}"
        )
    return value


def choice(request: HTTPConnection, name: str, choices: tuple[str, ...]) -> str | None:
    text = request.query_params.get(name)
    if text is not None and text not in choices:
        raise InvalidRequest(f"{name} is {text!r}", hint=f"it is one of {', '.join(choices)}")
    return text


def plain(value: Any, kind: type[Body]) -> Body:
    """A mapping of ours as one of the types that go over the wire."""
    return msgspec.convert(value, kind, strict=False)
