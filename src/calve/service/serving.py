"""The doors of an ingest process: Flight and HTTP before one intake, opened and closed together."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from calve.errors import Unavailable
from calve.ingest.flight import FlightServer
from calve.parts import load_part
from calve.service.announcement import Addresses

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from calve.ingest import Intake
    from calve.ingest.http import HttpServer
    from calve.settings.tree import IngestSettings

GRACE_SECONDS: Final = 20.0


class Serving:
    """Takes rows over the network into one intake, from its making to its end.

    A context manager. The intake stays the caller's, to be closed after this.
    """

    def __init__(self, intake: Intake, *, at_end: Callable[[], None] | None = None) -> None:
        """Listen where the settings say; Unavailable if an address is taken.

        `at_end` is called once, after the last answer has gone.
        """
        self._lock = threading.Lock()
        self._servers: list[FlightServer | HttpServer] = []
        self._at_end = at_end
        try:
            self.addresses = self._opened(intake)
        except BaseException:
            self.close()
            raise

    def _opened(self, intake: Intake) -> Addresses:
        http = load_part("server", "calve.ingest.http").HttpServer(intake)
        _require_free(intake.settings.ingest)
        flight = FlightServer(intake)
        urls = []
        for server in (flight, http):
            urls.append(server.start())
            self._servers.append(server)
        return Addresses(flight=urls[0], http=urls[1])

    def close(self) -> None:
        """Take nothing more in, answer what was accepted, and end; again does nothing."""
        with self._lock, ExitStack() as closing:
            at_end, self._at_end = self._at_end, None
            if at_end is not None:
                closing.callback(at_end)
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


def _require_free(settings: IngestSettings) -> None:
    """Find out before gRPC does, which says it with words of its own on standard error."""
    address = (settings.host, settings.flight_port)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {settings.host}:{settings.flight_port} for Flight: "
                f"{error.strerror}",
                hint="another process may have the port: choose ingest.flight_port, 0 for any",
            ) from error
