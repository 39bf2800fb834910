"""PyIceberg's REST catalog with time-outs, retries, and tokens that are renewed before they expire.

PyIceberg waits for ever for a server that is silent, and renews a token only after a request was
refused for it. Properties keep the names that Iceberg gives them, for Python and Spark alike.
"""

from __future__ import annotations

import random
import threading
import time
from types import TracebackType
from typing import Any, Final, Self

from pyiceberg.catalog import BOTOCORE_SESSION
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.auth import AuthManager, LegacyOAuth2AuthManager
from pyiceberg.catalog.rest.response import TokenResponse
from pyiceberg.exceptions import CommitStateUnknownException, ServiceUnavailableError
from pyiceberg.io import FileIO
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from requests.exceptions import ConnectTimeout, RequestException
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import MaxRetryError, NewConnectionError, SSLError
from urllib3.util import Retry

from calve.errors import CalveError, Denied
from calve.settings import RetrySettings

# The names that Iceberg's Java client gives to its time-outs.
CONNECT_TIMEOUT: Final = "rest.client.connection-timeout-ms"
ANSWER_TIMEOUT: Final = "rest.client.socket-timeout-ms"
CONNECT_TIMEOUT_MS: Final = 5_000
ANSWER_TIMEOUT_MS: Final = 30_000

_NESTED: Final = ("ssl.", "auth.")
_READS: Final = frozenset({"GET", "HEAD"})
# By this a server says that it has done nothing; any request may be sent again. A 503 says no such
# thing: a proxy also sends it for a server that did the work and then lost the connection.
_NOT_DONE: Final = frozenset({429})
_PASSING: Final = frozenset({500, 502, 503, 504}) | _NOT_DONE
_RENEW_SECONDS_BEFORE: Final = 60.0
_LIFE_USED_MAX: Final = 0.6
_RENEW_AGAIN_SECONDS: Final = 0.5


