"""What becomes of rows that were handed to the client: a handle to wait on, or to await."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Generator



class Delivered(NamedTuple):
    """The offsets of the rows, `first` up to but not including `end`; they are durable.

    None, both, for a repeat of something that was sent too long ago to be known by number.
    """

    first: int | None
    end: int | None
    is_repeat: bool = False


class Delivery:
    """Returned by `Client.produce`: `result()`, or `await` it. Safe to share between threads."""

    def __init__(self) -> None:
        raise NotImplementedError

    @property
    def is_done(self) -> bool:
        raise NotImplementedError

    def result(self, timeout_seconds: float | None = None) -> Delivered:
        """Wait for the rows to be durable; raises the CalveError that kept them from it.

        Unavailable after the time-out: they may still arrive.
        """
        raise NotImplementedError

    def add_done_callback(self, callback: Callable[[Delivery], None]) -> None:
        """Call back once it is decided, from the client's thread; at once if it is already."""
        raise NotImplementedError

    def __await__(self) -> Generator[object, None, Delivered]:
        raise NotImplementedError
