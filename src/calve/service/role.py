"""A part of the service, and the process that plays it: started, again after a while, and ended."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from calve.errors import EXIT_UNEXPECTED, CalveError, Unavailable
from calve.service.child import Child

if TYPE_CHECKING:
    from collections.abc import Callable

    from calve.clock import Clock
    from calve.service.orders import Order, Report

# What a process may end with and be started again: it was killed, met a defect, or something that
# it needs was out of reach for a moment.
_PASSING: Final = frozenset({0, EXIT_UNEXPECTED, Unavailable.exit_code})


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait before a process that died is started again."""

    initial_seconds: float = 0.2
    max_seconds: float = 30.0
    steady_seconds: float = 60.0  # one that ran so long has not failed before

    def delay_seconds(self, failures: int) -> float:
        longest = min(self.max_seconds, self.initial_seconds * 2.0 ** min(failures - 1, 30))
        return longest * random.uniform(0.5, 1.0)  # noqa: S311


class Role:
    """What its keeper knows of one part. Not safe between threads: all happens in the keeper's."""

    def __init__(
        self,
        name: str,
        *,
        tell: Callable[[Role, Child, Report | None], None],
        say: Callable[[str], None],
        backoff: Backoff,
        clock: Clock,
    ) -> None:
        """`tell` is called from other threads: with each process's report, then with None."""
        self.name = name
        self.was_ready = False
        self.problem: CalveError | None = None  # that the process which runs, or ran last, told of
        self._tell = tell
        self._say = say
        self._backoff = backoff
        self._clock = clock
        self._child: Child | None = None
        self._is_running = False
        self._failures = 0
        self._started_at = 0.0
        self._start_at: float | None = None
        self._end_at: float | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that runs, or ran last."""
        return None if self._child is None else self._child.pid

    @property
    def is_running(self) -> bool:
        return self._is_running

    @property
    def has_passed(self) -> bool:
        """Whether what ended the process may be over when it is started again."""
        code = self._exit_code
        return code is not None and (code < 0 or code in _PASSING)

    @property
    def next_at(self) -> float | None:
        """When there is something to do, by the monotonic clock."""
        times = [at for at in (self._start_at, self._end_at) if at is not None]
        return min(times) if times else None

    @property
    def _exit_code(self) -> int | None:
        return None if self._child is None else self._child.exit_code

    def start(self, order: Order) -> None:
        self._start_at = self._end_at = None
        self.problem = None
        self._started_at = self._clock.monotonic()
        self._child = Child(
            self.name,
            f"calve.service.{self.name}",
            order,
            tell=lambda child, report: self._tell(self, child, report),
            say=self._say,
        )
        self._is_running = True

    def has_ended(self) -> None:
        """Note that the process is gone."""
        self._is_running = False
        self._end_at = None

    def start_later(self) -> float:
        """Have it started again after a while; how long that is, in seconds."""
        now = self._clock.monotonic()
        is_steady = now - self._started_at >= self._backoff.steady_seconds
        self._failures = 1 if is_steady else self._failures + 1
        delay_seconds = self._backoff.delay_seconds(self._failures)
        self._start_at = now + delay_seconds
        return delay_seconds

    def stay_away(self) -> None:
        """Do not start it again."""
        self._start_at = None

    def ask_to_end(self, *, seconds_max: float | None = None) -> None:
        """Have the process drain; one that takes longer than that is ended."""
        assert self._child is not None
        self._child.ask_to_end()
        if seconds_max is not None:
            self._end_at = self._clock.monotonic() + seconds_max

    def end(self) -> None:
        """End the process at once, if it runs."""
        if self._is_running and self._child is not None:
            self._child.end()

    def is_to_start(self) -> bool:
        return self._start_at is not None and self._clock.monotonic() >= self._start_at

    def end_if_late(self) -> bool:
        """End the process if it had its time to drain; whether it had."""
        is_late = self._end_at is not None and self._clock.monotonic() >= self._end_at
        if is_late:
            self._end_at = None
            self.end()
        return is_late

    def why(self) -> str:
        """What ended the process."""
        if self.problem is not None:
            return self.problem.message
        code = self._exit_code
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"

    def failure(self) -> CalveError:
        return self.problem or CalveError(
            f"the {self.name} process ended with {self.why()}",
            hint="what it said last is above; run again with -v for more",
        )
