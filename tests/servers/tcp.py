"""A TCP proxy with faults, for PostgreSQL.

A fault's predicate sees what the client sent, as it came off the socket: usually one message of
the protocol, but nothing promises that.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from tests.servers.faults import Faults
from tests.servers.front import reset_connection
from tests.servers.process import HOST

_READ_BYTES: Final = 1 << 16


class TcpFront:
    def __init__(self, server: _Server) -> None:
        self._server = server
        self.port: int = server.server_address[1]

    @property
    def faults(self) -> Faults[bytes]:
        return self._server.faults

    @property
    def connections_accepted(self) -> int:
        return self._server.accepted

    def disconnect(self) -> None:
        """Reset every open connection; new ones are still accepted."""
        self._server.disconnect()


@contextmanager
def serve(upstream_port: int, *, connect_seconds: float = 0.0) -> Iterator[TcpFront]:
    """A proxy that takes some time to connect, as a server far away does."""
    server = _Server(upstream_port, connect_seconds)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield TcpFront(server)
    finally:
        server.shutdown()
        server.server_close()
        server.stopping.set()
        server.disconnect()
        thread.join(5)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, upstream_port: int, connect_seconds: float) -> None:
        self.upstream_port = upstream_port
        self.connect_seconds = connect_seconds
        self.faults: Faults[bytes] = Faults()
        self.stopping = threading.Event()
        self.accepted = 0
        self._pairs: set[_Pair] = set()
        self._lock = threading.Lock()
        super().__init__((HOST, 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what the tests are about; it is not printed."""

    def disconnect(self) -> None:
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.reset()

    @contextmanager
    def joined(self, pair: _Pair) -> Iterator[None]:
        with self._lock:
            self.accepted += 1
            self._pairs.add(pair)
        try:
            yield
        finally:
            with self._lock:
                self._pairs.discard(pair)


class _Pair:
    """A client's connection and the one made for it."""

    def __init__(self, server: _Server, client: socket.socket, upstream: socket.socket) -> None:
        self._server = server
        self._client = client
        self._upstream = upstream
        self._answer_is_dropped = threading.Event()
        self._answer_delay_seconds = 0.0

    def pump_requests(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(_READ_BYTES):
                if not self._passes(data):
                    return
                self._upstream.sendall(data)
            self._upstream.shutdown(socket.SHUT_WR)

    def pump_answers(self) -> None:
        with suppress(OSError):
            while data := self._upstream.recv(_READ_BYTES):
                if self._answer_is_dropped.is_set():
                    # The server has answered, so what was asked has happened.
                    self.reset()
                    return
                seconds, self._answer_delay_seconds = self._answer_delay_seconds, 0.0
                if self._server.stopping.wait(seconds):
                    return
                self._client.sendall(data)
            self._client.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        reset_connection(self._client)
        with suppress(OSError):
            self._upstream.shutdown(socket.SHUT_RDWR)

    def _passes(self, data: bytes) -> bool:
        fault = self._server.faults.take(data)
        if fault is None:
            return True
        assert fault.status is None, "TCP has no status"
        if self._server.stopping.wait(fault.delay_seconds):
            return False
        if fault.reset:
            self.reset()
            return False
        if fault.drop_answer:
            self._answer_is_dropped.set()
        self._answer_delay_seconds = fault.answer_delay_seconds
        return True


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        if self.server.stopping.wait(self.server.connect_seconds):
            return
        with socket.create_connection((HOST, self.server.upstream_port)) as upstream:
            pair = _Pair(self.server, self.request, upstream)
            with self.server.joined(pair):
                answers = threading.Thread(target=pair.pump_answers, daemon=True)
                answers.start()
                pair.pump_requests()
                answers.join()
