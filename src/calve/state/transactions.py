"""What a backend of the state must be able to do: run work on records, as one transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, TypeVar

from calve.state.records import Records

_T = TypeVar("_T")

# A server that is silent is waited for a few times at most, whatever `[retry]` says.
RETRY_SECONDS_MAX: Final = 30.0


class Transactions(ABC):
    """Work may be run again, on what is there then, before it is done. Safe between threads."""

    changes_max: ClassVar[int] = 10_000  # in one transaction

    @abstractmethod
    def _read(self, work: Callable[[Records], _T]) -> _T:
        """Run what changes nothing."""

    @abstractmethod
    def _change(
        self, scopes: Sequence[str], work: Callable[[Records], _T], *, is_repeatable: bool = True
    ) -> _T:
        """Run a transaction; it is durable when this returns.

        Those that change the same name the same scope, and two that name several name them in the
        same order; a backend may have them take turns. One that is repeatable is run again where
        nobody knows whether it was done; for others that is an UnknownOutcome.
        """

    @abstractmethod
    def close(self) -> None: ...
