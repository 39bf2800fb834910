"""How a topic fares: whether its last attempt failed, and when the next one may be made.

A topic that failed is tried beside the others, ever more seldom, so that it holds up nobody. One
that is slow stays beside them, also while it gets on.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from calve.clock import Clock
    from calve.errors import CalveError
    from calve.settings import RetrySettings

_JITTER: Final = 0.25
# After so many times that a range had to be written again at once, something else is wrong.
_REPEATS_MAX: Final = 3


@dataclass(slots=True)
class Health:
    retry: RetrySettings
    clock: Clock
    failures: int = 0
    is_slow: bool = False  # it was left behind, and has not kept up with others since
    error: CalveError | None = None
    next_try_at: datetime | None = None
    _next_try: float = 0.0
    _repeats: int = 0
    _random: random.Random = field(default_factory=random.Random)

    @property
    def is_suspect(self) -> bool:
        return self.failures > 0

    @property
    def goes_aside(self) -> bool:
        """Whether others would be held up by it."""
        return self.is_suspect or self.is_slow

    def may_try(self) -> bool:
        return self.clock.monotonic() >= self._next_try

    def went_well(self) -> None:
        self.failures = self._repeats = 0
        self.error = self.next_try_at = None
        self._next_try = 0.0

    def failed(self, error: CalveError) -> None:
        self.error = error
        self.failures += 1
        seconds = self._delay_seconds()
        self._next_try = self.clock.monotonic() + seconds
        self.next_try_at = self.clock.now() + timedelta(seconds=seconds)

    def held_up(self, error: CalveError) -> None:
        """Something that all topics need has failed; this one is tried again like the others."""
        self.error = error

    def overtaken(self, error: CalveError) -> None:
        """Somebody else has changed the table: nothing is wrong, unless that goes on and on."""
        self._repeats += 1
        if self._repeats > _REPEATS_MAX:
            self.failed(error)

    def _delay_seconds(self) -> float:
        retry = self.retry
        # Beyond some number of failures the power is beyond the longest delay, and any float.
        power = min(self.failures - 1, 64)
        delay_ms = min(retry.initial_delay_ms * retry.backoff_multiplier**power, retry.max_delay_ms)
        return delay_ms / 1000 * (1 - _JITTER * self._random.random())
