"""What a proxy does wrong on purpose, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")

FOREVER: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Fault:
    """One misbehaviour. A delay comes first; the others exclude each other.

    `drop_answer` lets the request through and takes effect, and resets the connection instead of
    answering. `status` answers without asking the server, or with `after` having asked it, as a
    proxy does that lost the server's answer. HTTP only. `answer_delay_seconds` lets the request
    through at once and keeps the answer back.
    """

    delay_seconds: float = 0.0
    answer_delay_seconds: float = 0.0
    reset: bool = False
    drop_answer: bool = False
    status: int | None = None
    after: bool = False
    retry_after: str | None = None


def delay(seconds: float) -> Fault:
    return Fault(delay_seconds=seconds)


def delay_answer(seconds: float) -> Fault:
    return Fault(answer_delay_seconds=seconds)


def reset() -> Fault:
    return Fault(reset=True)


def drop_answer() -> Fault:
    return Fault(drop_answer=True)


def refuse(status: int, *, retry_after: str | None = None) -> Fault:
    return Fault(status=status, retry_after=retry_after)


def deny_after(status: int) -> Fault:
    """Let the request take effect, and answer that it failed."""
    return Fault(status=status, after=True)


def _always(_: object) -> bool:
    return True


@dataclass(slots=True)
class _Rule(Generic[T]):
    fault: Fault
    when: Callable[[T], bool]
    times: int


class Faults(Generic[T]):
    """A queue of faults; each is taken by the first request that fits, as often as it says."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[_Rule[T]] = []
        self._taken = 0

    @property
    def taken(self) -> int:
        """How many requests met a fault."""
        with self._lock:
            return self._taken

    def inject(self, fault: Fault, *, when: Callable[[T], bool] = _always, times: int = 1) -> None:
        with self._lock:
            self._rules.append(_Rule(fault, when, times))

    def clear(self) -> None:
        with self._lock:
            self._rules.clear()
            self._taken = 0

    def take(self, request: T) -> Fault | None:
        with self._lock:
            rule = next((rule for rule in self._rules if rule.when(request)), None)
            if rule is None:
                return None
            self._taken += 1
            rule.times -= 1
            if rule.times <= 0:
                self._rules.remove(rule)
            return rule.fault
