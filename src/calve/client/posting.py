"""Rows as bodies over HTTP: read by the service, with its topic's types, and retried safely."""

from __future__ import annotations

import http.client
import random
import ssl
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, urlsplit
from uuid import uuid4

import msgspec

from calve.errors import CalveError, Denied, InvalidRequest, Unavailable
from calve.protocol.problem import decoded, error_of
from calve.protocol.trust import context_with

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from calve.protocol.trust import Identity

_T = TypeVar("_T")
PATIENCE_SECONDS: Final = 120.0
_REQUEST_SECONDS: Final = 60.0
_DELAY_SECONDS_MIN: Final = 0.1
_DELAY_SECONDS_MAX: Final = 5.0
# Whatever breaks on the way: the same request is sent again, under the same sequence.
_BROKEN: Final = (OSError, http.client.HTTPException)


class Posted(msgspec.Struct, frozen=True):
    """What became of a body: its rows are at offsets from `first` up to `end`, and durable."""

    first: int | None
    end: int | None
    rows: int
    rejected: int = 0
    reasons: list[str] = []


class _Topic(msgspec.Struct, frozen=True):
    columns: list[dict[str, Any]]


class _Described(msgspec.Struct, frozen=True):
    topic: _Topic


class Poster:
    """Sends bodies to one topic, one after the other. Not safe to share between threads."""

    def __init__(
        self,
        url: str,
        topic: str,
        *,
        sets_aside: bool,
        token: str | None = None,
        tls_root_certs: bytes | None = None,
        identity: Identity | None = None,
    ) -> None:
        """With `sets_aside`, bad rows go to the dead letters instead of failing their body."""
        address = urlsplit(url)
        if address.scheme not in {"http", "https"} or not address.hostname:
            raise InvalidRequest(
                f"{url!r} is no address of a service over HTTP",
                hint="write one such as http://127.0.0.1:8080",
            )
        self._url = url
        self._connection = (
            http.client.HTTPConnection(address.hostname, address.port, timeout=_REQUEST_SECONDS)
            if address.scheme == "http"
            else http.client.HTTPSConnection(
                address.hostname,
                address.port,
                timeout=_REQUEST_SECONDS,
                context=context_with(tls_root_certs, identity),
            )
        )
        self._topic = f"/v1/topics/{quote(topic, safe='')}"
        self._rows = "/rows?on_error=dead_letter" if sets_aside else "/rows"
        self._identity = {"Authorization": f"Bearer {token}"} if token else {}
        self._producer = uuid4().hex
        self._sequence = 0

    def post(self, content: bytes, media_type: str, *, before: int = 0) -> Posted:
        """Send rows, and return when they are durable; CalveError if they cannot be.

        Rows that are named are numbered from 1, after those that came `before`.
        """
        posted = _patiently(lambda: self._sent(content, media_type, before))
        self._sequence += 1
        return posted

    def columns(self) -> list[dict[str, Any]]:
        """The topic's columns, now."""
        answer = _patiently(lambda: self._answer("GET", self._topic))
        return msgspec.json.decode(answer, type=_Described).topic.columns

    def _sent(self, content: bytes, media_type: str, before: int) -> Posted:
        headers = {
            "Content-Type": media_type,
            "Calve-Producer": self._producer,
            "Calve-Sequence": str(self._sequence),
            "Calve-Rows-Before": str(before),
        }
        answer = self._answer("POST", self._topic + self._rows, content, headers)
        return msgspec.json.decode(answer, type=Posted)

    def _answer(
        self,
        method: str,
        target: str,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        try:
            self._connection.request(method, target, content, {**self._identity, **(headers or {})})
            response = self._connection.getresponse()
            answer: bytes = response.read()
        except ssl.SSLCertVerificationError as error:
            self._connection.close()
            raise Denied(
                f"the certificate of {self._url} is not trusted: {error.verify_message}",
                hint="ingest.tls_ca, or this machine, must have it or the authority's",
            ) from error
        except _BROKEN as error:
            self._connection.close()
            raise Unavailable(
                f"no service answers at {self._url}: {error}",
                hint="`calve up` runs one. One that speaks TLS answers at https:// alone, and may "
                "want a client's certificate",
            ) from error
        if response.status != http.HTTPStatus.OK:
            raise _refused(response.status, answer)
        return answer

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _patiently(ask: Callable[[], _T]) -> _T:
    """Ask until there is an answer, for as long as a service may take to come back."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    delay = _DELAY_SECONDS_MIN
    while True:
        try:
            return ask()
        except Unavailable as error:
            wait = max(delay, int(error.context.get("retry_after_ms", "0")) / 1_000)
            if time.monotonic() + wait > deadline:
                raise
            time.sleep(wait * random.uniform(1.0, 1.5))  # noqa: S311
            delay = min(2 * delay, _DELAY_SECONDS_MAX)


def _refused(status: int, answer: bytes) -> CalveError:
    problem = decoded(answer)
    if problem is None:
        return Unavailable(f"what answers with {status} is no service of Calve")
    return error_of(problem)
