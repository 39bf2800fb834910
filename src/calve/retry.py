"""Trying again: a bounded number of times, after waits that grow and are never in step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    stop_before_delay,
    wait_exponential_jitter,
)

from calve.settings import RetrySettings

_T = TypeVar("_T")


def retried(
    work: Callable[[], _T],
    retry: RetrySettings,
    is_passing: Callable[[BaseException], bool],
    *,
    on_wait: Callable[[float], None] | None = None,
    seconds_max: float = math.inf,
) -> _T:
    """Do the work; while it fails in a way that may pass, wait and do it again.

    No attempt is begun later than `seconds_max` after the first.
    """
    attempts = Retrying(
        stop=stop_after_attempt(retry.max_attempts) | stop_before_delay(seconds_max),
        wait=wait_exponential_jitter(
            multiplier=retry.initial_delay_ms / 1000,
            max=retry.max_delay_ms / 1000,
            exp_base=retry.backoff_multiplier,
            jitter=retry.initial_delay_ms / 1000,
        ),
        retry=retry_if_exception(is_passing),
        before_sleep=telling(on_wait),
        reraise=True,
    )
    return attempts(work)


def telling(on_wait: Callable[[float], None] | None) -> Callable[[RetryCallState], None] | None:
    return None if on_wait is None else lambda state: on_wait(state.upcoming_sleep)
