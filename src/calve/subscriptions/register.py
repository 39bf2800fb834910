"""The subscriptions of a lake: made and opened, listed, moved and forgotten, whoever has them."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from calve.audit import Trail, audited
from calve.audit.actions import SUBSCRIPTIONS
from calve.errors import CalveError, Conflict, InvalidRequest
from calve.model import TableName
from calve.state import SubscriptionName
from calve.state import open_state as state_of
from calve.subscriptions.ownership import LEASE_SECONDS
from calve.subscriptions.status import SubscriptionStatus, unknown
from calve.subscriptions.subscription import Subscription
from calve.topics.registry import TopicRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from calve.settings import Settings
    from calve.state import State
    from calve.subscriptions.place import Place
    from calve.subscriptions.reading import Reading
    from calve.subscriptions.start import Start

_LEASE_SECONDS_MIN: Final = 0.1


@audited(SUBSCRIPTIONS)
class Subscriptions:
    """Safe to share between threads. A topic's name is written as everywhere else."""

    def __init__(
        self,
        settings: Settings,
        open_reading: Callable[..., Reading],
        *,
        open_state: Callable[[], State] | None = None,
    ) -> None:
        """`open_reading` is given a topic's name, a start and the options of a reader."""
        self._trail = Trail.of(settings)
        self._open_reading = open_reading
        self._open_state = open_state or (lambda: state_of(settings))

    def open(
        self,
        topic: str,
        name: str,
        start: Start = "earliest",
        *,
        lease_seconds: float = LEASE_SECONDS,
        resume: Place | None = None,
        **options: Any,
    ) -> Subscription:
        """Consume a subscription; one that is new begins at `start`, and is durable from here on.

        `options` are those of a reader. A consumer whose connection broke goes on at `resume`,
        unless the subscription was moved since.
        """
        if not lease_seconds >= _LEASE_SECONDS_MIN:
            raise InvalidRequest(
                f"lease_seconds is {lease_seconds}", hint=f"give {_LEASE_SECONDS_MIN} or more"
            )
        named = _name(topic, name)
        with ExitStack() as opened:
            state = self._open_state()
            opened.callback(state.close)
            known = state.subscription(named) is not None
            if known:
                _require_same_topic(state, named)
            at = state.positions(named) if known else start
            reading = self._open_reading(named.topic, at, **options)
            opened.callback(reading.close)
            if not known:
                self._require_room(state, named)
                _create(state, named, reading)
            opened.pop_all()
        return Subscription(
            named, state=state, reading=reading, lease_seconds=lease_seconds, resume=resume
        )

    def list(
        self, topic: str | None = None, *, is_seen: Callable[[TableName], bool] = lambda _: True
    ) -> list[SubscriptionStatus]:
        """All of them, or a topic's, by topic and name; `is_seen` chooses among the topics.

        Those of a topic that is gone are there too; NotFound if there never was one.
        """
        with self._state() as state:
            name = TableName.parse(topic) if topic is not None else None
            found = state.subscriptions(name)
            if name is not None and not found:
                TopicRegistry(state).topic(name)
            names = sorted(each.name for each in found if is_seen(each.name.topic))
            ends = {each: self._ends_of(state, each) for each in {name.topic for name in names}}
            return [self._status(state, each, ends[each.topic]) for each in names]

    def describe(self, topic: str, name: str) -> SubscriptionStatus:
        named = _name(topic, name)
        with self._state() as state:
            return self._status(state, named, self._ends_of(state, named.topic))

    def seek(self, topic: str, name: str, start: Start) -> SubscriptionStatus:
        """Move it, whoever has it: what was handed out before does not count then."""
        named = _name(topic, name)
        with self._state() as state:
            _require(state, named)
            _require_same_topic(state, named)
            with self._reading(named.topic, start) as reading:
                state.move_subscription(named, reading.positions)
                return SubscriptionStatus.of(state, named, reading.ends())

    def reset(self, topic: str, name: str, start: Start = "earliest") -> SubscriptionStatus:
        """Forget its progress and begin anew, also where the topic was deleted and made again."""
        named = _name(topic, name)
        with self._state() as state:
            _require(state, named)
            with self._reading(named.topic, start) as reading:
                if _is_of_topic(state, named):
                    state.move_subscription(named, reading.positions)
                else:
                    state.delete_subscription(named)
                    _create(state, named, reading)
                return SubscriptionStatus.of(state, named, reading.ends())

    def delete(self, topic: str, name: str) -> None:
        """Forget it and its progress; a consumer that has it is told so."""
        named = _name(topic, name)
        with self._state() as state:
            if not state.delete_subscription(named):
                raise unknown(state, named)

    def _require_room(self, state: State, name: SubscriptionName) -> None:
        """Whether there may be one more; only a service bounds its tenants."""

    @contextmanager
    def _state(self) -> Iterator[State]:
        state = self._open_state()
        try:
            yield state
        finally:
            state.close()

    @contextmanager
    def _reading(self, topic: TableName, start: Start) -> Iterator[Reading]:
        reading = self._open_reading(topic, start)
        try:
            yield reading
        finally:
            reading.close()

    def _ends_of(self, state: State, topic: TableName) -> dict[int, int]:
        """Nothing where the topic is gone, or its log cannot be read now."""
        if TopicRegistry(state).find(topic) is None:
            return {}
        try:
            with self._reading(topic, "latest") as reading:
                return reading.ends()
        except CalveError:
            return {}

    def _status(
        self, state: State, name: SubscriptionName, ends: dict[int, int]
    ) -> SubscriptionStatus:
        return SubscriptionStatus.of(state, name, ends if _is_of_topic(state, name) else {})


def _name(topic: str, name: str) -> SubscriptionName:
    return SubscriptionName.parse(TableName.parse(topic), name)


def _create(state: State, name: SubscriptionName, reading: Reading) -> None:
    """Or find that somebody has just made it, which is as well."""
    topic = TopicRegistry(state).topic(name.topic)
    state.create_subscription(name, topic.id, reading.positions)


def _is_of_topic(state: State, name: SubscriptionName) -> bool:
    found, topic = state.subscription(name), TopicRegistry(state).find(name.topic)
    return found is not None and topic is not None and found.topic_id == topic.id


def _require(state: State, name: SubscriptionName) -> None:
    if state.subscription(name) is None:
        raise unknown(state, name)


def _require_same_topic(state: State, name: SubscriptionName) -> None:
    TopicRegistry(state).topic(name.topic)  # which says so if it is gone
    if not _is_of_topic(state, name):
        raise Conflict(
            f"topic {name.topic} was deleted and made again since {name.name} subscribed to it",
            hint=f"`calve subscription reset {name.topic} {name.name}` begins anew with the rows "
            "of the topic that is there now",
        )
