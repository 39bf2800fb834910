"""Time as a component: passed in, so that tests decide what it is."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import NamedTuple, Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The wall clock, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean anything."""
        ...


class Instant(NamedTuple):
    """One moment by both clocks: the wall's may jump, and what it said yesterday lie ahead."""

    wall_us: int
    monotonic: float

    @classmethod
    def now(cls, clock: Clock) -> Instant:
        return cls(int(clock.now().timestamp() * 1_000_000), clock.monotonic())

    def before(self, seconds: float) -> Instant:
        return Instant(self.wall_us - int(seconds * 1_000_000), self.monotonic - seconds)


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()
