"""Temporary S3 credentials: a proxy that wants a session token that has not expired, and the
services that give such tokens, as containers (an HTTP address) and as STS (roles) do.

The keys are those of S3Proxy, which checks the signature; only the token is temporary.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import parse_qs

from tests.servers import front
from tests.servers.front import Answer, Front, Gate, Headers, Request
from tests.servers.gates import Signers
from tests.servers.s3 import S3, Keys

CREDENTIALS_PATH: Final = "/credentials"
ROLE_ARN: Final = "arn:aws:iam::123456789012:role/calve"
_XML: Final = Headers([("Content-Type", "application/xml")])
_STS: Final = "https://sts.amazonaws.com/doc/2011-06-15/"


@dataclass(frozen=True, slots=True)
class Session:
    keys: Keys
    token: str
    ends_at: datetime

    @property
    def file_io_properties(self) -> dict[str, str]:
        """What a catalog vends, as PyIceberg and Iceberg's S3FileIO name it."""
        return {
            "s3.access-key-id": self.keys.access_key,
            "s3.secret-access-key": self.keys.secret_key,
            "s3.session-token": self.token,
            "s3.session-token-expires-at-ms": str(int(self.ends_at.timestamp() * 1000)),
        }

    @property
    def expiration(self) -> str:
        return self.ends_at.strftime("%Y-%m-%dT%H:%M:%SZ")


class Sessions(Gate):
    """Gives sessions, and lets requests with a running one through to the store."""

    def __init__(self, keys: Keys, *, lifetime_seconds: float = 3600) -> None:
        self.lifetime_seconds = lifetime_seconds
        self.expired = 0
        self.refused = 0
        self._keys = keys
        self._lock = threading.Lock()
        self._ends: dict[str, float] = {}

    @property
    def issued(self) -> int:
        with self._lock:
            return len(self._ends)

    def new(self) -> Session:
        token = secrets.token_urlsafe()
        with self._lock:
            self._ends[token] = time.monotonic() + self.lifetime_seconds
        # Rounded down, so that a client never believes in a token longer than the store does.
        ends_at = datetime.now(UTC) + timedelta(seconds=self.lifetime_seconds)
        return Session(self._keys, token, ends_at.replace(microsecond=0))

    def end_all(self) -> None:
        """Let every session given so far expire now."""
        with self._lock:
            self._ends = dict.fromkeys(self._ends, 0.0)

    def enter(self, request: Request) -> Request | Answer:
        query = parse_qs(request.target.partition("?")[2])
        in_query = query.get("X-Amz-Security-Token", [""])[0]
        with self._lock:
            end = self._ends.get(request.headers.get("x-amz-security-token", in_query))
        if end is not None and time.monotonic() < end:
            return request
        if end is None:
            self.refused += 1
            return _refusal(403, "InvalidAccessKeyId", "a session token that is known is needed")
        self.expired += 1
        return _refusal(400, "ExpiredToken", "The provided token has expired.")


class CredentialService(Gate):
    """Answers as the credentials address of a container, and as STS."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self.actions: list[str] = []

    def enter(self, request: Request) -> Request | Answer:
        if request.path == CREDENTIALS_PATH:
            self.actions.append("container")
            return self._for_container()
        text = request.body.decode() or request.target.partition("?")[2]
        form = {name: values[0] for name, values in parse_qs(text).items()}
        action = form.get("Action", "")
        self.actions.append(action)
        if action not in {"AssumeRole", "AssumeRoleWithWebIdentity"}:
            return _refusal(400, "InvalidAction", f"{action!r} is not served here")
        return self._for_role(action, form)

    def _for_container(self) -> Answer:
        session = self._sessions.new()
        content = {
            "AccessKeyId": session.keys.access_key,
            "SecretAccessKey": session.keys.secret_key,
            "Token": session.token,
            "Expiration": session.expiration,
        }
        return Answer(200, Headers([("Content-Type", "application/json")]), _json(content))

    def _for_role(self, action: str, form: dict[str, str]) -> Answer:
        session = self._sessions.new()
        role, name = form.get("RoleArn", ROLE_ARN), form.get("RoleSessionName", "calve")
        text = (
            f'<{action}Response xmlns="{_STS}"><{action}Result>'
            f"<AssumedRoleUser><AssumedRoleId>AROACALVE:{name}</AssumedRoleId>"
            f"<Arn>{role}/{name}</Arn></AssumedRoleUser><Credentials>"
            f"<AccessKeyId>{session.keys.access_key}</AccessKeyId>"
            f"<SecretAccessKey>{session.keys.secret_key}</SecretAccessKey>"
            f"<SessionToken>{session.token}</SessionToken>"
            f"<Expiration>{session.expiration}</Expiration></Credentials>"
            f"</{action}Result><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata>"
            f"</{action}Response>"
        )
        return Answer(200, _XML, text.encode())


@dataclass(frozen=True, slots=True)
class TemporaryS3:
    """The store behind the proxy, and where its credentials come from."""

    store: S3
    front: Front
    sessions: Sessions
    service: CredentialService
    service_url: str
    signers: Signers
    service_signers: Signers

    @property
    def credentials_uri(self) -> str:
        """For AWS_CONTAINER_CREDENTIALS_FULL_URI."""
        return self.service_url + CREDENTIALS_PATH


@contextmanager
def serve(store: S3, *, lifetime_seconds: float = 3600) -> Iterator[TemporaryS3]:
    sessions = Sessions(store.other_keys, lifetime_seconds=lifetime_seconds)
    service = CredentialService(sessions)
    signers, service_signers = Signers(), Signers()
    with (
        front.serve(store.port, gates=[signers, sessions]) as gate,
        front.serve(gates=[service_signers, service]) as credentials,
    ):
        yield TemporaryS3(
            S3(gate.url), gate, sessions, service, credentials.url, signers, service_signers
        )


def _refusal(status: int, code: str, message: str) -> Answer:
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Answer(status, _XML, body.encode())


def _json(content: dict[str, str]) -> bytes:
    return json.dumps(content).encode()
