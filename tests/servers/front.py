"""An HTTP proxy in front of a test server: TLS, gates that authenticate or rewrite, and faults.

Reads a request whole before passing it on, and an answer whole before returning it, so that a
fault is always at a known point. Not for large bodies or streaming.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from tests.servers.faults import Faults
from tests.servers.process import HOST

_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "expect", "content-length"}
)
_REMEMBERED_MAX: Final = 100_000
_UPSTREAM_SECONDS_MAX: Final = 120


class Headers(Mapping[str, str]):
    """Names in any case; what came twice is joined by a comma."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self.pairs = tuple(pairs)

    def __getitem__(self, name: str) -> str:
        values = [value for key, value in self.pairs if key.lower() == name.lower()]
        if not values:
            raise KeyError(name)
        return ", ".join(values)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(key.lower() for key, _ in self.pairs))

    def __len__(self) -> int:
        return len({key.lower() for key, _ in self.pairs})

    def with_(self, name: str, value: str) -> Headers:
        kept = [(key, old) for key, old in self.pairs if key.lower() != name.lower()]
        return Headers([*kept, (name, value)])


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    headers: Headers
    body: bytes = b""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Headers = field(default_factory=lambda: Headers([]))
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that was answered, or reset: then `status` is 0."""

    method: str
    target: str
    status: int


class Gate:
    """Stands between the proxy and the server; sees requests going in and answers coming out."""

    def enter(self, request: Request) -> Request | Answer:
        """The request to pass on, or the answer that ends it here."""
        return request

    def leave(self, request: Request, answer: Answer) -> Answer:
        return answer


class Front:
    """A running proxy. Without an upstream port, its gates have to answer everything."""

    def __init__(self, server: _Server, *, secure: bool) -> None:
        self._server = server
        self.port: int = server.server_address[1]
        self.url = f"{'https' if secure else 'http'}://{HOST}:{self.port}"

    @property
    def faults(self) -> Faults[Request]:
        return self._server.faults

    @property
    def exchanges(self) -> list[Exchange]:
        return list(self._server.exchanges)

    def forget(self) -> None:
        """Start anew: no faults, no memory of requests."""
        self._server.faults.clear()
        self._server.exchanges.clear()

    def disconnect(self) -> None:
        """Reset every open connection; new ones are still accepted."""
        self._server.disconnect()


@contextmanager
def serve(
    upstream_port: int | None = None,
    *,
    gates: Sequence[Gate] = (),
    tls: ssl.SSLContext | None = None,
) -> Iterator[Front]:
    server = _Server(upstream_port, tuple(gates), tls)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield Front(server, secure=tls is not None)
    finally:
        server.shutdown()
        server.server_close()
        server.stopping.set()
        server.disconnect()
        thread.join(5)


def reset_connection(connection: socket.socket) -> None:
    """Close so that the peer sees a reset, whoever else still holds the socket object."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # A thread that waits in `recv` keeps the connection open until it wakes up.
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RD)
    with suppress(OSError):
        os.close(connection.detach())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(
        self, upstream_port: int | None, gates: tuple[Gate, ...], tls: ssl.SSLContext | None
    ) -> None:
        self.upstream_port = upstream_port
        self.gates = gates
        self.tls = tls
        self.faults: Faults[Request] = Faults()
        self.exchanges: deque[Exchange] = deque(maxlen=_REMEMBERED_MAX)
        self.stopping = threading.Event()
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        super().__init__((HOST, 0), _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the connection's own thread, so that a slow handshake holds up nobody else."""
        with self._remembered(request):
            if self.tls is None:
                super().finish_request(request, client_address)
                return
            # A client that does not trust the certificate ends the handshake.
            with (
                suppress(OSError),
                self.tls.wrap_socket(request, server_side=True) as secured,
                self._remembered(secured),
            ):
                super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what the tests are about; it is not printed."""

    def disconnect(self) -> None:
        with self._open_lock:
            connections = list(self._open)
        for connection in connections:
            reset_connection(connection)

    @contextmanager
    def _remembered(self, connection: socket.socket) -> Iterator[None]:
        with self._open_lock:
            self._open.add(connection)
        try:
            yield
        finally:
            with self._open_lock:
                self._open.discard(connection)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def _serve(self) -> None:
        request = self._read()
        fault = self.server.faults.take(request)
        if fault and self.server.stopping.wait(fault.delay_seconds):
            return
        if fault and fault.reset:
            self._reset(request)
        elif fault and fault.status:
            if fault.after:
                self._pass(request)
            retry = [("Retry-After", fault.retry_after)] if fault.retry_after else []
            self._answer(request, Answer(fault.status, Headers(retry), b"injected fault"))
        elif fault and fault.drop_answer:
            self._pass(request)
            self._reset(request)
        else:
            answer = self._pass(request)
            if fault and self.server.stopping.wait(fault.answer_delay_seconds):
                return
            self._answer(request, answer)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _serve  # noqa: N815

    def handle_expect_100(self) -> bool:
        expected = super().handle_expect_100()
        self.wfile.flush()  # Clients wait a second for it, then send the body anyway.
        return expected

    def log_message(self, *_: object) -> None:
        pass

    def _read(self) -> Request:
        headers = Headers(list(self.headers.items()))
        return Request(self.command, self.path, headers, self._body(headers))

    def _body(self, headers: Headers) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return b"".join(self._chunks())
        return self.rfile.read(int(headers.get("content-length", "0")))

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            continue

    def _pass(self, request: Request) -> Answer:
        """Through the gates to the server and back; a gate that answers turns the rest around."""
        passed: list[tuple[Gate, Request]] = []
        for gate in self.server.gates:
            outcome = gate.enter(request)
            if isinstance(outcome, Answer):
                break
            passed.append((gate, request))
            request = outcome
        else:
            outcome = self._forward(request)
        for gate, seen in reversed(passed):
            outcome = gate.leave(seen, outcome)
        return outcome

    def _forward(self, request: Request) -> Answer:
        if self.server.upstream_port is None:
            return Answer(404)
        upstream = http.client.HTTPConnection(
            HOST, self.server.upstream_port, timeout=_UPSTREAM_SECONDS_MAX
        )
        try:
            upstream.putrequest(
                request.method, request.target, skip_host=True, skip_accept_encoding=True
            )
            for name, value in request.headers.pairs:
                if name.lower() not in _HOP_BY_HOP:
                    upstream.putheader(name, value)
            if request.body or request.method in {"PUT", "POST", "PATCH"}:
                upstream.putheader("Content-Length", str(len(request.body)))
            upstream.endheaders(request.body or None)
            response = upstream.getresponse()
            return Answer(response.status, Headers(response.getheaders()), response.read())
        except (OSError, http.client.HTTPException):
            return Answer(502, body=b"the server behind the proxy did not answer")
        finally:
            upstream.close()

    def _answer(self, request: Request, answer: Answer) -> None:
        self._remember(request, answer.status)
        self.send_response_only(answer.status)
        for name, value in answer.headers.pairs:
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        if request.method == "HEAD":
            # It tells the size of what a GET would bring.
            self.send_header("Content-Length", answer.headers.get("content-length", "0"))
        elif answer.status != http.HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if request.method != "HEAD":
            self.wfile.write(answer.body)
        self.wfile.flush()

    def _reset(self, request: Request) -> None:
        self._remember(request, 0)
        self.close_connection = True
        reset_connection(self.connection)

    def _remember(self, request: Request, status: int) -> None:
        self.server.exchanges.append(Exchange(request.method, request.target, status))
