"""What a producer is told when the log stopped: to come back, not that it did something wrong."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from calve.errors import CalveError, Fenced, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

RETRY_AFTER_MS: Final = 1_000


def as_refusal(error: CalveError) -> CalveError:
    """The error as a producer should get it.

    For outcomes of appends: bounds are Overloaded (429) and a refused write is Unavailable (503)
    already; a log that has stopped is Fenced for its owner, and Unavailable for everybody else.
    A consumer that has lost its subscription is the owner itself.
    """
    if not isinstance(error, Fenced) or "subscription" in error.context:
        return error
    refusal = Unavailable(
        f"no rows are taken in: {error.message}",
        hint=f"retry in {RETRY_AFTER_MS} ms with the same producer and sequence; the service tries "
        "to open its log again",
        context={**error.context, "retry_after_ms": str(RETRY_AFTER_MS)},
    )
    refusal.__cause__ = error
    return refusal


@contextmanager
def refusing() -> Iterator[None]:
    """Around what uses the log: what is raised is what a producer should get."""
    try:
        yield
    except Fenced as error:
        raise as_refusal(error) from error
