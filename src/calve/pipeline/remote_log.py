"""Logs on other machines, known through the services that write them.

A service is asked over Flight how far a topic is, not more often than every second. It tells
nothing of bytes and times: rows count from when they were first heard of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from calve.errors import CalveError, Conflict, Unavailable
from calve.pipeline.source_log import Extent
from calve.pipeline.work import LogPlace
from calve.protocol.flight_errors import Translating

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calve.clock import Clock
    from calve.topics.topic import Binding, Topic

_ASK_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 10.0
_ROW_BYTES: Final = 128  # a guess, where nobody tells


class Stats(msgspec.Struct, frozen=True):
    """The part of a service's answer that counts here."""

    partition: int
    first: int
    durable: int


class RemoteLogs:
    def __init__(self, addresses: Sequence[str], clock: Clock) -> None:
        self._addresses = addresses
        self._clock = clock
        self._clients: dict[str, Any] = {}
        self._known: dict[tuple[str, int], RemoteLog] = {}
        self._count = 0

    @property
    def is_configured(self) -> bool:
        return bool(self._addresses)

    def refresh(self) -> int:
        """Let what was heard some time ago be asked for again."""
        now = self._clock.monotonic()
        if any(now - each.asked_at >= _ASK_SECONDS for each in self._known.values()):
            self._count += 1
        return self._count

    def log(self, topic: Topic, partition: int, binding: Binding) -> RemoteLog:
        """The partition, at the service that has it; Unavailable if none does."""
        key = (str(topic.name), partition)
        known = self._known.get(key)
        if known is None or known.place.stream_id != binding.stream_id:
            address = self._address(topic, partition)
            known = self._known[key] = RemoteLog(self, topic, partition, binding, address)
        return known

    def now(self) -> float:
        return self._clock.monotonic()

    def _address(self, topic: Topic, partition: int) -> str:
        failure: CalveError | None = None
        for address in self._addresses:
            try:
                if self.stats(address, str(topic.name)).partition == partition:
                    return address
            except CalveError as error:
                failure = error
        reason = failure.message if failure else "none of them has it"
        raise Unavailable(
            f"partition {partition} of topic {topic.name} is in no log here, and no service of "
            f"pipeline.logs tells of it: {reason}",
            hint="start the process that takes its rows in, and name its address there",
        )

    def stats(self, address: str, topic: str) -> Stats:
        from pyarrow import flight

        with Translating(address):
            if address not in self._clients:
                self._clients[address] = flight.FlightClient(address)
            options = flight.FlightCallOptions(timeout=_ANSWER_SECONDS)
            body = msgspec.json.encode({"topic": topic})
            answer = next(iter(self._clients[address].do_action(("stats", body), options)))
        return msgspec.json.decode(answer.body.to_pybytes(), type=Stats)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


class RemoteLog:
    """A `SourceLog` of which only offsets are known."""

    def __init__(
        self, logs: RemoteLogs, topic: Topic, partition: int, binding: Binding, address: str
    ) -> None:
        self._logs = logs
        self._topic = str(topic.name)
        self._name = f"{topic.name}/{partition}"
        self._address = address
        self._stats: Stats | None = None
        self.place = LogPlace(
            log_id=binding.log_id, stream_id=binding.stream_id, directory="", flight=address
        )
        self.begins_at = topic.first_offsets.get(partition, 0)
        self.asked_at = float("-inf")

    @property
    def durable(self) -> int:
        return self._asked().durable

    def _asked(self) -> Stats:
        now = self._logs.now()
        if self._stats is None or now - self.asked_at >= _ASK_SECONDS:
            self._stats = self._logs.stats(self._address, self._topic)
            self.asked_at = now
        return self._stats

    def require(self, committed: int) -> None:
        stats = self._asked()
        if not stats.first <= committed <= stats.durable:
            raise Conflict(
                f"{self._name} has {committed} as committed offset, but its log at "
                f"{self._address} holds {stats.first} to {stats.durable}",
                hint="one of the two was restored from another time; bring back its newer state",
            )

    def extent(self, start: int, end: int) -> Extent:

        return Extent(_ROW_BYTES * (end - start), None)

    def cut(self, start: int, offset: int) -> int:
        return offset
