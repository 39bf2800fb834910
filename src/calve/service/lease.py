"""The right to be the pipeline of a lake: waited for, kept while it works, and given back.

It keeps two pipelines from doing the same work; that no row arrives twice does not rest on it.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from calve.errors import CalveError, Unavailable
from calve.state import PIPELINE_LEASE

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from calve.state import State

_log: Final = logging.getLogger(__name__)
LEASE_SECONDS: Final = 10.0
_RENEWALS: Final = 5  # in the time of one lease


class LeaseKeeper:
    """A context manager, which renews the lease in a thread and gives it back at its end."""

    def __init__(
        self,
        state: State,
        owner: str,
        ending: threading.Event,
        *,
        is_able: Callable[[], bool],
        seconds: float = LEASE_SECONDS,
    ) -> None:
        """`ending` is set when the lease is lost, or when its owner is no longer able to work."""
        self._state = state
        self._owner = owner
        self._ending = ending
        self._is_able = is_able
        self._seconds = seconds
        self._problem: CalveError | None = None
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def await_turn(self) -> bool:
        """Return when the lease is ours, or False when there is no need for it any more."""
        is_told = False
        while not self._is_taken():
            if not is_told:
                held = self._state.lease(PIPELINE_LEASE)
                _log.info(
                    "another pipeline works on this lake, %s; this one waits until it ends",
                    held.owner if held else "which ends just now",
                )
                is_told = True
            if self._ending.wait(self._seconds / _RENEWALS):
                return False
        self._thread = threading.Thread(target=self._keep, name="calve-lease", daemon=True)
        self._thread.start()
        return True

    def require(self) -> None:
        """Raise what ended it, if that was not the end that was asked for."""
        if self._problem is not None:
            raise self._problem

    def close(self) -> None:
        """Let another pipeline have it; again does nothing."""
        if self._thread is not None and not self._is_closed.is_set():
            self._is_closed.set()
            self._thread.join()
            self._state.release_lease(PIPELINE_LEASE, self._owner)

    def _keep(self) -> None:
        while not self._is_closed.wait(self._seconds / _RENEWALS):
            try:
                self._look()
            except CalveError as error:
                _log.warning("the pipeline's lease cannot be renewed for now: %s", error.message)
            if self._problem is not None:
                self._ending.set()
                return

    def _look(self) -> None:
        if not self._is_able():
            self._problem = Unavailable(
                "Spark has ended", hint="it is started again; its log says what happened"
            )
        elif not self._is_taken():
            self._problem = Unavailable(
                "another pipeline has taken over this lake", hint="one is enough: stop the other"
            )

    def _is_taken(self) -> bool:
        return self._state.take_lease(PIPELINE_LEASE, self._owner, self._seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
