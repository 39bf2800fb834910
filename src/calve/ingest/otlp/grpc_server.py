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
from calve.ingest.certificate import certificate_of
from calve.ingest.otlp.answers import code_of, response, status_of
from calve.ingest.otlp.patience import Patience
from calve.ingest.otlp.telemetry import DATASET_HEADER, Telemetry, dataset_of
from calve.ingest.refusals import as_refusal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from calve.ingest.intake import Intake
    from calve.settings import Settings

_log: Final = logging.getLogger(__name__)
_SERVICES: Final = {
    "traces": "opentelemetry.proto.collector.trace.v1.TraceService",
    "logs": "opentelemetry.proto.collector.logs.v1.LogsService",
    "metrics": "opentelemetry.proto.collector.metrics.v1.MetricsService",
}
_DETAILS: Final = "grpc-status-details-bin"
# gRPC has read a message before anybody here can admit it: so many of so many bytes at once.
THREADS: Final = 32
MESSAGE_BYTES_MAX: Final = 16 << 20
_STREAMS_MAX: Final = 64  # at once on one connection; more wait at the client


class OtlpGrpcServer:
    """Serves one intake, which stays the caller's. A context manager: started, then stopped."""

    def __init__(self, intake: Intake, settings: Settings | None = None) -> None:
        """Without settings, those of the intake."""
        self._intake = intake
        self._settings = (settings or intake.settings).ingest
        self._telemetry = Telemetry(intake)
        self._server: Any = None
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
                pair = (certificate.key, certificate.cert)
                port = self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        except RuntimeError as error:
            raise Unavailable(
                f"cannot listen on {address} for OTLP over gRPC",
                hint="another process may have the port: choose ingest.otlp_grpc_port, 0 for any",
            ) from error
        return f"{'https' if certificate else 'http'}://{host}:{port}"

    def _export(self, signal: str, messages: Iterator[bytes], context: Any) -> bytes:
        with self._patience.waiting(context):
            body = next(messages, b"")
        try:
            dataset = dataset_of(dict(context.invocation_metadata()).get(DATASET_HEADER))
            client = context.peer().rpartition(":")[0]
            with self._intake.admission.hold(len(body), client) as admitted:
                taken = self._telemetry.take(signal, body, dataset=dataset, admitted=admitted)
        except CalveError as error:
            _refuse(context, error)
        except Exception as error:  # noqa: BLE001
            _log.exception("a request for %s failed", signal)
            _refuse(context, unexpected(error))
        content: bytes = response(signal, taken).SerializeToString()
        return content

    def stop(self, grace_seconds: float = 10) -> None:
        """Take nothing more in, answer what was accepted, and end; again does nothing."""
        server, self._server = self._server, None
        if server is not None:
            server.stop(grace_seconds).wait()
            self._pool.shutdown()
            self._patience.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _refuse(context: Any, error: CalveError) -> NoReturn:
    status = status_of(error)
    context.set_trailing_metadata(((_DETAILS, status.SerializeToString()),))
    context.abort(code_of(as_refusal(error)), status.message)
    raise AssertionError  # abort raises
