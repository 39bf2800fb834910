"""The subscriptions of a service: many at once, over one state and shared reads of topics."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

from calve.clock import SystemClock
from calve.errors import Conflict, InvalidRequest
from calve.model import TableName
from calve.state import SubscriptionClaim, SubscriptionName, open_state
from calve.subscriptions.memory import HistoryMemory
from calve.subscriptions.opening import Readers
from calve.subscriptions.register import Subscriptions
from calve.subscriptions.shared import Fanout

if TYPE_CHECKING:
    from collections.abc import Callable

    from calve.access.limits import TenantLimits
    from calve.settings import Settings
    from calve.state import State
    from calve.subscriptions.place import Place
    from calve.subscriptions.reading import Reading
    from calve.subscriptions.start import Start
    from calve.subscriptions.subscription import Subscription
    from calve.tables.catalog import LakeCatalog
    from calve.wal.bells import Bells


class ServedSubscriptions(Subscriptions):
    """Safe to share between threads; to be closed when nobody reads any more."""

    def __init__(
        self,
        settings: Settings,
        catalog: Callable[[], LakeCatalog],
        *,
        bells: Bells | None = None,
        limits: TenantLimits | None = None,
    ) -> None:
        """`bells` are those of the log that this process writes."""
        self._memory = HistoryMemory(settings.reader.memory_bytes_max, clock=SystemClock())
        readers = Readers(settings, bells=bells, memory=self._memory)
        self._fanout = Fanout(
            lambda topic, start, **options: readers.read(catalog(), topic, start, **options),
            age_seconds=settings.reader.poll_interval_ms / 1000,
        )
        self._shared_state = open_state(settings)
        self._limits = limits
        self._lock = threading.Lock()
        self._consumers: dict[tuple[SubscriptionName, int], Subscription] = {}
        super().__init__(
            settings,
            self._fanout.read,
            open_state=lambda: cast("State", _Borrowed(self._shared_state)),
        )

    def read(self, topic: str, start: Start, **options: Any) -> Reading:
        """Rows of a topic, without a subscription."""
        return self._fanout.read(TableName.parse(topic), start, **options)

    def seat(self, topic: str) -> Callable[[], None]:
        """Room for one more stream of the topic's tenant; what is returned gives it back."""
        limits, tenant = self._limits, TableName.parse(topic).tenant
        if limits is None:
            return lambda: None
        limits.enter_stream(tenant)
        return lambda: limits.leave_stream(tenant)

    def _require_room(self, state: State, name: SubscriptionName) -> None:
        if self._limits is not None and self._limits.limit(name.topic.tenant).subscriptions_max:
            held = [
                each
                for each in state.subscriptions()
                if each.name.topic.tenant == name.topic.tenant
            ]
            self._limits.require_subscription(name.topic.tenant, len(held))

    def enter(self, consumer: Subscription, token: int) -> None:
        """Note who has a subscription here, so that acknowledgements find him.

        Also those of what the same consumer got before its connection broke.
        """
        name, succeeded, former = consumer.full_name, consumer.succeeded, None
        with self._lock:
            self._consumers[name, token] = consumer
            if succeeded is not None:
                former = self._consumers.get((name, succeeded))
                self._consumers[name, succeeded] = consumer
        if former is not None and former is not consumer:
            former.look_again()

    def leave(self, consumer: Subscription) -> None:
        with self._lock:
            for key in [key for key, each in self._consumers.items() if each is consumer]:
                del self._consumers[key]

    def acknowledge(self, topic: str, name: str, place: Place) -> bool:
        """Say that everything up to a place is done with; False if it was moved since.

        Fenced if somebody else has the subscription by now.
        """
        named = SubscriptionName.parse(TableName.parse(topic), name)
        with self._lock:
            consumer = self._consumers.get((named, place.token))
        if consumer is not None:
            return consumer.acknowledge(place)
        return self._acknowledge_late(named, place)

    def _acknowledge_late(self, name: SubscriptionName, place: Place) -> bool:
        """For a consumer whose stream has ended, and who has finished its work after that."""
        ends = self.describe(str(name.topic), name.name).ends
        claim = SubscriptionClaim(name, "", place.token, place.generation)
        for partition, offset in place.positions.items():
            if offset > ends.get(partition, 0):
                raise InvalidRequest(
                    f"there is no offset {offset} in partition {partition} of {name.topic} yet",
                    hint="acknowledge what the stream gave",
                )
        try:
            for partition, offset in place.positions.items():
                self._shared_state.acknowledge(claim, partition, offset)
        except Conflict:
            return False
        return True

    def close(self) -> None:
        with ExitStack() as closing:
            closing.callback(self._shared_state.close)
            closing.callback(self._fanout.close)


class _Borrowed:
    """A state that stays open when whoever borrowed it has done with it."""

    def __init__(self, state: State) -> None:
        self._state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def close(self) -> None:
        """Not its own to close."""
