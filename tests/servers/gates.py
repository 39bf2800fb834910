"""What stands in front of a REST catalog: OAuth2, headers, signatures, prefix, vended keys."""

from __future__ import annotations

import base64
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import parse_qs

from tests.servers.front import Answer, Gate, Headers, Request

TOKEN_PATH: Final = "/v1/oauth/tokens"
_CONFIG_PATH: Final = "/v1/config"
_JSON: Final = Headers([("Content-Type", "application/json")])


def refusal(status: int, kind: str, message: str) -> Answer:
    """An error as the REST specification writes it."""
    error = {"message": message, "type": kind, "code": status}
    return Answer(status, _JSON, json.dumps({"error": error}).encode())


class Bearer(Gate):
    """Knows OAuth2 clients and their tokens, and lets nobody else in.

    `POST /v1/oauth/tokens` gives a token of `lifetime_seconds` for the client's credentials, or
    in exchange for a token that is still good. `known` are tokens that never end.
    """

    def __init__(
        self,
        *,
        client_id: str = "calve",
        client_secret: str = "calve-secret",
        lifetime_seconds: float = 3600,
        known: frozenset[str] = frozenset(),
        expired_status: int = 401,
    ) -> None:
        self.client_id = client_id
        self.client_secret = client_secret
        self.lifetime_seconds = lifetime_seconds
        self.expired_status = expired_status
        self.refused = 0
        self._lock = threading.Lock()
        self._ends = {token: float("inf") for token in known}
        self._issued_at: list[float] = []

    @property
    def credential(self) -> str:
        """As PyIceberg and Iceberg's Java client take it."""
        return f"{self.client_id}:{self.client_secret}"

    @property
    def issued(self) -> int:
        """How many tokens were given: the first of each client, and its refreshes."""
        with self._lock:
            return len(self._issued_at)

    def revoke_all(self) -> None:
        with self._lock:
            self._ends.clear()

    def enter(self, request: Request) -> Request | Answer:
        if request.path == TOKEN_PATH:
            return self._grant(request)
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        with self._lock:
            end = self._ends.get(token) if kind.lower() == "bearer" else None
            if end is not None and time.monotonic() < end:
                return request
            self.refused += 1
        if end is None:
            return refusal(401, "NotAuthorizedException", "a bearer token that is known is needed")
        return refusal(self.expired_status, "NotAuthorizedException", "the token has expired")

    def _grant(self, request: Request) -> Answer:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        if not (self._is_client(request, form) or self._is_token(form.get("subject_token", ""))):
            error = {"error": "invalid_client", "error_description": "unknown client or secret"}
            return Answer(401, _JSON, json.dumps(error).encode())
        return Answer(200, _JSON, json.dumps(self._new_token()).encode())

    def _is_client(self, request: Request, form: Mapping[str, str]) -> bool:
        kind, _, encoded = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "basic":
            return base64.b64decode(encoded).decode() == self.credential
        given = f"{form.get('client_id')}:{form.get('client_secret')}"
        return form.get("grant_type") == "client_credentials" and given == self.credential

    def _is_token(self, token: str) -> bool:
        with self._lock:
            return time.monotonic() < self._ends.get(token, 0)

    def _new_token(self) -> dict[str, object]:
        token, now = secrets.token_urlsafe(), time.monotonic()
        with self._lock:
            self._ends[token] = now + self.lifetime_seconds
            self._issued_at.append(now)
        return {
            "access_token": token,
            "token_type": "bearer",
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "expires_in": int(self.lifetime_seconds),
        }


