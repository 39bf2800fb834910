"""Logs on other machines, known through the services that write them.

Every second each service is asked over Flight how far its log is, by a thread of its own: one that
is silent holds up nobody. What was heard becomes known when the driver begins to look, before it
reads the topics, so that no row is newer than its topic. A service tells nothing of bytes and
times: rows count from when they were first heard of.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

from calve.errors import CalveError, Conflict, Denied, NotFound, Unavailable
from calve.protocol import LogEnds
from calve.protocol.flight import decode
from calve.protocol.flight_errors import Translating
from calve.sources.asking import call_options, connect
from calve.sources.entries import Sources
from calve.sources.place import LogPlace, LogSpan, TlsWay
from calve.sources.source_log import Trimmed
from calve.topics.table_rows import RUN_BYTES, runs_of
from calve.wal.extent import Extent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from calve.settings import Secret
    from calve.topics.topic import Binding, Topic
    from calve.wal import Entry

_LOG: Final = logging.getLogger(__name__)
_ASK_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 10.0
_CLOSE_SECONDS: Final = 1.0
_ROW_BYTES: Final = 128  # a guess, where nobody tells


class RemoteLogs:
    def __init__(
        self,
        addresses: Sequence[str],
        *,
        tls: TlsWay | None,
        token: Secret | None = None,
    ) -> None:
        """`token` is shown to all."""
        self._services = [_Service(address, tls, token) for address in addresses]
        self._sources = Sources(token)

    @property
    def is_configured(self) -> bool:
        return bool(self._services)

    def refresh(self) -> int:
        """Make known what was heard; a number that is another one whenever that is something."""
        return sum(each.take_in() for each in self._services)

    def ask(self) -> None:
        """Hear now how far they are."""
        for each in self._services:
            each.hear()

    def log(self, topic: Topic, partition: int, binding: Binding) -> RemoteLog | None:
        """The partition, at the service that has it; Unavailable if none does.

        None while there is one that has not had its time to answer.
        """
        for service in self._services:
            if service.log_id == binding.log_id:
                return RemoteLog(service, self._sources, topic, partition, binding)
        if any(each.is_unheard for each in self._services):
            return None
        error = next((each.error for each in self._services if each.error), None)
        raise Unavailable(
            f"partition {partition} of topic {topic.name} is in no log here, and no service of "
            f"pipeline.logs tells of it: {error.message if error else 'none of them has it'}",
            hint=error.hint
            if isinstance(error, Denied)
            else "start the process that takes its rows in, and name its address there",
        )

    def close(self) -> None:
        for each in self._services:
            each.close()
        self._sources.close()


class _Service:
    """One address, and what was heard from there. `take_in` decides what others see of that."""

    def __init__(self, address: str, tls: TlsWay | None, token: Secret | None) -> None:
        self.address = address
        self._token = token
        self.tls = tls
        self.error: CalveError | None = None
        self._ends: LogEnds | None = None
        self._heard: LogEnds | CalveError | None = None
        self._count = 0
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._asking = threading.Lock()
        self._client: Any = None

    @property
    def is_unheard(self) -> bool:
        return self._ends is None and self.error is None

    @property
    def log_id(self) -> UUID | None:
        return self._ends.log_id if self._ends else None

    def offsets(self, stream_id: UUID) -> tuple[int, int] | None:
        """The first offset that the log holds, and the durable end; the error if it is silent."""
        if self.error is not None:
            raise self.error
        return self._ends.streams.get(stream_id) if self._ends else None

    def take_in(self) -> int:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="calve-remote-log", daemon=True)
            self._thread.start()
        heard = self._heard
        if heard is not (self.error or self._ends):
            self._count += 1
            self.error = heard if isinstance(heard, CalveError) else None
            self._ends = heard if isinstance(heard, LogEnds) else self._ends
        return self._count

    def close(self) -> None:
        self._is_closing.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)  # one that waits for an answer ends by itself

    def _run(self) -> None:
        while not self._is_closing.is_set():
            self.hear()
            self._is_closing.wait(_ASK_SECONDS)
        with self._asking:
            if self._client is not None:
                self._client.close()

    def hear(self) -> None:
        """Ask, and keep the answer for the next who takes it in."""
        with self._asking:
            try:
                ends = self._answer()
            except CalveError as error:
                if str(error) != str(self._heard):
                    said = error.message
                    _LOG.warning("%s does not tell how far its log is: %s", self.address, said)
                    self._heard = error
            else:
                if ends != self._heard:
                    self._heard = ends

    def _answer(self) -> LogEnds:
        with Translating(self.address):
            if self._client is None:
                self._client = connect(self.address, self.tls)
            options = call_options(self._token, _ANSWER_SECONDS)
            results = self._client.do_action(("log.ends", b"{}"), options)
            content = b"".join(each.body.to_pybytes() for each in results)
        return decode(content, LogEnds, what=f"what {self.address} answers")


class RemoteLog:
    """A `ReadableLog` of which only offsets are known."""

    def __init__(
        self,
        service: _Service,
        sources: Sources,
        topic: Topic,
        partition: int,
        binding: Binding,
    ) -> None:
        self._service = service
        self._sources = sources
        self._topic = topic.name
        self._partition = partition
        self._name = f"{topic.name}/{partition}"
        self.place = LogPlace(
            log_id=binding.log_id,
            stream_id=binding.stream_id,
            directory="",
            flight=service.address,
            tls=service.tls,
        )
        self.begins_at = topic.first_offsets.get(partition, 0)

    @property
    def durable(self) -> int:
        return self._offsets()[1]

    @property
    def first(self) -> int:
        return self._offsets()[0]

    def _offsets(self) -> tuple[int, int]:
        found = self._service.offsets(self.place.stream_id)
        if found is None:
            raise Conflict(
                f"{self._name} has its rows in stream {self.place.stream_id}, which is not in "
                f"log {self.place.log_id} at {self._service.address}: the log or the state is "
                "older than the other",
                hint="bring back the newer one of the two",
                context={"expected": str(self.place.stream_id)},
            )
        return found

    def require(self, committed: int) -> None:
        first, durable = self._offsets()
        if not first <= committed <= durable:
            raise Conflict(
                f"{self._name} has {committed} as committed offset, but its log at "
                f"{self._service.address} holds {first} to {durable}",
                hint="one of the two was restored from another time; bring back its newer state",
            )

    def extent(self, start: int, end: int) -> Extent:
        return Extent(_ROW_BYTES * (end - start), None)

    def cut(self, start: int, offset: int) -> int:
        return offset

    def run(self, start: int, end: int, bytes_max: int = RUN_BYTES) -> list[Entry]:
        if start < self.first:
            raise Trimmed
        span = LogSpan(self._topic, self._partition, self.place, start, min(end, self.durable))
        try:
            return next(runs_of(self._sources.entries(span), bytes_max), [])
        except NotFound as error:
            raise Trimmed from error

    def offset_at(self, moment: datetime) -> int:
        """By halves, a frame at a time: nobody else tells of times."""
        time_us = int(moment.timestamp() * 1_000_000)
        first, durable = self._offsets()
        return bisect_left(range(durable), time_us, lo=first, key=self._time_us)

    def _time_us(self, offset: int) -> int:
        return self.run(offset, offset + 1)[0].ingested_at_us