class CalveRestCatalog(RestCatalog):
    def __init__(
        self,
        name: str,
        *,
        retry: RetrySettings,
        signing_session: object | None = None,
        **properties: str,
    ) -> None:
        self._retry = retry
        self._signing_session = signing_session
        self._tokens: RenewingTokens | None = None
        super().__init__(name, **nested(properties))

    def _init_sigv4(self, session: Session) -> None:
        # Lent for this call only: properties go on to files, which must stay picklable.
        self.properties[BOTOCORE_SESSION] = self._signing_session
        try:
            super()._init_sigv4(session)
        finally:
            del self.properties[BOTOCORE_SESSION]

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        try:
            response: CommitTableResponse = super().commit_table(table, requirements, updates)
        except ValueError:
            # What it said cannot be read, and may hold secrets.
            raise CommitStateUnknownException(
                "the catalog's answer to a commit cannot be read"
            ) from None
        except (RequestException, ServiceUnavailableError) as error:
            if isinstance(error, RequestException) and _was_never_sent(error):
                raise
            raise CommitStateUnknownException(
                f"the catalog gave no clear answer to a commit: {error}"
            ) from error
        return response

    @staticmethod
    def _delete_old_metadata(io: FileIO, base: TableMetadata, metadata: TableMetadata) -> None:
        """The server writes the metadata files, and deletes those that a table wants deleted."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        self._bound(session)
        return session

    def _create_legacy_oauth2_auth_manager(self, session: Session) -> AuthManager:
        # The token itself is fetched through this session.
        self._bound(session)
        credential = self.properties.get("credential")
        if credential is None:
            return super()._create_legacy_oauth2_auth_manager(session)
        if self._tokens is None:
            self._tokens = RenewingTokens(
                session=session,
                auth_url=self.auth_url,
                credential=credential,
                optional_oauth_params=self._extract_optional_oauth_params(),
            )
        return self._tokens

    def _bound(self, session: Session) -> None:
        """Put time-outs and retries on every adapter, also the one that signs requests."""
        timeouts = (
            float(self.properties.get(CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS)) / 1000,
            float(self.properties.get(ANSWER_TIMEOUT, ANSWER_TIMEOUT_MS)) / 1000,
        )
        for prefix, adapter in list(session.adapters.items()):
            if not isinstance(adapter, _BoundedAdapter):
                assert isinstance(adapter, HTTPAdapter)
                session.mount(
                    prefix,
                    _BoundedAdapter(
                        adapter,
                        timeouts=timeouts,
                        retry=retry_policy(self._retry),
                        # requests prefers REQUESTS_CA_BUNDLE to what its session was told.
                        ca_bundle=session.verify if isinstance(session.verify, str) else None,
                    ),
                )


def _was_never_sent(error: RequestException) -> bool:
    """Whether no connection came about at all."""
    reason = getattr(error.args[0], "reason", None) if error.args else None
    return isinstance(error, ConnectTimeout) or isinstance(reason, NewConnectionError)


class RenewingTokens(LegacyOAuth2AuthManager):
    """OAuth2 client credentials; the token is renewed while the old one still works."""

    def __init__(self, **config: Any) -> None:
        self._lock = threading.Lock()
        self._renew_at = 0.0
        self._ends_at = 0.0
        super().__init__(**config)

    def auth_header(self) -> str:
        with self._lock:
            if time.monotonic() >= self._renew_at:
                self._renew()
            return super().auth_header()

    def _renew(self) -> None:
        try:
            self._refresh_token()
        except (CalveError, RequestException, ValueError):
            # The old token still opens the door; only when it ends is this the caller's trouble.
            if time.monotonic() >= self._ends_at:
                raise
            self._renew_at = time.monotonic() + _RENEW_AGAIN_SECONDS

    def _fetch_access_token(self, credential: str) -> str:
        client_id, found, secret = credential.partition(":")
        form = {
            "grant_type": "client_credentials",
            "client_id": client_id if found else None,
            "client_secret": secret if found else credential,
            **(self._optional_oauth_params or {}),
        }
        # The session's own authentication would ask for the token that is being fetched.
        response = self._session.post(
            str(self._auth_url),
            data=form,
            auth=_no_authentication,
            headers={"Content-type": "application/x-www-form-urlencoded"},
        )
        if response.status_code in {400, 401, 403}:
            raise Denied(
                f"the token endpoint {self._auth_url} refused the client: {response.text[:200]}",
                hint="check catalog.properties.credential, written as client-id:secret",
            )
        response.raise_for_status()
        token = TokenResponse.model_validate_json(response.text)
        self._renew_at = time.monotonic() + seconds_of_use(token.expires_in)
        self._ends_at = time.monotonic() + (token.expires_in or 0)
        return token.access_token


def seconds_of_use(lifetime_seconds: int | None) -> float:
    """How long a token is used: up to a minute before its end, or for a part of a short life."""
    if lifetime_seconds is None:
        return 600.0
    return max(lifetime_seconds - _RENEW_SECONDS_BEFORE, lifetime_seconds * _LIFE_USED_MAX)


def nested(properties: dict[str, str]) -> dict[str, Any]:
    """The properties as PyIceberg wants them: `ssl.cabundle` as a mapping below `ssl`."""
    result: dict[str, Any] = {}
    for key, value in properties.items():
        if not key.startswith(_NESTED):
            result[key] = value
            continue
        *above, last = key.split(".")
        place = result
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    return result


def retry_policy(retry: RetrySettings) -> Retry:
    """What is sent again, how often, and after which waits."""
    again = retry.max_attempts - 1
    return _CarefulRetry.for_settings(retry)(
        total=again,
        connect=again,
        read=again,
        status=again,
        allowed_methods=_READS,
        status_forcelist=_PASSING,
        raise_on_status=False,
    )


class _CarefulRetry(Retry):
    """Repeats a read after anything that may pass, and a write only if it was surely not done."""

    # urllib3 makes copies through the constructor and would lose values of an instance.
    settings = RetrySettings()

    @classmethod
    def for_settings(cls, retry: RetrySettings) -> type[_CarefulRetry]:
        return type(cls.__name__, (cls,), {"settings": retry})

    def is_retry(self, method: str, status_code: int, has_retry_after: bool = False) -> bool:  # noqa: FBT001, FBT002
        if method.upper() not in _READS:
            return bool(self.total) and status_code in _NOT_DONE
        return super().is_retry(method, status_code, has_retry_after)

    def get_backoff_time(self) -> float:
        exponent = max(0, len(self.history) - 1)
        wait_ms = self.settings.initial_delay_ms * self.settings.backoff_multiplier**exponent
        return min(wait_ms, self.settings.max_delay_ms) / 1000 * random.uniform(0.5, 1)  # noqa: S311

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        """The server's wish, as far as our own bound allows."""
        wish = super().get_retry_after(response)
        return None if wish is None else min(wish, self.settings.max_delay_ms / 1000)

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: BaseHTTPResponse | None = None,
        error: Exception | None = None,
        _pool: Any = None,
        _stacktrace: TracebackType | None = None,
    ) -> Self:
        if isinstance(error, SSLError):
            # A certificate does not become valid by asking again.
            raise MaxRetryError(_pool, url, error)
        return super().increment(method, url, response, error, _pool, _stacktrace)


class _BoundedAdapter(HTTPAdapter):
    """An adapter that never waits for ever, around the one that was there."""

    def __init__(
        self,
        inner: HTTPAdapter,
        *,
        timeouts: tuple[float, float],
        retry: Retry,
        ca_bundle: str | None,
    ) -> None:
        inner.max_retries = retry
        self._inner = inner
        self._forced: dict[str, Any] = {"timeout": timeouts}
        if ca_bundle:
            self._forced["verify"] = ca_bundle

    def send(self, request: PreparedRequest, **options: Any) -> Response:  # type: ignore[override]
        return self._inner.send(request, **{**options, **self._forced})

    def close(self) -> None:
        self._inner.close()


def _no_authentication(request: PreparedRequest) -> PreparedRequest:
    return request
