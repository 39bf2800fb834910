"""Trying again: a bounded number of times, after waits that grow and are never in step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from calve.settings import RetrySettings

_T = TypeVar("_T")


def retried(
    work: Callable[[], _T], retry: RetrySettings, is_passing: Callable[[BaseException], bool]
) -> _T:
    """Do the work; while it fails in a way that may pass, wait and do it again."""
    attempts = Retrying(
        stop=stop_after_attempt(retry.max_attempts),
        wait=wait_exponential_jitter(
            multiplier=retry.initial_delay_ms / 1000,
            max=retry.max_delay_ms / 1000,
            exp_base=retry.backoff_multiplier,
            jitter=retry.initial_delay_ms / 1000,
        ),
        retry=retry_if_exception(is_passing),
        reraise=True,
    )
    return attempts(work)
