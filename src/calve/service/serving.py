"""The doors of an ingest process before one intake: Flight, HTTP, OTLP; opened, closed together."""

from __future__ import annotations

import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Protocol

from calve.errors import Unavailable
from calve.ingest.audit_topic import AuditTopic
from calve.ingest.exposure import insecure_words, require_guards
from calve.ingest.flight import FlightServer
from calve.ingest.renewal import Renewal
from calve.parts import load_part
from calve.service.announcement import Addresses
from calve.service.host_token import leave_host_token

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Self

    from calve.ingest import Intake
    from calve.ingest.certificate import Certificate

_log: Final = logging.getLogger(__name__)
GRACE_SECONDS: Final = 20.0


class Server(Protocol):
    """One door."""

    def start(self) -> str: ...

    def stop(self, grace_seconds: float = 10) -> None: ...

    def renew(self, certificate: Certificate) -> None: ...


class Serving:
    """Takes rows over the network into one intake, from its making to its end.

    A context manager. The intake stays the caller's, to be closed after this.
    """

    def __init__(
        self, intake: Intake, *, otlp: bool = False, at_end: Callable[[], None] | None = None
    ) -> None:
        """Listen where the settings say; Unavailable if an address is taken.

        InvalidSettings if that is open to other machines without tokens or without TLS.
        With `otlp` also for OpenTelemetry, which needs that part. `at_end` is called once, after
        the last answer has gone.
        """
        self._lock = threading.Lock()
        self._servers: list[Server] = []
        self._at_end = at_end
        self._renewal: Renewal | None = None
        self._audit_topic: AuditTopic | None = None
        self._host_token: Path | None = None
        try:
            self.addresses = self._opened(intake, otlp=otlp)
            self._renewal = Renewal(intake.settings.ingest, self._servers)
            self._host_token = leave_host_token(intake)
            self._audit_topic = AuditTopic.of(intake)
        except BaseException:
            self.close()
            raise

    def _opened(self, intake: Intake, *, otlp: bool) -> Addresses:
        if lacks := require_guards(intake.settings):
            _log.warning(insecure_words(intake.settings, lacks))
        http = load_part("server", "calve.ingest.http").HttpServer(intake)
        telemetry = _telemetry_servers(intake) if otlp else {}
        settings = intake.settings.ingest
        _require_free(settings.host, settings.flight_port, "flight_port")
        if telemetry:
            _require_free(settings.host, settings.otlp_grpc_port, "otlp_grpc_port")
        doors: dict[str, Server] = {"flight": FlightServer(intake), "http": http, **telemetry}
        urls = {}
        for name, server in doors.items():
            urls[name] = server.start()
            self._servers.append(server)
        return Addresses(**urls)

    def close(self) -> None:
        """Take nothing more in, answer what was accepted, and end; again does nothing."""
        with self._lock, ExitStack() as closing:
            at_end, self._at_end = self._at_end, None
            if at_end is not None:
                closing.callback(at_end)
            if self._host_token is not None:
                closing.callback(self._host_token.unlink, missing_ok=True)
            audit_topic, self._audit_topic = self._audit_topic, None
            if audit_topic is not None:
                closing.callback(audit_topic.close)
            renewal, self._renewal = self._renewal, None
            if renewal is not None:
                renewal.close()
            servers, self._servers = self._servers, []
            if servers:  # all at once: none takes rows in while another one drains
                pool = closing.enter_context(ThreadPoolExecutor(len(servers)))
                list(pool.map(lambda server: server.stop(GRACE_SECONDS), servers))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Serving({self.addresses.flight!r}, {self.addresses.http!r})"


def _telemetry_servers(intake: Intake) -> dict[str, Server]:
    over_grpc = load_part("otlp", "calve.ingest.otlp.grpc_server")
    over_http = load_part("otlp", "calve.ingest.http.otlp")
    return {
        "otlp_grpc": over_grpc.OtlpGrpcServer(intake),
        "otlp_http": over_http.OtlpHttpServer(intake),
    }


def _require_free(host: str, port: int, setting: str) -> None:
    """Find out before gRPC does, which says it with words of its own on standard error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {host}:{port}: {error.strerror}",
                hint=f"another process may have the port: choose ingest.{setting}, 0 for any",
            ) from error
