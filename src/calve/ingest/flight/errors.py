"""Errors as Flight sends them: the status that a Flight client expects, and the whole problem.

Arrow's server can send only some of gRPC's codes. RESOURCE_EXHAUSTED, ALREADY_EXISTS and ABORTED
are not among them: Overloaded goes as UNAVAILABLE and Conflict as INVALID_ARGUMENT, and the problem
tells them apart.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa
from pyarrow import flight

from calve.errors import (
    CalveError,
    Conflict,
    Denied,
    Fenced,
    InvalidRequest,
    MissingPart,
    NotFound,
    Unauthenticated,
    Unavailable,
    UnknownOutcome,
)
from calve.ingest.refusals import as_refusal
from calve.log import new_correlation_id
from calve.protocol import problem_of

if TYPE_CHECKING:
    from types import TracebackType

_log: Final = logging.getLogger(__name__)
# Where Arrow's clients look for what they call extra_info.
_DETAILS: Final = "grpc-status-details-bin"
_DELAY: Final = "grpc-retry-pushback-ms"


class _Untraced(Exception):
    """Arrow sends the traceback of an error to the client, unless that cannot be formatted."""

    @property
    def __cause__(self) -> NoReturn:  # type: ignore[override]
        raise AttributeError


class _InvalidArgument(_Untraced, pa.ArrowInvalid):  # type: ignore[misc]
    pass


class _NotFound(_Untraced, pa.ArrowKeyError):  # type: ignore[misc]
    pass


class _Unimplemented(_Untraced, pa.ArrowNotImplementedError):  # type: ignore[misc]
    pass


_STATUSES: Final[tuple[tuple[type[CalveError], type[Exception]], ...]] = (
    (MissingPart, _Unimplemented),
    (InvalidRequest, _InvalidArgument),
    (NotFound, _NotFound),
    (Conflict, _InvalidArgument),
    (Unavailable, flight.FlightUnavailableError),
    (Fenced, flight.FlightUnavailableError),
    (Unauthenticated, flight.FlightUnauthenticatedError),
    (Denied, flight.FlightUnauthorizedError),
    (UnknownOutcome, flight.FlightTimedOutError),
)


def told(context: Any, error: CalveError) -> Exception:
    """The error for Arrow to send; `context` is the call's, or None before there is one."""
    refusal = as_refusal(error)
    problem = problem_of(refusal)
    if context is not None:
        context.add_trailer(_DETAILS, problem.encoded())
        if problem.retry_after_ms is not None:
            context.add_trailer(_DELAY, str(problem.retry_after_ms))
    status = next(
        (status for kind, status in _STATUSES if isinstance(refusal, kind)),
        flight.FlightInternalError,
    )
    if context is None and issubclass(status, flight.FlightError):
        return status(str(refusal), problem.encoded())
    return status(str(refusal))


class Answering:
    """A context in which whatever goes wrong becomes what Arrow can send."""

    __slots__ = ("_context",)

    def __init__(self, context: Any) -> None:
        self._context = context

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        _: type[BaseException] | None,
        error: BaseException | None,
        __: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, flight.FlightError | GeneratorExit | StopIteration):
            return
        if not isinstance(error, Exception):
            return
        if not isinstance(error, CalveError):
            error = _defect(error)
        raise told(self._context, error) from None


def _defect(error: Exception) -> CalveError:
    reference = new_correlation_id()
    _log.error("a Flight call failed [%s]", reference, exc_info=error)
    return CalveError(
        "an unexpected error, which is a defect of Calve",
        hint=f"the service's log has it under {reference}",
        context={"reference": reference},
    )
