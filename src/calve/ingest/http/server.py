"""The HTTP server: one event loop in a thread of the process that holds the intake."""

from __future__ import annotations

import asyncio
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import uvicorn

from calve.errors import Unavailable
from calve.ingest.certificate import certificate_of
from calve.ingest.crowd import Door
from calve.ingest.http.app import App
from calve.ingest.http.guard import Guard
from calve.ingest.http.paths import WholeSegments
from calve.ingest.http.places import Places
from calve.ingest.http.protection import Protected
from calve.ingest.http.protocol import BoundedProtocol, ConnectionLimits
from calve.ingest.http.routes import OPERATIONS
from calve.ingest.http.service import Service
from calve.ingest.http.socket_protocol import BoundedSocket
from calve.ingest.http.tls import RenewedContext

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from calve.ingest.certificate import Certificate
    from calve.ingest.http.operation import Operation
    from calve.ingest.intake import Intake
    from calve.settings import Settings
    from calve.settings.tree import IngestSettings

_BACKLOG: Final = 2048
_LINGER_SECONDS: Final = 0.2  # for those who send at the very moment of a stop
_START_SECONDS: Final = 30.0
_SILENT_SECONDS_MAX: Final = 15.0  # for a client of a stream that vanished: as long as a lease
_PINGS: Final = 3  # in the time that a connection may be silent


class HttpServer:
    """Serves one intake, which stays the caller's. A context manager: started, then stopped."""

    _app: ClassVar[type[App]] = App
    _operations: ClassVar[Sequence[Operation]] = OPERATIONS
    _port_setting: ClassVar[str] = "http_port"

    def __init__(self, intake: Intake, settings: Settings | None = None) -> None:
        """Without settings, those of the intake."""
        self._intake = intake
        self._whole = settings or intake.settings
        self._settings = self._whole.ingest
        self._thread: threading.Thread | None = None
        self._running: _Running | None = None
        self._url: str | None = None
        self._is_stopped = False

    @property
    def url(self) -> str:
        """Where it listens, such as `http://127.0.0.1:8080`; known once it was started."""
        if self._url is None:
            raise Unavailable("the HTTP server does not listen", hint="start it first")
        return self._url

    def start(self) -> str:
        """Listen on `ingest.host` and the port (0: any free one), and return the URL.

        Unavailable if the address is taken. Takes no signals; the caller stops it.
        """
        assert self._thread is None, "started twice"
        certificate = certificate_of(self._settings)
        listening = _listening(self._settings, self._port_setting)
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        scheme = "https" if certificate else "http"
        port = listening.getsockname()[1]
        self._url = f"{scheme}://{host}:{port}"
        service = Service(self._intake, self._settings)
        app = self._app(service, self._operations, Guard(self._whole))
        protected = Protected(app, self._settings.host, has_tls=certificate is not None)
        self._running = _Running(service, protected, listening, certificate)
        self._thread = threading.Thread(target=self._running.run, name="calve-http", daemon=True)
        self._thread.start()
        self._running.wait_started(self._thread)
        self._door = Door(port, self._running.places.known, self._settings)
        self._intake.crowd.watch(self._door)
        return self._url

    def stop(self, grace_seconds: float = 10) -> None:
        """Answer what was accepted, refuse what is new with 503, and end; again does nothing.

        What takes longer than the grace is answered with 503 too. The intake is to be closed after
        this, not before.
        """
        if self._running is None or self._thread is None or self._is_stopped:
            return
        self._is_stopped = True
        self._intake.crowd.leave(self._door)
        self._running.stop(grace_seconds)
        self._thread.join()

    def renew(self, certificate: Certificate) -> None:
        """Show this certificate to whoever connects; who is connected stays."""
        if self._running is not None and not self._is_stopped:
            self._running.renew(certificate)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Running:
    """What lives in the server's thread."""

    def __init__(
        self,
        service: Service,
        app: Protected,
        listening: socket.socket,
        certificate: Certificate | None,
    ) -> None:
        self._service = service
        self._listening = listening
        self._is_started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        settings = service.settings
        idle_seconds = settings.http_idle_timeout_ms / 1000
        silent_seconds = min(_SILENT_SECONDS_MAX, idle_seconds)
        limits = ConnectionLimits(
            header_timeout_seconds=settings.http_header_timeout_ms / 1000,
            connections_max=settings.http_connections_max,
            silent_seconds_max=silent_seconds,
        )
        self.places = Places()
        protocol: Any = partial(BoundedProtocol, limits=limits, places=self.places)
        self._tls = None if certificate is None else RenewedContext.of(certificate)
        tls: Any = {} if self._tls is None else {"ssl_context_factory": lambda *_: self._tls}
        socket_protocol: Any = partial(BoundedSocket, silent_seconds_max=silent_seconds)
        self._server = uvicorn.Server(
            uvicorn.Config(
                WholeSegments(app),
                http=protocol,
                ws=socket_protocol,
                ws_ping_interval=idle_seconds / _PINGS,
                ws_ping_timeout=idle_seconds,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=_BACKLOG,
                timeout_keep_alive=idle_seconds,  # type: ignore[arg-type]
                timeout_graceful_shutdown=1,
                **tls,
            )
        )

    def run(self) -> None:
        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._tell_started)
        try:
            await self._server.serve(sockets=[self._listening])
        finally:
            self._service.close()

    def _tell_started(self) -> None:
        if self._server.started:
            self._is_started.set()
        else:
            assert self._loop is not None
            self._loop.call_later(0.001, self._tell_started)

    def wait_started(self, thread: threading.Thread) -> None:
        if not self._is_started.wait(_START_SECONDS) or not thread.is_alive():
            raise Unavailable("the HTTP server does not start", hint="its log says why")

    def stop(self, grace_seconds: float) -> None:
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self._drain(grace_seconds), self._loop)

    def renew(self, certificate: Certificate) -> None:
        if self._tls is not None:
            self._tls.current = certificate.context()

    async def _drain(self, grace_seconds: float) -> None:
        try:
            await self._service.gate.close(grace_seconds)
            await asyncio.sleep(_LINGER_SECONDS)
        finally:
            self._server.should_exit = True


def _listening(settings: IngestSettings, port_setting: str) -> socket.socket:
    host, port = settings.host, getattr(settings, port_setting)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.settimeout(0)
    except OSError as error:
        listening.close()
        raise Unavailable(
            f"HTTP cannot listen on {host}:{port}: {error.strerror or error}",
            hint=f"stop whatever has it, or choose another ingest.host and ingest.{port_setting}; "
            "0 is any free port",
        ) from error
    return listening
