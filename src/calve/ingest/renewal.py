"""Notices a certificate that was replaced, and gives it to every door, while they are open.

The files are looked at every second, not read: their size, time and place on the disk tell whether
they changed. What is no certificate and its key changes nothing, and is said once.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, Protocol

from calve.errors import CalveError
from calve.ingest.certificate import certificate_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from calve.ingest.certificate import Certificate
    from calve.settings.tree import IngestSettings

_log: Final = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 1.0

_Look = tuple[tuple[int, int, int] | None, ...]


class Door(Protocol):
    def renew(self, certificate: Certificate) -> None:
        """Show this one from now on to whoever connects; CalveError if that cannot be."""
        ...


class Renewal:
    """A thread that looks, from its making to its end. Nothing to do without a certificate."""

    def __init__(
        self, settings: IngestSettings, doors: Sequence[Door], look_seconds: float = _LOOK_SECONDS
    ) -> None:
        self._settings = settings
        self._doors = doors
        self._look_seconds = look_seconds
        self._files = [file for file in (settings.tls_cert, settings.tls_key) if file is not None]
        self._is_ending = threading.Event()
        self._thread: threading.Thread | None = None
        if self._files:
            self._taken = self._look()
            self._refused: _Look | None = None
            self._current = certificate_of(settings)
            self._thread = threading.Thread(target=self._run, name="calve-renewal", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._is_ending.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        before: _Look | None = None
        while not self._is_ending.wait(self._look_seconds):
            seen = self._look()
            # A certificate and its key are two files: between the two they do not fit.
            if seen not in {self._taken, self._refused} and seen == before:
                self._read(seen)
            before = seen

    def _look(self) -> _Look:
        return tuple(_looks_of(file) for file in self._files)

    def _read(self, seen: _Look) -> None:
        try:
            found = certificate_of(self._settings)
        except CalveError as error:
            self._refused = seen
            _log.error("the old certificate stays: %s (hint: %s)", error.message, error.hint)
            return
        self._taken, self._refused = seen, None
        assert found is not None
        if found == self._current:
            return
        self._current = found
        for door in self._doors:
            try:
                door.renew(found)
            except CalveError as error:
                _log.error("a door keeps the old certificate: %s", error)
        _log.info("new connections are shown the certificate that is now in %s", self._files[0])


def _looks_of(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
