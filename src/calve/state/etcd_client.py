"""Talks to etcd through its JSON gateway, which every etcd serves beside gRPC.

Endpoints are tried in turn, each wait is bounded, and an error says whether the request can have
been carried out.
"""

from __future__ import annotations

import base64
import threading
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, SSLError

from calve.errors import CalveError, Denied, InvalidRequest, InvalidSettings, Unavailable
from calve.settings import SecretUrl

_PORT: Final = 2379
_CONNECT_SECONDS_MAX: Final = 5.0
_ANSWER_SECONDS_MAX: Final = 15.0
_CONNECTIONS_MAX: Final = 8
_OPTIONS: Final = ("tls", "ca_file", "cert_file", "key_file")
# Codes of gRPC.
_INVALID, _DENIED, _EXHAUSTED, _UNAUTHENTICATED = 3, 7, 8, 16
_DSN: Final = "write etcd://user:password@host:2379,host2:2379/prefix; ?tls=true for TLS"


class Lost(Exception):
    """Nobody knows whether etcd has carried out a request."""


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    endpoints: tuple[str, ...]
    prefix: str
    user: str | None
    password: str
    tls: dict[str, str]
    shown: str

    @classmethod
    def parse(cls, dsn: str) -> EtcdAddress:
        parts = urlsplit(dsn)
        options = dict(parse_qsl(parts.query))
        login, _, hosts = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        if unknown := set(options) - set(_OPTIONS):
            raise InvalidSettings(
                f"state.dsn: etcd has no option {', '.join(sorted(unknown))}",
                hint=f"the options are {', '.join(_OPTIONS)}",
            )
        names = hosts.split(",")
        if not all(names):
            raise InvalidSettings(f"state.dsn: {SecretUrl(dsn)} names no host", hint=_DSN)
        files = {name: value for name, value in options.items() if name != "tls"}
        is_secure = options.get("tls", "true" if files else "false") == "true"
        return cls(
            endpoints=tuple(_endpoint(name, is_secure=is_secure) for name in names),
            prefix=parts.path.rstrip("/"),
            user=unquote(user) or None,
            password=unquote(password),
            tls={_TLS_NAMES[name]: value for name, value in files.items()},
            shown=str(SecretUrl(dsn)),
        )


_TLS_NAMES: Final = {"ca_file": "ca_certs", "cert_file": "cert_file", "key_file": "key_file"}


class EtcdClient:
    """Safe to share between threads."""

    def __init__(self, address: EtcdAddress) -> None:
        self._address = address
        self._pool = urllib3.PoolManager(
            maxsize=_CONNECTIONS_MAX,
            retries=False,
            timeout=urllib3.Timeout(connect=_CONNECT_SECONDS_MAX, read=_ANSWER_SECONDS_MAX),
            **address.tls,  # type: ignore[arg-type]
        )
        self._first = 0  # the endpoint that answered last
        self._token: str | None = None
        self._lock = threading.Lock()

    def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What etcd answers. Lost if it may have done it; Unavailable if it cannot have."""
        if self._address.user is not None and self._token is None:
            self._log_in()
        status, answer = self._post(path, body)
        if status in {400, 401} and _is_stale_login(answer) and self._address.user is not None:
            self._log_in()
            status, answer = self._post(path, body)
        if status != 200:
            raise self._refusal(answer, status)
        return answer

    def close(self) -> None:
        self._pool.clear()

    def _log_in(self) -> None:
        login = {"name": self._address.user, "password": self._address.password}
        self._token = None
        status, answer = self._post("auth/authenticate", login)
        if status != 200:
            raise Denied(
                f"etcd at {self._address.shown} refused the login: {_said(answer)}",
                hint="check user and password in state.dsn, or state.dsn_file",
            )
        self._token = str(answer["token"])

    def _post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        content = msgspec.json.encode(body)
        problem: HTTPError | None = None
        count = len(self._address.endpoints)
        with self._lock:
            first = self._first
        for number in (each % count for each in range(first, first + count)):
            try:
                answer = self._send(self._address.endpoints[number], path, content)
            except (NewConnectionError, ConnectTimeoutError) as error:
                problem = error
                continue
            except SSLError as error:
                raise Denied(
                    f"etcd at {self._address.shown} and this client do not trust each other's "
                    f"certificate: {error}",
                    hint="check ca_file, cert_file and key_file in state.dsn",
                ) from error
            except HTTPError as error:
                raise Lost(str(error)) from error
            with self._lock:
                self._first = number
            return answer.status, _decoded(answer.data)
        assert problem is not None
        raise Unavailable(
            f"etcd at {self._address.shown} cannot be reached: {str(problem).rpartition(': ')[2]}",
            hint="see that it runs and takes connections",
        ) from problem

    def _send(self, endpoint: str, path: str, content: bytes) -> urllib3.BaseHTTPResponse:
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = self._token
        return self._pool.request("POST", f"{endpoint}/v3/{path}", body=content, headers=headers)

    def _refusal(self, answer: dict[str, Any], status: int) -> CalveError | Lost:
        words = f"etcd at {self._address.shown}: {_said(answer)}"
        code = answer.get("code")
        if code in {_DENIED, _UNAUTHENTICATED} or status in {401, 403} or "user name" in words:
            return Denied(words, hint="check user, password and role of state.dsn")
        if code == _EXHAUSTED:
            return Unavailable(words, hint="see what keeps it busy, and `etcdctl alarm list`")
        if code == _INVALID:
            return InvalidRequest(
                words, hint="etcd's --max-txn-ops and --max-request-bytes bound it"
            )
        return Lost(words)


def encoded(key: str) -> str:
    return base64.b64encode(key.encode()).decode()


def decoded(value: str) -> bytes:
    return base64.b64decode(value, validate=True)


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise Lost(f"an answer that is not etcd's: {data[:100]!r}") from error


def _said(answer: dict[str, Any]) -> str:
    return str(answer.get("message") or answer.get("error") or answer)


def _is_stale_login(answer: dict[str, Any]) -> bool:
    return "auth token" in _said(answer) or "auth: revision" in _said(answer)


def _endpoint(name: str, *, is_secure: bool) -> str:
    host, colon, port = name.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = name, str(_PORT)
    if not host or not port.isdecimal():
        raise InvalidSettings(f"state.dsn: {name!r} is not a host of etcd's", hint=_DSN)
    return f"{'https' if is_secure else 'http'}://{host}:{port}"
