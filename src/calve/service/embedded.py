"""The pipeline in a thread of a program that has a lake open, instead of a process of its own."""

from __future__ import annotations

import logging
import os
import platform
import threading
from typing import TYPE_CHECKING, Final

from calve.errors import CalveError
from calve.service.pipelining import run_pipeline
from calve.service.role import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from calve.service.pipelining import Spark
    from calve.settings import Settings
    from calve.tables.catalog import LakeCatalog

_log: Final = logging.getLogger(__name__)


class PipelineThread:
    """Brings rows to their tables from its making on; `close` drains, within `pipeline.drain_ms`.

    What goes wrong is logged and tried again after a while.
    """

    def __init__(
        self,
        settings: Settings,
        spark: Callable[[], Spark],
        catalog: LakeCatalog,
        *,
        backoff: Backoff | None = None,
    ) -> None:
        """`spark` gives the one that runs, or starts it; what that needs is missed here."""
        self._settings = settings
        self._spark = spark
        self._catalog = catalog
        self._backoff = backoff or Backoff()
        self._is_closing = threading.Event()
        self._ending = threading.Event()  # of one attempt
        spark()
        self._thread = threading.Thread(target=self._run, name="calve-pipeline", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Bring what waits to the tables, and end; again does nothing."""
        self._is_closing.set()
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        failures = 0
        while not self._is_closing.is_set():
            try:
                self._attempt()
            except CalveError as error:
                failures += 1
                delay_seconds = self._backoff.delay_seconds(failures)
                _log.warning(
                    "the pipeline ended: %s; it goes on in %.1f s", error.message, delay_seconds
                )
                self._is_closing.wait(delay_seconds)

    def _attempt(self) -> None:
        self._ending = threading.Event()
        if self._is_closing.is_set():
            self._ending.set()
        owner = f"process {os.getpid()} on {platform.node()}"
        run_pipeline(self._settings, self._spark(), self._catalog, self._ending, owner=owner)
