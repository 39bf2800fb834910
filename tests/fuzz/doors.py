"""Coverage-guided fuzzing of what reads bytes of the network, most of it before anybody is known.

    python -m tests.fuzz.doors http -max_total_time=60

Targets: `http` (heads and paths, by a service that wants tokens), `authorization` (the header),
`flight` (tickets, descriptors, bodies of actions), `otlp` (requests in protobuf and JSON). Whatever
comes, nobody without a token is let in, every error is one of Calve's own, and no answer is 500.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["calve.ingest", "calve.access", "calve.protocol"]):
    from calve.access import OPEN, Caller
    from calve.errors import CalveError
    from calve.ingest import Intake
    from calve.ingest.addresses import same_address
    from calve.ingest.flight import actions
    from calve.ingest.flight.names import topic_of
    from calve.ingest.http import server as http_server
    from calve.ingest.http.app import App
    from calve.ingest.http.guard import Guard
    from calve.ingest.http.protection import Protected
    from calve.ingest.http.routes import OPERATIONS
    from calve.ingest.http.service import Service
    from calve.ingest.otlp.decoding import decode as decode_signal
    from calve.ingest.otlp.decoding import read_message
    from calve.ingest.otlp.json_requests import protobuf_of
    from calve.ingest.otlp.weight import weight, weight_to_parse
    from calve.protocol import LogRange
    from calve.protocol.flight import decode
    from calve.protocol.queries import QueryTicket
    from calve.protocol.streams import StreamTicket, TicketKind

import msgspec
from pyarrow import flight
from starlette.requests import Request
from starlette.responses import Response
from uvicorn.server import ServerState

from calve.settings import Settings, load_settings
from tests.fakes.clocks import HandClock

Provider = atheris.FuzzedDataProvider
NAMES = (b"Host", b"Origin", b"Authorization", b"Content-Length", b"Transfer-Encoding", b"Upgrade",
         b"Connection", b"Sec-WebSocket-Key", b"Sec-Fetch-Site", b"Accept", b"Expect")  # fmt: skip
VALUES = (b"127.0.0.1", b"Bearer calve_x", b"bearer ", b"chunked", b"0", b"-1", b"websocket",
          b"Upgrade", b"cross-site", b"http://127.0.0.1", b"100-continue", b"\xff\xfe")  # fmt: skip
METHODS = (b"GET", b"POST", b"HEAD", b"OPTIONS", b"DELETE", b"PATCH", b"PUT", b"CONNECT", b"X")
PATHS = (*(each.path.encode() for each in OPERATIONS), b"/", b"*", b"//h/", b"/%00", b"/%2e%2e/")
STATUS = re.compile(rb"^HTTP/1\.1 (\d+)", re.MULTILINE)


def settings(directory: str) -> Settings:
    flags = {"data": directory, "auth.required": True, "ingest.http_port": 0}
    return load_settings(flags=flags, environ={}).settings


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 80)})
        self.written = b""
        self._is_closing = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self._is_closing = True

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def set_protocol(self, protocol: Any) -> None: ...


class Http:
    def __init__(self, intake: Intake) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self.let_in: list[str] = []
        self.problems: list[Any] = []
        self._loop.set_exception_handler(lambda _, context: self.problems.append(context))
        whole = intake.settings
        operations = [
            each if each.scope == OPEN else dataclasses.replace(each, handler=self._note)
            for each in OPERATIONS
        ]
        app = App(Service(intake, whole.ingest), operations, Guard(whole))
        protected = Protected(app, whole.ingest.host, has_tls=False)
        running = http_server._Running(app._service, protected, None, None)  # type: ignore[arg-type]
        self._config = running._server.config
        self._config.load()
        self._make: Callable[..., Any] = self._config.http_protocol_class

    async def _note(self, _: Service, request: Request) -> Response:
        self.let_in.append(request.url.path)
        return Response()

    def try_input(self, content: bytes) -> None:
        data = Provider(content)
        transport = Transport()
        protocol = self._make(
            config=self._config, server_state=ServerState(), app_state={}, _loop=self._loop
        )

        async def talk() -> None:
            protocol.connection_made(transport)
            for piece in _pieces(data, head(data)):
                protocol.data_received(piece)
                await asyncio.sleep(0)
            await _settled()
            protocol.connection_lost(None)
            await _settled()

        self._loop.run_until_complete(talk())
        assert not self.let_in, self.let_in
        assert not self.problems, self.problems
        assert b"500" not in STATUS.findall(transport.written), transport.written


async def _settled() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=0.2)


def head(data: Any) -> bytes:
    """Bytes as they come, or something like a request with them in it."""
    if data.ConsumeBool():
        return bytes(data.ConsumeBytes(4_096))
    path = data.PickValueInList(list(PATHS)) + data.ConsumeBytes(data.ConsumeIntInRange(0, 8))
    lines = [data.PickValueInList(list(METHODS)) + b" " + path + b" HTTP/1.1"]
    for _ in range(data.ConsumeIntInRange(0, 6)):
        value = (
            data.PickValueInList(list(VALUES))
            if data.ConsumeBool()
            else data.ConsumeBytes(data.ConsumeIntInRange(0, 40))
        )
        lines.append(data.PickValueInList(list(NAMES)) + b": " + value)
    return b"\r\n".join(lines) + b"\r\n\r\n" + bytes(data.ConsumeBytes(200))


def _pieces(data: Any, content: bytes) -> list[bytes]:
    cut = data.ConsumeIntInRange(0, len(content))
    return [piece for piece in (content[:cut], content[cut:]) if piece]


class Flight:
    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._caller = Caller.of_host()

    def try_input(self, content: bytes) -> None:
        for kind in (TicketKind, StreamTicket, QueryTicket):
            with suppress(CalveError):
                decode(content, kind, what="the ticket")
        for ticket in (content, signed(Provider(content))):
            with suppress(CalveError):
                wanted = decode(ticket, LogRange, what="the ticket")
                assert not self._is_let_in(wanted), ticket
        actions.subject_of(content)
        data = Provider(content)
        path = [data.ConsumeBytes(20) for _ in range(data.ConsumeIntInRange(0, 4))]
        for descriptor in (
            flight.FlightDescriptor.for_path(*path),
            flight.FlightDescriptor.for_command(content),
        ):
            with suppress(CalveError):
                topic_of(descriptor, self._caller)
        same_address(content.decode(errors="replace"))

    def _is_let_in(self, ticket: LogRange) -> bool:
        return self._intake.doorkeeper.of_ticket(ticket, "127.0.0.1") is not None


def signed(data: Any) -> bytes:
    """Something like a ticket that the pipeline has signed."""
    return msgspec.json.encode(
        LogRange(
            topic="events",
            form="frames",
            token=data.ConsumeUnicodeNoSurrogates(20) if data.ConsumeBool() else None,
            expires_at=data.ConsumeInt(8) if data.ConsumeBool() else None,
            mac=data.ConsumeUnicodeNoSurrogates(80),
        )
    )


class Authorization:
    def __init__(self, intake: Intake) -> None:
        self._doorkeeper = intake.doorkeeper

    def try_input(self, content: bytes) -> None:
        for text in (content.decode("latin-1"), "Bearer " + content.decode(errors="replace")):
            with suppress(CalveError):
                self._doorkeeper.caller(text, "127.0.0.1")
                raise AssertionError(f"let in with {text!r}")


class Otlp:
    def __init__(self, _: Intake) -> None:
        pass

    def try_input(self, content: bytes) -> None:
        for signal in ("traces", "logs", "metrics"):
            with suppress(CalveError):
                _taken(signal, content)
            with suppress(CalveError):
                _taken(signal, protobuf_of(signal, content))


def _taken(signal: str, body: bytes) -> None:
    weight_to_parse(body)
    message = read_message(signal, body)
    assert weight(signal, message, len(body)) >= 0
    for part in decode_signal(signal, message):
        if part.rows is not None:
            part.rows.validate(full=True)


TARGETS: dict[str, Any] = {
    "http": Http,
    "flight": Flight,
    "authorization": Authorization,
    "otlp": Otlp,
}


def main() -> None:
    name = sys.argv.pop(1)
    with tempfile.TemporaryDirectory() as directory:
        lake = settings(str(Path(directory) / "lake"))
        # A clock that is moved: or all but the first guesses would only be too many.
        clock = HandClock()
        with Intake(lake, clock=clock) as intake:
            target: Any = TARGETS[name](intake)
            atheris.Setup(sys.argv, partial(_tick, clock, target.try_input))
            atheris.Fuzz()


def _tick(clock: HandClock, work: Callable[[bytes], None], content: bytes) -> None:
    clock.pass_seconds(1.5)
    work(content)


if __name__ == "__main__":
    main()
