"""The parent of a service's processes: starts them, starts those that die again, ends them all.

A process that dies is started again after a while, which is longer each time it happens soon
after, and a little different each time. The first of them carries the service: it is ready when
that one is, and ends if that one says that somebody has to change something first. The others
come and go without it. All end with the supervisor, also if it is killed.
"""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from calve.clock import Clock, SystemClock
from calve.errors import CalveError, MissingPart, Unavailable
from calve.protocol import error_of
from calve.service.announcement import Addresses, Announcement
from calve.service.role import Backoff, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from calve.service.child import Child
    from calve.service.orders import Order, Report
    from calve.settings import Settings

RoleName: TypeAlias = Literal["ingest", "pipeline"]

# Beyond what a process gets to drain: until its JVM has ended, or has come so far that it can.
_GRACE_SECONDS: Final = 30.0


class Supervisor:
    """Looks after the processes of a lake's service. A context manager: started, then stopped."""

    def __init__(
        self,
        settings: Settings,
        order: Order,
        *,
        roles: Sequence[RoleName] = ("ingest",),
        say: Callable[[str], None],
        backoff: Backoff | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`order` leads to the settings, for the processes. `say` gets lines for people."""
        self._settings = settings
        self._order = order
        self._say = say
        self._clock = clock or SystemClock()
        self._events: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._roles = [
            Role(name, tell=self._told, say=say, backoff=backoff or Backoff(), clock=self._clock)
            for name in roles
        ]
        self._announcement: Announcement | None = None
        self._addresses: Addresses | None = None
        self._problem: CalveError | None = None
        self._is_ending = False
        self._has_ended = threading.Event()

    @property
    def addresses(self) -> Addresses:
        """Where ingest listens; known once it was started, and the same from then on."""
        assert self._addresses is not None
        return self._addresses

    @property
    def pid(self) -> int | None:
        """The first process as it runs now."""
        return self._roles[0].pid

    @property
    def has_ended(self) -> bool:
        return self._has_ended.is_set()

    def start(self) -> None:
        """Start everything, and return when the first is ready; or raise what keeps it from it."""
        if self._roles[0].name == "ingest":
            self._announcement = Announcement(self._settings, clock=self._clock)
        first, *others = self._roles
        try:
            first.start(self._order)
            self._await_ready(first)
            for role in others:
                role.start(self._order)
            self._announce()
        except BaseException:
            self.close()
            raise

    def _await_ready(self, role: Role) -> None:
        while not role.was_ready:
            self._step()
            if self._has_ended.is_set():
                raise self._problem or Unavailable("the service was stopped while it started")

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
        for role in self._roles:
            role.stay_away()
            role.end()
        while any(role.is_running for role in self._roles):
            self._step()
        self._has_ended.set()
        if self._announcement is not None:
            self._announcement.release()

    def _step(self) -> None:
        """Do the next thing that is to be done, waiting for it."""
        try:
            event = self._events.get(timeout=self._patience_seconds())
        except Empty:
            self._look_at_clock()
        else:
            event()

    def _patience_seconds(self) -> float | None:
        times = [role.next_at for role in self._roles if role.next_at is not None]
        return max(0.0, min(times) - self._clock.monotonic()) if times else None

    def _look_at_clock(self) -> None:
        for role in self._roles:
            if role.is_to_start():
                role.start(self._order)
            elif role.end_if_late():
                self._say(f"{role.name} took too long to end; what it had not done is in the log")

    def _told(self, role: Role, child: Child, report: Report | None) -> None:
        if report is None:
            self._events.put(lambda: self._ended(role))
        else:
            self._events.put(lambda: self._reported(role, child, report))

    def _reported(self, role: Role, child: Child, report: Report) -> None:
        if report.problem is not None:
            role.problem = error_of(report.problem)
            return
        if role.was_ready:
            self._say(f"{role.name} is back, as process {child.pid}")
        elif role is not self._roles[0]:
            self._say(f"the {role.name} is ready")
        role.was_ready = True
        if report.addresses is not None:
            self._addresses = report.addresses
            self._order = _at(self._order, report.addresses)
        self._announce()

    def _announce(self) -> None:
        if self._announcement is None or self._addresses is None:
            return
        running = [role for role in self._roles if role.is_running]
        processes = {role.name: role.pid for role in running if role.pid is not None}
        try:
            self._announcement.tell(self._addresses, processes)
        except OSError as error:
            self._say(f"the service runs, but commands cannot find it: {error}")

    def _ended(self, role: Role) -> None:
        role.has_ended()
        if self._is_ending:
            self._wind_down()
        elif role is self._roles[0] and not (role.was_ready and role.has_passed):
            self._problem = role.failure()
            self._is_ending = True
            self._wind_down()
        elif isinstance(role.problem, MissingPart):
            hint = f"; {role.problem.hint}" if role.problem.hint else ""
            self._say(f"rows stay in the log, the {role.name} does not run: {role.why()}{hint}")
        else:
            delay_seconds = role.start_later()
            self._say(
                f"{role.name} ended: {role.why()}; it is started again in {delay_seconds:.1f} s"
            )
        if role is not self._roles[0] and not self._is_ending:
            self._announce()

    def _end(self) -> None:
        if self._is_ending:
            for role in self._roles:
                role.end()
        else:
            self._is_ending = True
            self._wind_down()

    def _wind_down(self) -> None:
        """End one after the other: what takes rows in first, then what brings them to tables."""
        for role in self._roles:
            role.stay_away()
        running = next((role for role in self._roles if role.is_running), None)
        if running is None:
            self._has_ended.set()
        elif running.name == "ingest":
            running.ask_to_end()
        else:
            drain_seconds = self._settings.pipeline.drain_ms / 1000
            running.ask_to_end(seconds_max=drain_seconds + _GRACE_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _at(order: Order, addresses: Addresses) -> Order:
    """The same order with the ports that were found free, which clients know by now."""
    ports = {f"ingest.{name}_port": port for name, port in addresses.ports().items()}
    return msgspec.structs.replace(order, flags={**order.flags, **ports})
