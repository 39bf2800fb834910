"""A clock that a test moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class HandClock:
    """Stands still until it is moved."""

    def __init__(self, now: datetime | None = None) -> None:
        self._now = now or datetime(2026, 1, 1, tzinfo=UTC)
        self._seconds = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._seconds

    def jump(self, seconds: float) -> None:
        """Set the wall's clock; no time passes."""
        self._now += timedelta(seconds=seconds)

    def pass_seconds(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        self._seconds += seconds
