"""The right to consume a subscription: taken, renewed while it is used, and given back.

Its token fences whoever had it before: an acknowledgement under an older one is refused. An owner
that cannot renew stops handing out rows when its time is over by its own clock, so that no two are
at work at once.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from typing import TYPE_CHECKING, Final

from calve.errors import CalveError, Unavailable

if TYPE_CHECKING:
    from calve.clock import Clock
    from calve.state import State, SubscriptionClaim, SubscriptionName

_log: Final = logging.getLogger(__name__)
LEASE_SECONDS: Final = 15.0
_RENEWALS: Final = 5  # in the time of one lease


class Ownership:
    """Safe to share between threads, of which one takes it."""

    def __init__(
        self,
        state: State,
        name: SubscriptionName,
        *,
        seconds: float,
        clock: Clock,
        succeeds: int | None = None,
    ) -> None:
        """`succeeds` is the token that the same consumer had before its connection broke."""
        self.owner: Final = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.interval_seconds: Final = seconds / _RENEWALS
        self._state = state
        self._name = name
        self._seconds = seconds
        self._succeeds = succeeds
        self._clock = clock
        self._lock = threading.Lock()
        self._claim: SubscriptionClaim | None = None
        self._until = 0.0
        self._problem: CalveError | None = None
        self._is_ended = threading.Event()
        self._renewing: threading.Thread | None = None

    @property
    def is_taken(self) -> bool:
        return self._claim is not None

    @property
    def is_certain(self) -> bool:
        """Whether nobody else can have it now."""
        return self._problem is None and self._clock.monotonic() < self._until

    def take(self) -> bool:
        """Have it, if nobody else does."""
        asked_at = self._clock.monotonic()
        claim = self._state.claim_subscription(
            self._name, self.owner, self._seconds, succeeds=self._succeeds
        )
        if claim is None:
            return False
        self._keep(claim, asked_at)
        self._renewing = threading.Thread(
            target=self._go_on_renewing, name=f"calve-lease-{self._name.name}", daemon=True
        )
        self._renewing.start()
        return True

    def require(self) -> SubscriptionClaim:
        """The claim, renewed now if its time may be over; raises what it was lost by."""
        if self._problem is None and not self.is_certain:
            self.renew()
        if self._problem is not None:
            raise self._problem
        assert self._claim is not None
        return self._claim

    def renew(self) -> None:
        """Keep it, in its present generation; Unavailable if it is not known whose it is."""
        with self._lock:
            assert self._claim is not None
            asked_at = self._clock.monotonic()
            try:
                self._keep(self._state.renew_subscription(self._claim, self._seconds), asked_at)
            except Unavailable:
                raise
            except CalveError as error:
                self.lose(error)

    def lose(self, problem: CalveError) -> None:
        """It is somebody else's: whoever asks is told so from now on."""
        self._problem = self._problem or problem

    def release(self) -> None:
        """Let others have it at once; where that cannot be said, they wait until it runs out."""
        self._is_ended.set()
        if self._renewing is not None:
            self._renewing.join()
        if self._claim is not None and self._problem is None:
            try:
                self._state.release_subscription(self._claim)
            except CalveError as error:
                _log.info("subscription %s is left to run out: %s", self._name, error.message)

    def _go_on_renewing(self) -> None:
        while self._problem is None and not self._is_ended.wait(self.interval_seconds):
            try:
                self.renew()
            except Unavailable as error:
                _log.warning("subscription %s was not renewed: %s", self._name, error.message)

    def _keep(self, claim: SubscriptionClaim, asked_at: float) -> None:
        self._claim, self._until = claim, asked_at + self._seconds
