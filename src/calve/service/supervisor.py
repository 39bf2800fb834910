"""Keeps a service's processes running: starts them, starts those that die again, ends them all.

A process that dies is started again after a while, which is longer each time it happens soon
after, and a little different each time. One that says that somebody has to change something first
ends the service with that error. All end with the supervisor, also if it is killed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

import msgspec

from calve.clock import Clock, SystemClock
from calve.errors import EXIT_UNEXPECTED, CalveError, Unavailable
from calve.protocol import error_of
from calve.service.announcement import Addresses, Announcement
from calve.service.child import Child
from calve.service.orders import Order, Report

if TYPE_CHECKING:
    from typing import Self

    from calve.settings import Settings

# What a process may end with and be started again: it was killed, met a defect, or something that
# it needs was out of reach for a moment.
_PASSING: Final = frozenset({0, EXIT_UNEXPECTED, Unavailable.exit_code})
_INGEST: Final = "calve.service.ingest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait before a process that died is started again."""

    initial_seconds: float = 0.2
    max_seconds: float = 30.0
    steady_seconds: float = 60.0  # one that ran so long has not failed before

    def delay_seconds(self, failures: int) -> float:
        longest = min(self.max_seconds, self.initial_seconds * 2.0 ** min(failures - 1, 30))
        return longest * random.uniform(0.5, 1.0)  # noqa: S311


class Supervisor:
    """Looks after the ingest process of a lake. A context manager: started, then stopped."""

    def __init__(
        self,
        settings: Settings,
        order: Order,
        *,
        say: Callable[[str], None],
        backoff: Backoff | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`order` leads to the settings, for the processes. `say` gets lines for people."""
        self._settings = settings
        self._order = order
        self._say = say
        self._backoff = backoff or Backoff()
        self._clock = clock or SystemClock()
        self._events: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._announcement: Announcement | None = None
        self._child: Child | None = None
        self._ready: Addresses | None = None
        self._problem: CalveError | None = None
        self._failures = 0
        self._started_at = 0.0
        self._is_ending = False
        self._has_ended = threading.Event()
        self._restart_at: float | None = None

    @property
    def addresses(self) -> Addresses:
        """Where the service listens; known once it was started, and the same from then on."""
        assert self._ready is not None
        return self._ready

    @property
    def pid(self) -> int | None:
        """The ingest process as it runs now."""
        child = self._child
        return None if child is None else child.pid

    @property
    def has_ended(self) -> bool:
        return self._has_ended.is_set()

    def start(self) -> Addresses:
        """Start everything, and return when it is ready; or raise what keeps it from that."""
        self._announcement = Announcement(self._settings, clock=self._clock)
        try:
            self._launch()
            return self._first_ready()
        except BaseException:
            self.close()
            raise

    def _first_ready(self) -> Addresses:
        while self._ready is None:
            self._step()
            if self._has_ended.is_set():
                raise self._problem or Unavailable("the service was stopped while it started")
        return self._ready

    def run(self) -> None:
        """Look after the processes until `stop`; raises what keeps the service from going on."""
        while not self._has_ended.is_set():
            self._step()
        if self._problem is not None:
            raise self._problem

    def stop(self) -> None:
        """Have everything drain, then `run` returns; a second time, all ends at once.

        May be called from a handler of signals, and from any thread.
        """
        self._events.put(self._end)

    def close(self) -> None:
        """End what still runs, at once, and let go of everything; again does nothing."""
        self._is_ending = True
        if self._restart_at is not None:
            self._has_ended.set()
        elif self._child is not None and not self._has_ended.is_set():
            self._child.end()
            while not self._has_ended.is_set():
                self._step()
        if self._announcement is not None:
            self._announcement.release()

    def _step(self) -> None:
        """Do the next thing that is to be done, waiting for it."""
        try:
            self._events.get(timeout=self._patience_seconds())()
        except Empty:
            self._restart_at = None
            self._launch()

    def _patience_seconds(self) -> float | None:
        if self._restart_at is None:
            return None
        return max(0.0, self._restart_at - self._clock.monotonic())

    def _launch(self) -> None:
        self._started_at = self._clock.monotonic()
        self._child = Child("ingest", _INGEST, self._order, tell=self._told, say=self._say)

    def _told(self, child: Child, report: Report | None) -> None:
        if report is None:
            self._events.put(lambda: self._ended(child))
        else:
            self._events.put(lambda: self._reported(child, report))

    def _reported(self, child: Child, report: Report) -> None:
        if report.problem is not None:
            self._problem = error_of(report.problem)
        if report.addresses is not None:
            if self._ready is not None:
                self._say(f"{child.name} is back, as process {child.pid}")
            self._ready = report.addresses
            self._order = _at(self._order, report.addresses)
            self._announce({child.name: child.pid})

    def _announce(self, processes: dict[str, int]) -> None:
        assert self._announcement is not None
        try:
            self._announcement.tell(self.addresses, processes)
        except OSError as error:
            self._say(f"the service runs, but commands cannot find it: {error}")

    def _ended(self, child: Child) -> None:
        problem, self._problem = self._problem, None
        if self._is_ending:
            self._has_ended.set()
        elif self._ready is not None and _is_passing(child):
            self._start_again(child, problem)
        else:
            self._problem = problem or _died(child)
            self._has_ended.set()

    def _start_again(self, child: Child, problem: CalveError | None) -> None:
        now = self._clock.monotonic()
        is_steady = now - self._started_at >= self._backoff.steady_seconds
        self._failures = 1 if is_steady else self._failures + 1
        delay = self._backoff.delay_seconds(self._failures)
        self._restart_at = now + delay
        reason = problem.message if problem else _how(child)
        self._say(f"{child.name} ended: {reason}; it is started again in {delay:.1f} s")

    def _end(self) -> None:
        assert self._child is not None
        if self._restart_at is not None or self._child.exit_code is not None:
            self._restart_at = None
            self._has_ended.set()
        elif self._is_ending:
            self._child.end()
        else:
            self._child.ask_to_end()
        self._is_ending = True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _at(order: Order, addresses: Addresses) -> Order:
    """The same order with the ports that were found free, which clients know by now."""
    flight, http = addresses.ports()
    ports = {"ingest.flight_port": flight, "ingest.http_port": http}
    return msgspec.structs.replace(order, flags={**order.flags, **ports})


def _is_passing(child: Child) -> bool:
    code = child.exit_code
    return code is not None and (code < 0 or code in _PASSING)


def _how(child: Child) -> str:
    code = child.exit_code
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def _died(child: Child) -> CalveError:
    return CalveError(
        f"the {child.name} process ended with {_how(child)}",
        hint="what it said last is above; run again with -v for more",
    )
