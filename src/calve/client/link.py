"""The way to one service: connected when it is first used, and its errors made Calve's."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa

from calve.client.interrupts import interruptibly
from calve.errors import InvalidRequest, NotFound
from calve.protocol.flight_errors import Translating
from calve.protocol.trust import flight_arguments
from calve.settings.bearer import require_token

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from calve.protocol.trust import Identity


_SCHEMES: Final = ("grpc", "grpc+tcp", "grpc+tls")
# A service that vanished without a word is noticed within half a minute.
_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # The time that connecting may take, over a slow line too; not one that is waited.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
_SYSTEM_PREFIX: Final = "_calve_"


class Link:
    """Safe to share between threads."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        tls_root_certs: bytes | None = None,
        identity: Identity | None = None,
    ) -> None:
        self.url = _checked(url)
        self._tls = flight_arguments(tls_root_certs, identity)
        self.has_token = token is not None
        self._headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        if token:
            require_token(token, "the client's `token`")
        self._lock = threading.Lock()
        self._client: Any = None
        self.was_reached = False  # whether anything ever answered

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                from pyarrow import flight

                self._client = flight.FlightClient(
                    self.url, generic_options=list(_OPTIONS), **self._tls
                )
            return self._client

    def _options(self, timeout_seconds: float | None = None) -> Any:
        from pyarrow import flight

        return flight.FlightCallOptions(timeout=timeout_seconds, headers=self._headers)

    def put(self, topic: str, schema: pa.Schema) -> tuple[Any, Any]:
        """A stream of batches to a topic: its writer, and the reader of acknowledgements."""
        with self.translating():
            writer, reader = self._connected().do_put(
                _descriptor(topic), schema, options=self._options()
            )
            return writer, reader

    def schema(self, topic: str, timeout_seconds: float = 10.0) -> pa.Schema | None:
        """The topic's columns; None if there is no such topic yet."""
        try:
            with self.translating():
                # Not get_schema, which drops what comes with an error's status.
                found = self._connected().get_flight_info(
                    _descriptor(topic), options=self._options(timeout_seconds)
                )
        except NotFound:
            self.was_reached = True
            return None
        self.was_reached = True
        return pa.schema([f for f in found.schema if not f.name.startswith(_SYSTEM_PREFIX)])

    def read(self, ticket: object) -> Any:
        from pyarrow import flight

        with self.translating():
            ticket = flight.Ticket(msgspec.json.encode(ticket))
            return self._connected().do_get(ticket, options=self._options()).read_all()

    def stream(self, ticket: object) -> Any:
        """A reader of batches that come one by one; refused here, if it is."""
        from pyarrow import flight

        with self.translating():
            ticket = flight.Ticket(msgspec.json.encode(ticket))
            client, options = self._connected(), self._options()
            # It returns when the first answer is there, or is left alone until then.
            return interruptibly(
                lambda: client.do_get(ticket, options=options),
                lambda late: late.add_done_callback(_cancel),
            )

    def act(
        self,
        name: str,
        body: object,
        timeout_seconds: float | None = 30.0,
        *,
        may_be_left: bool = False,
    ) -> Any:
        """What the service answers; an interrupt is heard after that, unless it `may_be_left`."""
        from pyarrow import flight

        with self.translating():
            action = flight.Action(name, msgspec.json.encode(body))
            client, options = self._connected(), self._options(timeout_seconds)

            def performed() -> list[bytes]:
                results = client.do_action(action, options=options)
                return [result.body.to_pybytes() for result in results]

            # It cannot be cancelled: the service goes on with what is left, until its time is over.
            content = interruptibly(performed, lambda _: None) if may_be_left else performed()
        self.was_reached = True
        return msgspec.json.decode(content[0])

    def topics(self) -> Iterator[str]:
        with self.translating():
            for info in self._connected().list_flights(options=self._options(30.0)):
                yield ".".join(part.decode() for part in info.descriptor.path)

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def translating(self) -> Translating:
        return Translating(self.url)


def _cancel(opened: Future[Any]) -> None:
    if opened.exception() is None:
        opened.result().cancel()


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme in {"http", "https"}:
        raise InvalidRequest(
            f"{url} is the HTTP address; the client speaks Arrow Flight",
            hint="give the address that begins with grpc://, which `calve up` prints",
        )
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise InvalidRequest(
            f"{url!r} is not the address of a service", hint="write grpc://host:port"
        )
    return url


def _descriptor(topic: str) -> Any:
    from pyarrow import flight

    return flight.FlightDescriptor.for_path(*topic.split("."))
