"""Every error a user of Calve can meet, grouped by what the caller must do.

    CalveError
    ├── InvalidRequest        fix the request
    │   ├── InvalidSettings   fix the configuration
    │   ├── MissingPart       install an optional part or a program
    │   └── TooLarge          split the request
    ├── NotFound              name something that exists
    ├── Conflict              reload, decide again, retry
    │   └── SchemaConflict    write the rows again, for the columns of now
    ├── Unavailable           back off, then retry
    │   └── Overloaded        the same: a bound was reached, nothing is broken
    ├── UnknownOutcome        look at the state before retrying
    ├── Fenced                stop: somebody else owns this now
    ├── Corruption            an operator must look
    └── Denied                ask for access
        └── Unauthenticated   say who you are: with a token that is known and valid

Each class carries its exit code and HTTP status. Third-party errors are translated to these where
the library lives; nothing else reaches a user.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EXIT_UNEXPECTED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
# Messages are logged and kept; what they quote of somebody's data may have any length.
_TEXT_MAX: Final = 4_000
# What texts pass through before they are told; at most one.
_masks: Final[list[Callable[[str], str]]] = []


def mask_with(mask: Callable[[str], str] | None) -> None:
    """Have whatever errors say from now on pass through `mask`.

    For the processes that are Calve's own, which know the secrets that no error may tell, whoever
    put them into its words. None takes it back.
    """
    _masks[:] = [] if mask is None else [mask]


def masked(text: str) -> str:
    """The text as it may be shown by this process."""
    return _masks[0](text) if _masks else text


class CalveError(Exception):
    """What went wrong, what to do about it, and the facts a program may want to read.

    One constructor for the whole tree, so that an error raised in a Spark worker arrives in the
    driver as the same class with the same fields.
    """

    exit_code: ClassVar[int] = EXIT_UNEXPECTED
    http_status: ClassVar[int] = 500

    def __init__(
        self, message: str, *, hint: str | None = None, context: Mapping[str, str] | None = None
    ) -> None:
        self.message = _bounded(masked(message))
        self.hint = None if hint is None else _bounded(masked(hint))
        super().__init__(self.message)
        facts = {name: masked(fact) for name, fact in (context or {}).items()}
        self.context: Mapping[str, str] = MappingProxyType(facts)

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.hint, dict(self.context))


def unexpected(error: BaseException) -> CalveError:
    """What nobody translated, for those who go on after it."""
    return CalveError(f"unexpected {type(error).__name__}: {error}")


def _bounded(text: str) -> str:
    half = _TEXT_MAX // 2
    return text if len(text) <= _TEXT_MAX else f"{text[:half]} … {text[-half:]}"


def _rebuild(
    kind: type[CalveError], message: str, hint: str | None, context: dict[str, str]
) -> CalveError:
    return kind(message, hint=hint, context=context)


class InvalidRequest(CalveError):
    exit_code = 3
    http_status = 400


class InvalidSettings(InvalidRequest):
    pass


class MissingPart(InvalidRequest):
    http_status = 501


class TooLarge(InvalidRequest):
    http_status = 413


class NotFound(CalveError):
    exit_code = 4
    http_status = 404


class Conflict(CalveError):
    exit_code = 5
    http_status = 409


class SchemaConflict(Conflict):
    """Files were written for columns that the table does not have so any more."""


class Unavailable(CalveError):
    exit_code = 6
    http_status = 503


class Overloaded(Unavailable):
    """A bound of memory or disk was reached. `context["retry_after_ms"]` says when to try again."""

    http_status = 429


class UnknownOutcome(CalveError):
    """The work may or may not have happened. Retrying blindly could do it twice."""

    http_status = 504


class Fenced(CalveError):
    exit_code = 5
    http_status = 409


class Corruption(CalveError):
    exit_code = 7


class Denied(CalveError):
    exit_code = 8
    http_status = 403


class Unauthenticated(Denied):
    """Nobody knows who asks: no token, or one that is not known, over or revoked."""

    http_status = 401
