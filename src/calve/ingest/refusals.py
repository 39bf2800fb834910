"""What a producer is told when the log stopped: to come back, not that it did something wrong."""

from __future__ import annotations

from typing import Final

from calve.errors import CalveError, Fenced, Unavailable

_RETRY_AFTER_MS: Final = 5_000


def as_refusal(error: CalveError) -> CalveError:
    """The error as a producer should get it.

    For outcomes of appends: bounds are Overloaded (429) and a refused write is Unavailable (503)
    already; a log that has stopped is Fenced for its owner, and Unavailable for everybody else.
    """
    if not isinstance(error, Fenced):
        return error
    refusal = Unavailable(
        f"no rows are taken in: {error.message}",
        hint=f"retry in {_RETRY_AFTER_MS} ms with the same producer and sequence; the service has "
        "to open its log again",
        context={**error.context, "retry_after_ms": str(_RETRY_AFTER_MS)},
    )
    refusal.__cause__ = error
    return refusal