class RequiredHeaders(Gate):
    """Refuses requests without the headers, or with other values."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.required = dict(headers)
        self.refused = 0

    def enter(self, request: Request) -> Request | Answer:
        wrong = [
            name for name, value in self.required.items() if request.headers.get(name) != value
        ]
        if not wrong:
            return request
        self.refused += 1
        return refusal(403, "ForbiddenException", f"header {', '.join(wrong)} missing or wrong")


class Signed(Gate):
    """Refuses requests without a SigV4 signature of the key, region and service.

    Looks at the form of the signature only; it does not compute one.
    """

    _FORM: Final = re.compile(
        r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/\d{8}/(?P<region>[^/]+)/(?P<service>[^/]+)"
        r"/aws4_request, ?SignedHeaders=(?P<headers>[^,]+), ?Signature=[0-9a-f]{64}"
    )

    def __init__(self, *, access_key: str, region: str, service: str) -> None:
        self._expected = {"key": access_key, "region": region, "service": service}
        self.refused = 0

    def enter(self, request: Request) -> Request | Answer:
        found = self._FORM.fullmatch(request.headers.get("authorization", ""))
        parts = found.groupdict() if found else {}
        signed = parts.pop("headers", "").split(";")
        if parts == self._expected and "host" in signed and "x-amz-date" in request.headers:
            return request
        self.refused += 1
        return refusal(403, "ForbiddenException", f"not signed as {self._expected}: {parts}")


@dataclass(frozen=True, slots=True)
class Signer:
    """Who signed a request, and in which client."""

    key_id: str
    has_token: bool
    in_spark: bool


class Signers(Gate):
    """Lets everything through, and remembers by whom it was signed."""

    _KEY_ID: Final = re.compile(r"AWS4-HMAC-SHA256 Credential=([^/]+)/")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: set[Signer] = set()

    def seen(self, *, in_spark: bool) -> set[tuple[str, bool]]:
        """Key ids, and whether a session token was with them."""
        with self._lock:
            return {(s.key_id, s.has_token) for s in self._seen if s.in_spark == in_spark}

    def enter(self, request: Request) -> Request | Answer:
        found = self._KEY_ID.match(request.headers.get("authorization", ""))
        signer = Signer(
            found.group(1) if found else "nobody",
            has_token=bool(request.headers.get("x-amz-security-token")),
            in_spark="aws-sdk-java" in request.headers.get("user-agent", ""),
        )
        with self._lock:
            self._seen.add(signer)
        return request


class Prefix(Gate):
    """Serves the catalog under `/v1/{prefix}/…` and says so in its configuration."""

    def __init__(self, prefix: str, *, warehouse: str | None = None) -> None:
        self.prefix = prefix
        self.warehouse = warehouse

    def enter(self, request: Request) -> Request | Answer:
        start = f"/v1/{self.prefix}/"
        if request.path == _CONFIG_PATH:
            return self._config(request)
        if not request.target.startswith(start):
            return refusal(404, "NotFoundException", f"{request.path} is not under {start}")
        return replace(request, target="/v1/" + request.target.removeprefix(start))

    def leave(self, request: Request, answer: Answer) -> Answer:
        if request.path != _CONFIG_PATH or answer.status != 200:
            return answer
        config = json.loads(answer.body)
        config["overrides"] = {**(config.get("overrides") or {}), "prefix": self.prefix}
        # With a list of endpoints, clients would look for prefixed ones and find none.
        config.pop("endpoints", None)
        return replace(answer, body=json.dumps(config).encode())

    def _config(self, request: Request) -> Request | Answer:
        asked = parse_qs(request.target.partition("?")[2]).get("warehouse", [None])[0]
        if self.warehouse is not None and asked != self.warehouse:
            return refusal(404, "NoSuchWarehouseException", f"there is no warehouse {asked}")
        return _readable(replace(request, target=_CONFIG_PATH))


class Vended(Gate):
    """Puts storage credentials into each answer that carries a table."""

    def __init__(self, credentials: Callable[[], Mapping[str, str]]) -> None:
        self._credentials = credentials
        self.vended = 0
        self.delegations: list[str] = []

    def enter(self, request: Request) -> Request | Answer:
        return _readable(request)

    def leave(self, request: Request, answer: Answer) -> Answer:
        if answer.status != 200 or "/tables" not in request.path or not answer.body:
            return answer
        table = json.loads(answer.body)
        if "metadata" not in table:
            return answer
        self.delegations.append(request.headers.get("x-iceberg-access-delegation", ""))
        self.vended += 1
        table["config"] = {**(table.get("config") or {}), **self._credentials()}
        return replace(answer, body=json.dumps(table).encode())


def _readable(request: Request) -> Request:
    return replace(request, headers=request.headers.with_("Accept-Encoding", "identity"))
