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
from calve.ingest.connections import Connections
from calve.ingest.crowd import Door
from calve.ingest.flight.calls import Calls
from calve.ingest.flight.former import FormerServices
from calve.ingest.flight.handover import hand_over
from calve.ingest.flight.service import Service
from calve.ingest.flight.turns import Turns
from calve.ingest.flight.watch import Watch

if TYPE_CHECKING:
    from typing import Self

    from calve.ingest.certificate import Certificate
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
        self._turns = Turns()
        self._service: Service | None = None
        self._changing = threading.Lock()
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
        certificate = certificate_of(settings)
        self._service = self._listening(settings.flight_port, certificate)
        self._port: int = self._service.port
        self._connections = Connections(self._port)
        self._former = FormerServices(self._connections)
        self._door = Door(self._port, _Peers(self._calls), settings)
        self._intake.crowd.watch(self._door)
        is_valid = self._intake.doorkeeper.is_valid
        self._watch = Watch(settings, self._calls, self._connections, is_valid)
        scheme = "grpc+tls" if certificate else "grpc"
        self._url = f"{scheme}://{_bracketed(settings.host)}:{self._port}"
        return self._url

    def _listening(self, port: int, certificate: Certificate | None) -> Service:
        host = self._settings.host
        address = (_bracketed(host), port)
        try:
            return Service(address, self._intake, self._calls, self._turns, certificate=certificate)
        except (pa.ArrowException, OSError) as error:
            raise Unavailable(
                f"cannot listen on {host}:{port} for Flight",
                hint="another process may have the port: choose ingest.flight_port, 0 for any",
            ) from error

    def renew(self, certificate: Certificate) -> None:
        """Show this certificate to whoever connects; who is connected stays, and notices nothing.

        Unavailable where that cannot be done while the server runs.
        """
        with self._changing:
            before = self._service
            if before is None:
                return
            service = self._listening(0, certificate)
            peers: set[str] = set()
            try:
                hand_over(
                    self._port,
                    service.port,
                    between=lambda: peers.update(self._connections.addresses()),
                )
            except Unavailable:
                service.shutdown()
                raise
            self._service = service
            self._former.add(before, peers)

    def stop(self, grace_seconds: float = 10) -> None:
        """Take nothing more in, send the answers that are due, end all streams; again is nothing.

        The intake is to be closed after this, not before. Who waits for a flush is sent away.
        """
        with self._changing:
            service, self._service = self._service, None
        if service is None:
            return
        self._intake.crowd.leave(self._door)
        self._calls.is_closing = True
        deadline = time.monotonic() + grace_seconds
        while self._owes_answers() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        time.sleep(_LEAVING_SECONDS)
        self._end([service, *self._former.close()])
        self._watch.close()

    def _end(self, services: list[Service]) -> None:
        """Shut what is open until gRPC has ended; a call that waits in us may take longer."""
        endings = [
            threading.Thread(target=each.shutdown, name="calve-flight-end", daemon=True)
            for each in services
        ]
        for ending in endings:
            ending.start()
        deadline = time.monotonic() + _END_SECONDS
        while any(each.is_alive() for each in endings) and time.monotonic() < deadline:
            # Again, because gRPC may have taken one more connection meanwhile.
            self._connections.shut()
            for ending in endings:
                ending.join(_SHUT_SECONDS / len(endings))

    def _owes_answers(self) -> bool:
        return any(call.outstanding for call in self._calls.opened())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Peers:
    """Whoever made a call that was let in; the watch lets go of those that are gone."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def addresses(self) -> set[str]:
        return set(self._calls.peers())

    def forget(self, gone: set[str]) -> None:
        pass


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
