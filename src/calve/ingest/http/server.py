"""The HTTP server: one event loop in a thread of the process that holds the intake."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

    from calve.ingest.intake import Intake
    from calve.settings import Settings


class HttpServer:
    """Serves one intake, which stays the caller's. A context manager: started, then stopped."""

    def __init__(self, intake: Intake, settings: Settings | None = None) -> None:
        """Without settings, those of the intake."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        """Where it listens, such as `http://127.0.0.1:8080`; known once it was started."""
        raise NotImplementedError

    def start(self) -> str:
        """Listen on `ingest.host` and `ingest.http_port` (0: any free port), and return the URL.

        Unavailable if the address is taken. Takes no signals; the caller stops it.
        """
        raise NotImplementedError

    def stop(self, grace_seconds: float = 10) -> None:
        """Answer what was accepted, refuse what is new with 503, and end; again does nothing.

        What takes longer than the grace is answered with 503 too. The intake is to be closed after
        this, not before.
        """
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
