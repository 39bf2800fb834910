"""OTLP over gRPC: the three services of the protocol, in a thread of its own for each call.

To gRPC the calls are streams of which one message is read: so a thread is there before the message
is, and a call whose message does not come can be ended.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc

from calve.errors import CalveError, Unavailable, unexpected
from calve.ingest.addresses import host_of, same_address
from calve.ingest.certificate import certificate_of
from calve.ingest.crowd import Door, Known
from calve.ingest.otlp.answers import code_of, response, status_of
from calve.ingest.otlp.patience import Patience
from calve.ingest.otlp.telemetry import DATASET_HEADER, Telemetry, dataset_of
from calve.ingest.recording import acting
from calve.ingest.refusals import as_refusal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from calve.access import Caller
    from calve.ingest.certificate import Certificate
    from calve.ingest.intake import Intake
    from calve.settings import Settings

_log: Final = logging.getLogger(__name__)
_SERVICES: Final = {
    "traces": "opentelemetry.proto.collector.trace.v1.TraceService",
    "logs": "opentelemetry.proto.collector.logs.v1.LogsService",
    "metrics": "opentelemetry.proto.collector.metrics.v1.MetricsService",
}
SERVICES: Final = tuple(_SERVICES.values())
SCOPE: Final = "produce"  # of the token that each of them takes
_DETAILS: Final = "grpc-status-details-bin"
_DELAY: Final = "google.rpc.retryinfo-bin"  # where the Python SDK looks for the delay alone
# gRPC has read a message before anybody here can admit it: so many of so many bytes at once.
THREADS: Final = 32
MESSAGE_BYTES_MAX: Final = 16 << 20
_STREAMS_MAX: Final = 64  # at once on one connection; more wait at the client
# How often a client may ask whether the connection lives. The Collector asks every 10 s; gRPC
# itself allows it every 5 minutes, and takes those who ask more often for attackers.
PING_INTERVAL_MS = 5_000


class OtlpGrpcServer:
    """Serves one intake, which stays the caller's. A context manager: started, then stopped."""

    def __init__(self, intake: Intake, settings: Settings | None = None) -> None:
        """Without settings, those of the intake."""
        self._intake = intake
        self._settings = (settings or intake.settings).ingest
        self._telemetry = Telemetry(intake)
        self._server: Any = None
        self._renewal: Any = None
        self._known = Known()
        self._url = ""

    @property
    def url(self) -> str:
        """Where it listens, such as `http://127.0.0.1:4317`, as exporters want it spelled."""
        return self._url

    def start(self) -> str:
        """Listen on `ingest.host` and `ingest.otlp_grpc_port` (0: any free port).

        Returns the URL. Unavailable if the address is taken. Takes no signals.
        """
        settings = self._settings
        bytes_max = min(settings.request_bytes_max, MESSAGE_BYTES_MAX)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="calve-otlp")
        self._server = grpc.server(
            self._pool,
            options=[
                ("grpc.max_receive_message_length", bytes_max),
                ("grpc.max_concurrent_streams", _STREAMS_MAX),
                ("grpc.max_connection_idle_ms", 1000 * settings.idle_seconds_max),
                ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.server_handshake_timeout_ms", settings.http_header_timeout_ms),
                ("grpc.so_reuseport", 0),
            ],
        )
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    service,
                    {"Export": grpc.stream_unary_rpc_method_handler(partial(self._export, signal))},
                )
                for signal, service in _SERVICES.items()
            ]
        )
        self._url = self._listen()
        port = int(self._url.rpartition(":")[2])
        self._door = Door(port, self._known, settings)
        self._intake.crowd.watch(self._door)
        self._patience = Patience(settings.http_body_timeout_ms / 1000, self._intake.clock)
        self._server.start()
        return self._url

    def _listen(self) -> str:
        settings = self._settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.otlp_grpc_port}"
        certificate = certificate_of(settings)
        try:
            if certificate is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, self._credentials(certificate))
        except RuntimeError as error:
            raise Unavailable(
                f"cannot listen on {address} for OTLP over gRPC",
                hint="another process may have the port: choose ingest.otlp_grpc_port, 0 for any",
            ) from error
        return f"{'https' if certificate else 'http'}://{host}:{port}"

    def _credentials(self, certificate: Certificate) -> Any:
        return grpc.dynamic_ssl_server_credentials(
            _shown(certificate),
            self._renewed,
            require_client_authentication=certificate.client_ca is not None,
        )

    def _renewed(self) -> Any:
        """What gRPC asks at each connection: None to show what it showed before."""
        renewed, self._renewal = self._renewal, None
        return renewed

    def renew(self, certificate: Certificate) -> None:
        """Show this certificate to whoever connects; who is connected stays."""
        self._renewal = _shown(certificate)

    def _export(self, signal: str, messages: Iterator[bytes], context: Any) -> bytes:
        metadata = dict(context.invocation_metadata())
        caller = self._let_in(context, metadata.get("authorization"))
        client = caller.share(context.peer().rpartition(":")[0])
        with self._patience.waiting(context):
            body = next(messages, b"")
        try:
            self._intake.doorkeeper.recheck(caller)  # the message may have taken its time
            dataset = dataset_of(metadata.get(DATASET_HEADER))
            with (
                acting(lambda: caller, "otlp_grpc"),
                self._intake.admission.hold(len(body), client) as admitted,
            ):
                taken = self._telemetry.take(
                    signal, body, caller=caller, dataset=dataset, admitted=admitted
                )
        except CalveError as error:
            _refuse(context, error)
        except Exception as error:  # noqa: BLE001
            _log.exception("a request for %s failed", signal)
            _refuse(context, unexpected(error))
        content: bytes = response(signal, taken).SerializeToString()
        return content

    def _let_in(self, context: Any, authorization: str | None) -> Caller:
        """Who it is, before the message is waited for."""
        address = host_of(same_address(context.peer()))
        try:
            caller = self._intake.doorkeeper.caller(authorization, address)
            caller.require(SCOPE)
        except CalveError as error:
            _refuse(context, error)
        self._known.add(same_address(context.peer()))
        return caller

    def stop(self, grace_seconds: float = 10) -> None:
        """Take nothing more in, answer what was accepted, and end; again does nothing."""
        server, self._server = self._server, None
        if server is not None:
            self._intake.crowd.leave(self._door)
            server.stop(grace_seconds).wait()
            self._pool.shutdown()
            self._patience.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _shown(certificate: Certificate) -> Any:
    pair = (certificate.key, certificate.cert)
    return grpc.ssl_server_certificate_configuration(
        [pair], root_certificates=certificate.client_ca
    )


def _refuse(context: Any, error: CalveError) -> NoReturn:
    status = status_of(error)
    delays = [(_DELAY, detail.value) for detail in status.details]
    context.set_trailing_metadata(((_DETAILS, status.SerializeToString()), *delays))
    context.abort(code_of(as_refusal(error)), status.message)
    raise AssertionError  # abort raises
