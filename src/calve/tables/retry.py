"""Trying a table's commit again, as often as its properties or a bound of the caller's say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from tenacity import (
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)

from calve.errors import Conflict
from calve.retry import retried, telling
from calve.settings import RetrySettings

_T = TypeVar("_T")
# Iceberg's own, for tables that say nothing.
_COMMIT_DEFAULTS: Final = {
    "commit.retry.num-retries": 4,
    "commit.retry.min-wait-ms": 100,
    "commit.retry.max-wait-ms": 60_000,
    "commit.retry.total-timeout-ms": 1_800_000,
}


@dataclass(frozen=True, slots=True)
class CommitRetry:
    """How a commit is tried again; `on_wait` is told the seconds of each wait.

    Without a bound it follows the table's `commit.retry.*` properties. A bound may be for failures
    alone: then these properties still say how often a commit may lose against somebody else's.
    """

    bound: RetrySettings | None = None
    bounds_races: bool = True
    on_wait: Callable[[float], None] | None = None

    def __call__(
        self,
        work: Callable[[], _T],
        properties: Mapping[str, str],
        is_passing: Callable[[BaseException], bool],
    ) -> _T:
        bound = self.bound
        if bound is None:
            return retried_commit(work, properties, is_passing, on_wait=self.on_wait)
        if self.bounds_races:
            return retried(work, bound, is_passing, on_wait=self.on_wait)
        return retried_commit(
            lambda: retried(
                work,
                bound,
                lambda error: is_passing(error) and not isinstance(error, Conflict),
                on_wait=self.on_wait,
            ),
            properties,
            lambda error: is_passing(error) and isinstance(error, Conflict),
            on_wait=self.on_wait,
        )


def retried_commit(
    work: Callable[[], _T],
    properties: Mapping[str, str],
    is_passing: Callable[[BaseException], bool],
    *,
    on_wait: Callable[[float], None] | None = None,
) -> _T:
    """Do the work as often and with such waits as the table's `commit.retry.*` properties say."""
    retries, least_ms, most_ms, total_ms = (
        _amount(properties, name, default) for name, default in _COMMIT_DEFAULTS.items()
    )
    attempts = Retrying(
        stop=stop_after_attempt(retries + 1) | stop_after_delay(total_ms / 1000),
        wait=wait_random_exponential(multiplier=least_ms / 1000, max=most_ms / 1000),
        retry=retry_if_exception(is_passing),
        before_sleep=telling(on_wait),
        reraise=True,
    )
    return attempts(work)


def _amount(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name, "")
    return int(text) if text.isdecimal() else default
