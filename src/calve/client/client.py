"""`Client`: rows into the topics of a running service, in the background and once each."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from calve.client.buffer import Buffer
from calve.client.columns import columns_document
from calve.client.dead_letters import ClientDeadLetters
from calve.client.delivery import Delivery
from calve.client.link import Link
from calve.client.pieces import Piece, size_of, whole
from calve.client.pipeline import ClientPipeline
from calve.client.sender import SenderOptions, TopicSender
from calve.client.subscriptions import ClientSubscriptions
from calve.client.tokens import ClientTokens
from calve.errors import CalveError, InvalidRequest, Unavailable
from calve.model import TableName
from calve.protocol import LogRange
from calve.protocol.streams import StreamTicket
from calve.protocol.trust import identity_of
from calve.tables.inputs.parts import read_parts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    import pyarrow as pa

    from calve.client.subscription import ClientSubscription
    from calve.maintenance.verification import Verification
    from calve.query.parameters import Parameters
    from calve.query.rows import Rows
    from calve.subscriptions.start import Start
    from calve.tables.schemas import SchemaSource

_log: Final = logging.getLogger(__name__)
_FAILURES_KEPT: Final = 100
_CLOSE_SECONDS: Final = 30.0
_INTERRUPTED_SECONDS: Final = 2.0
_EXIT_SECONDS: Final = 10.0
_END_SECONDS: Final = 1.0
_ASK_AGAIN_SECONDS: Final = 0.25
_VERIFY_SECONDS: Final = 3_600.0


class Client:
    """Sends rows to a service. A context manager, which flushes at its end; safe between threads.

    Nothing is connected until it is used. In a forked process a new one is needed.
    """

    def __init__(  # noqa: PLR0913
        self,
        url: str = "grpc://127.0.0.1:8815",
        *,
        token: str | None = None,
        tls_root_certs: bytes | None = None,
        tls_client_cert: bytes | None = None,
        tls_client_key: bytes | None = None,
        producer: str | None = None,
        linger_ms: float = 5,
        batch_rows_max: int = 10_000,
        batch_bytes_max: int = 1 << 20,
        buffer_bytes_max: int = 64 << 20,
        buffer_timeout_seconds: float = 30.0,
        delivery_timeout_seconds: float = 120.0,
        connect_timeout_seconds: float = 5.0,
    ) -> None:
        identity = identity_of(tls_client_cert, tls_client_key)
        self._link = Link(url, token=token, tls_root_certs=tls_root_certs, identity=identity)
        self._producer = producer
        self._options = SenderOptions(
            producer=producer or "",
            linger_seconds=linger_ms / 1_000,
            batch_rows_max=batch_rows_max,
            batch_bytes_max=batch_bytes_max,
            delivery_timeout_seconds=delivery_timeout_seconds,
            connect_timeout_seconds=connect_timeout_seconds,
        )
        self._buffer = Buffer(buffer_bytes_max, buffer_timeout_seconds, self._hurry)
        self._lock = threading.Lock()
        self._senders: dict[str, TopicSender] = {}
        self._failed: deque[Delivery] = deque(maxlen=_FAILURES_KEPT)
        self._is_closed = False
        self._process = os.getpid()
        _close_at_exit(self)

    def produce(self, topic: str, rows: Any, *, sequence: int | None = None) -> Delivery:
        """Hand rows over: dicts, Arrow data, pandas or Polars. Returns at once, with a handle.

        Blocks while the buffer is full; Overloaded if that lasts `buffer_timeout_seconds`. With a
        `sequence`, which the client's `producer` counts up from 0 for each topic, the same call
        again appends nothing, also in another process.
        """
        sender = self._sender(self._spelt(topic))
        if sequence is not None and self._producer is None:
            raise InvalidRequest(
                "a sequence needs a producer that it belongs to",
                hint="name one: Client(url, producer=…)",
            )
        delivery = Delivery(sender.hurry)
        delivery.add_done_callback(self._remember)
        delivery.is_seen = False
        if sequence is not None:
            parts = iter([whole(rows)])
        else:
            parts = read_parts(
                rows,
                rows_max=self._options.batch_rows_max,
                bytes_max=self._options.batch_bytes_max,
            )
        count = 0
        try:
            for part in parts:
                count += part.num_rows
                size_bytes = size_of(part)
                self._buffer.take(size_bytes)
                delivery.expect_piece()
                sender.add(Piece(part, size_bytes, delivery, sequence, time.monotonic()))
        finally:
            if count:
                delivery.expect_no_more()
        if not count:
            raise InvalidRequest("there are no rows", hint="give at least one")
        return delivery

    def flush(
        self,
        topic: str | None = None,
        timeout_seconds: float = 60.0,
        *,
        to_table: bool = False,
    ) -> None:
        """Return when all rows so far are durable; raises the first error that nobody has seen.

        With `to_table`, when they are also in the tables of their topics. Unavailable after the
        time-out.
        """
        self._require_open()
        deadline = time.monotonic() + timeout_seconds
        self._wait(topic, deadline)
        self._raise_unseen()
        if to_table:
            for name in [self._spelt(topic)] if topic else list(self._senders):
                left = max(deadline - time.monotonic(), 0.0)
                body = {"topic": name, "timeout_seconds": left}
                self._link.act("flush", body, left + 5.0, may_be_left=True)

    def create_topic(
        self, topic: str, *, schema: SchemaSource | None = None, **spec: Any
    ) -> dict[str, Any]:
        """Make a topic: `schema`, `partition_by`, `sort_by` and what else an action takes.

        A schema is PyIceberg's, Arrow's, {name: type} or the path of a JSON file.
        """
        columns = {} if schema is None else {"schema": columns_document(schema)}
        return self._act("topic.create", topic, **columns, **spec)

    def alter_topic(self, topic: str, **change: Any) -> dict[str, Any]:
        return self._act("topic.alter", topic, **change)

    def delete_topic(self, topic: str) -> dict[str, Any]:
        return self._act("topic.delete", topic)

    def describe_topic(self, topic: str) -> dict[str, Any]:
        return self._ask("topic.describe", topic)

    def stats(self, topic: str) -> dict[str, Any]:
        """Counts and offsets of a topic."""
        return self._ask("stats", topic)

    @property
    def pipeline(self) -> ClientPipeline:
        """What brings rows to tables, to be watched and directed."""
        return ClientPipeline(self._act, self._ask)

    @property
    def tokens(self) -> ClientTokens:
        """Those of the caller's tenant; needs the scope `admin`."""
        self._require_open()
        return ClientTokens(self._link.act)

    def dead_letters(self, topic: str) -> ClientDeadLetters:
        """The rows that a topic could not take: to list, show, replay and discard."""
        self._require_open()
        return ClientDeadLetters(self._link.act, self._spelt(topic))

    def verify(
        self, topic: str, *, orphans: bool = False, timeout_seconds: float = _VERIFY_SECONDS
    ) -> Verification:
        """The same as `lake.tables.verify_topic`, held against the log of the service.

        Overloaded while the service verifies another topic.
        """
        from calve.maintenance.verification import Verification

        self._require_open()
        body = {"topic": self._spelt(topic), "orphans": orphans}
        found = self._link.act("topic.verify", body, timeout_seconds, may_be_left=True)
        return msgspec.convert(found, Verification)

    def subscribe(  # noqa: PLR0913
        self,
        topic: str,
        name: str | None = None,
        start: Start = "earliest",
        *,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        follow: bool = True,
        lease_seconds: float = 15,
    ) -> ClientSubscription:
        """The same as `lake.subscribe`, through the service; without a name, nothing is kept.

        Close it before the client.
        """
        from calve.client.subscription import ClientSubscription
        from calve.subscriptions.start import start_text

        ticket = StreamTicket(
            topic=self._spelt(topic),
            subscription=name,
            start=start_text(start),
            where=where,
            columns=None if columns is None else list(columns),
            follow=follow,
            lease_seconds=lease_seconds,
        )
        return ClientSubscription(self._link, self.subscriptions, ticket)

    @property
    def subscriptions(self) -> ClientSubscriptions:
        """The same as `lake.subscriptions`, through the service."""
        self._require_open()
        return ClientSubscriptions(self._link.act)

    def sql(
        self,
        text: str,
        parameters: Parameters | None = None,
        *,
        fresh: bool = True,
        tenant: str | None = None,
    ) -> Rows:
        """The same as `lake.sql`, through the service and within its limits.

        Rows come as they are read, once; `to_arrow()` and what looks at all of them keeps them.
        """
        from calve.client.query import ask

        self._require_open()
        return ask(self._link, text, parameters, fresh=fresh, tenant=tenant)

    def status(self) -> dict[str, Any]:
        """How the service is doing: its log, its topics, the pipeline."""
        self._require_open()
        told: dict[str, Any] = self._link.act("status", {})
        return told

    def describe_topics(self) -> list[dict[str, Any]]:
        """All topics; one that stopped has no `offsets`, and a `problem`."""
        self._require_open()
        found: list[dict[str, Any]] = self._link.act("topic.list", {})
        return found

    def topics(self) -> list[str]:
        """The names of all topics."""
        self._require_open()
        return [str(TableName.parse(name)) for name in self._link.topics()]

    def read(self, topic: str, start: int | None = None, end: int | None = None) -> pa.Table:
        """Rows that the log still holds, with the system columns that say where and when."""
        self._require_open()
        return self._link.read(LogRange(topic=topic, from_=start, to=end))

    def close(self, timeout_seconds: float = _CLOSE_SECONDS) -> None:
        """Flush, then let go of everything. What was not acknowledged by then fails."""
        if self._is_closed or self._process != os.getpid():
            self._is_closed = True
            return
        try:
            self._wait(None, time.monotonic() + timeout_seconds)
        finally:
            self._is_closed = True
            self._abandon_all()
        self._raise_unseen()

    def _abandon_all(self) -> None:
        for sender in self._senders.values():
            sender.abandon(_closed())
        for sender in self._senders.values():
            sender.join(_END_SECONDS)
        self._link.close()

    def _act(self, action: str, topic: str | None, **rest: Any) -> dict[str, Any]:
        self._require_open()
        answer: dict[str, Any] = self._link.act(action, {"topic": topic, **rest})
        return answer

    def _ask(self, action: str, topic: str | None) -> dict[str, Any]:
        """What may as well be asked twice is asked again, until a service that restarts is back."""
        deadline = time.monotonic() + self._options.patience_seconds(self._link)
        while True:
            try:
                return self._act(action, topic)
            except Unavailable:
                if time.monotonic() + _ASK_AGAIN_SECONDS > deadline:
                    raise
                time.sleep(_ASK_AGAIN_SECONDS)

    def _spelt(self, topic: str) -> str:
        """A topic's name as it is sent. Only the service knows what a short one means to a token;
        without one, all ways to spell a name are the same."""
        name = TableName.parse(topic)
        return topic if self._link.has_token else str(name)

    def _sender(self, name: str) -> TopicSender:
        with self._lock:
            self._require_open()
            sender = self._senders.get(name)
            if sender is None:
                sender = TopicSender(name, self._link, self._buffer, self._options)
                self._senders[name] = sender
            return sender

    def _hurry(self) -> None:
        for sender in list(self._senders.values()):
            sender.hurry()

    def _wait(self, topic: str | None, deadline: float) -> None:
        if topic is None:
            self._hurry()
            names = list(self._senders)
        else:
            names = [self._spelt(topic)]
        for name in names:
            sender = self._senders.get(name)
            if sender is not None and not sender.wait(max(deadline - time.monotonic(), 0.0)):
                raise Unavailable(
                    f"not all rows of {name} were acknowledged by {self._link.url} in time",
                    hint="see whether the service runs: the client goes on trying",
                )

    def _remember(self, delivery: Delivery) -> None:
        if delivery.error is not None:
            self._failed.append(delivery)

    def _raise_unseen(self) -> None:
        failed, self._failed = self._failed, deque(maxlen=_FAILURES_KEPT)
        for delivery in failed:
            if not delivery.is_seen:
                delivery.result()

    def _require_open(self) -> None:
        if self._process != os.getpid():
            raise InvalidRequest(
                f"this client was made by process {self._process}, which forked this one",
                hint="make a client in each process",
            )
        if self._is_closed:
            raise _closed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if error is None:
            self.close()
            return
        is_interrupt = not isinstance(error, Exception)
        try:
            self.close(_INTERRUPTED_SECONDS if is_interrupt else _CLOSE_SECONDS)
        except CalveError as other:
            _log.warning("rows were not delivered: %s", other.message)

    def __repr__(self) -> str:
        return f"Client({self._link.url!r})"


def _closed() -> InvalidRequest:
    return InvalidRequest("the client is closed", hint="make another one")


def _close_at_exit(client: Client) -> None:
    """Have rows sent that nobody waited for; but no program waits long for that."""
    reference = weakref.ref(client)

    def close() -> None:
        left = reference()
        if left is not None:
            try:
                left.close(_EXIT_SECONDS)
            except CalveError as error:
                _log.warning("rows were not delivered: %s", error.message)

    atexit.register(close)
    weakref.finalize(client, atexit.unregister, close).atexit = False
