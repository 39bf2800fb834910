"""What those share that hand out rows: one iterates over them, and closes them with a `with`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from calve.errors import InvalidRequest

if TYPE_CHECKING:
    from typing import Self

    from calve.subscriptions.batch import Batch
    from calve.subscriptions.start import Start
    from calve.subscriptions.status import SubscriptionStatus

Item = TypeVar("Item")


class Polled(ABC, Generic[Item]):
    """An iterator of what `poll` gives, until there will be no more."""

    @abstractmethod
    def poll(self, timeout_seconds: float | None = None) -> Item | None: ...

    @abstractmethod
    def close(self) -> None: ...

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        item = self.poll()
        if item is None:
            raise StopIteration
        return item

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Consumer(Polled["Batch"]):
    """A subscription as its consumer has it, in a lake or through a service."""

    @abstractmethod
    def ack(self, batch: Batch, next_offset: int | None = None) -> bool:
        """Say that all rows of the batch's partition up to its end are done with; durable then.

        Or up to `next_offset`, which is in the batch. False if that does not count, because the
        subscription was moved or the rows were asked for again since: they come again.
        """

    @abstractmethod
    def nack(self, batch: Batch) -> None:
        """Have all rows of the batch's partition that are not acknowledged come again."""

    @abstractmethod
    def seek(self, start: Start) -> None:
        """Go on from another place, for good; what was handed out before does not count then."""

    @abstractmethod
    def status(self) -> SubscriptionStatus:
        """Where it is, who has it and how far behind."""

    def reset(self) -> None:
        """Begin again with the first row."""
        self.seek("earliest")

    @property
    def lag(self) -> int:
        """How many offsets of the topic are not acknowledged."""
        return self.status().lag


def acknowledged_end(batch: Batch, next_offset: int | None) -> int:
    """The offset up to which a batch, or a part of it, is acknowledged."""
    offset = batch.next_offset if next_offset is None else next_offset
    if not batch.first_offset <= offset <= batch.next_offset:
        raise InvalidRequest(
            f"offset {offset} is not in the batch, which has {batch.first_offset} up to "
            f"{batch.next_offset}",
            hint="acknowledge a batch that this subscription handed out, or a part of it",
        )
    return offset


def require_handed_out(batch: Batch) -> None:
    if batch.delivery == 0:
        raise InvalidRequest(
            "the batch was not handed out by a subscription",
            hint="acknowledge what `poll` or the iteration gave",
        )
