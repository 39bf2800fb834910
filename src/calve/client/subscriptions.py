"""The subscriptions of a lake, through its service: to be looked after, whoever has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from calve.subscriptions.start import start_text
from calve.subscriptions.status import SubscriptionStatus

if TYPE_CHECKING:
    from calve.subscriptions.place import Place
    from calve.subscriptions.start import Start

_Act: TypeAlias = Callable[..., Any]


class ClientSubscriptions:
    """The same as `lake.subscriptions`."""

    def __init__(self, act: _Act) -> None:
        self._act = act

    def list(self, topic: str | None = None) -> list[SubscriptionStatus]:
        """All of them, or a topic's, by topic and name."""
        found = self._act("subscription.list", {"topic": topic})
        return [SubscriptionStatus.parse(each) for each in found]

    def describe(self, topic: str, name: str) -> SubscriptionStatus:
        return self._do("describe", topic, name)

    def seek(self, topic: str, name: str, start: Start) -> SubscriptionStatus:
        """Move it, whoever has it: what was handed out before does not count then."""
        return self._do("seek", topic, name, to=start_text(start))

    def reset(self, topic: str, name: str) -> SubscriptionStatus:
        """Forget its progress and begin anew, also where the topic was deleted and made again."""
        return self._do("reset", topic, name)

    def delete(self, topic: str, name: str) -> None:
        """Forget it and its progress; a consumer that has it is told so."""
        self._act("subscription.delete", {"topic": topic, "subscription": name})

    def acknowledge(self, topic: str, name: str, place: Place) -> bool:
        """For consumers: everything up to a place is done with; False if it was moved since."""
        body = {"topic": topic, "subscription": name, "place": str(place)}
        counts: bool = self._act("subscription.ack", body)["counts"]
        return counts

    def _do(self, what: str, topic: str, name: str, **rest: Any) -> SubscriptionStatus:
        body = {"topic": topic, "subscription": name, **rest}
        return SubscriptionStatus.parse(self._act(f"subscription.{what}", body))
