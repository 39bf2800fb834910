"""The Flight server of a process: begins to listen, answers, and ends without losing an answer."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from calve.clock import SystemClock
from calve.errors import Unavailable
from calve.ingest.certificate import certificate_of
from calve.ingest.flight.calls import Calls
from calve.ingest.flight.connections import Connections
from calve.ingest.flight.service import Service
from calve.ingest.flight.watch import Watch

if TYPE_CHECKING:
    from typing import Self

    from calve.ingest.intake import Intake
    from calve.settings import Settings

_log: Final = logging.getLogger(__name__)
_POLL_SECONDS: Final = 0.005
_LEAVING_SECONDS: Final = 0.05  # for the last answers to leave gRPC's buffers
_SHUT_SECONDS: Final = 0.1
_END_SECONDS: Final = 3.0


class FlightServer:
    """Serves one intake, which stays the caller's. A context manager: started, then stopped."""

    def __init__(self, intake: Intake, settings: Settings | None = None) -> None:
        """Without settings, those of the intake."""
        self._intake = intake
        self._settings = (settings or intake.settings).ingest
        self._calls = Calls(self._settings, SystemClock())
        self._service: Service | None = None
        self._url = ""

    @property
    def url(self) -> str:
        """Where it listens, such as `grpc://127.0.0.1:8815`; known once it was started."""
        return self._url

    def start(self) -> str:
        """Listen on `ingest.host` and `ingest.flight_port` (0: any free port); returns the URL.

        Unavailable if the address is taken. Takes no signals; the caller stops it.
        """
        settings = self._settings
        address = (settings.host, settings.flight_port)
        certificate = certificate_of(settings)
        tls = [(certificate.cert, certificate.key)] if certificate else None
        try:
            self._service = Service(address, self._intake, self._calls, tls=tls)
        except (pa.ArrowException, OSError) as error:
            raise Unavailable(
                f"cannot listen on {settings.host}:{settings.flight_port} for Flight",
                hint="another process may have the port: choose ingest.flight_port, 0 for any",
            ) from error
        self._connections = Connections(self._service.port)
        self._watch = Watch(settings, self._calls, self._connections)
        scheme = "grpc+tls" if tls else "grpc"
        self._url = f"{scheme}://{_bracketed(settings.host)}:{self._service.port}"
        return self._url

    def stop(self, grace_seconds: float = 10) -> None:
        """Take nothing more in, send the answers that are due, end all streams; again is nothing.

        The intake is to be closed after this, not before. Who waits for a flush is sent away.
        """
        service, self._service = self._service, None
        if service is None:
            return
        self._calls.is_closing = True
        deadline = time.monotonic() + grace_seconds
        while self._owes_answers() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        time.sleep(_LEAVING_SECONDS)
        self._end(service)
        self._watch.close()

    def _end(self, service: Service) -> None:
        """Shut what is open until gRPC has ended; a call that waits in us may take longer."""
        ending = threading.Thread(target=service.shutdown, name="calve-flight-end", daemon=True)
        ending.start()
        deadline = time.monotonic() + _END_SECONDS
        while ending.is_alive() and time.monotonic() < deadline:
            # Again, because gRPC may have taken one more connection meanwhile.
            self._connections.shut()
            ending.join(_SHUT_SECONDS)

    def _owes_answers(self) -> bool:
        return any(call.outstanding for call in self._calls.opened())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
