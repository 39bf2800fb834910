"""The doorkeeper: who is it that asks, by the token they show, at whichever door.

What a token may do is remembered, and read again from the state every few seconds at most, so that
one that was revoked ends everywhere within five; also in the streams that are open, which ask
again while they go on. Whoever guesses is made to wait, by address; a token that is known goes on
meanwhile, so that a guesser does not shut out who comes from the same place.
"""

from __future__ import annotations

import hmac
import logging
import threading
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from calve.access.attempts import Attempts
from calve.access.caller import Caller
from calve.access.tickets import KEY_NAME, require_signed
from calve.access.token import digest_of, id_of, new_secret
from calve.access.tokens import Tokens, decoded
from calve.errors import CalveError, Unauthenticated, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from calve.access.token import Token
    from calve.audit import Trail
    from calve.clock import Clock
    from calve.protocol import LogRange
    from calve.settings.tree import AuthSettings
    from calve.state import State

_log: Final = logging.getLogger(__name__)
READ_AGAIN_SECONDS: Final = 2.0
_KNOWN_MAX: Final = 10_000
_BEARER: Final = "bearer "
_HINT: Final = (
    "send a token as `Authorization: Bearer calve_…`: Client(url, token=…), --token-file or "
    "CALVE_TOKEN; `calve token create` makes one on the host"
)


class _Known(NamedTuple):
    """A token as it was when it was read last; None if it was revoked by then."""

    token: Token | None
    read_at: float


class Doorkeeper:
    """One per intake. Safe to share between threads."""

    def __init__(self, state: State, settings: AuthSettings, clock: Clock, *, trail: Trail) -> None:
        self._state = state
        self._clock = clock
        self._trail = trail
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()  # by the tokens' ids
        self._attempts = Attempts(clock)
        self._key: bytes | None = None
        self._trouble: str | None = None  # with the state, that the log has already
        self.is_required = settings.required
        # For the programs of this host that can read where the service says how it is reached.
        self.host_secret = new_secret()
        self._host_digest = digest_of(self.host_secret)

    def caller(self, authorization: str | None, address: str) -> Caller:
        """Who it is. Unauthenticated without a token that counts; may read the state.

        `authorization` is the header of that name; `address` is the peer's, without its port.
        """
        return self.remembered(authorization, address) or self._looked_up(authorization, address)

    def remembered(self, authorization: str | None, address: str) -> Caller | None:
        """The same without reading anything: None if only the state can tell."""
        if not self.is_required:
            return Caller.of_host(address)
        digest = digest_of(_secret(authorization))
        if hmac.compare_digest(digest, self._host_digest):
            return Caller.of_host(address, token_id=id_of(digest))
        known = self._known.get(id_of(digest))
        if known is None or self._is_old(known):
            return None
        return self._admitted(known.token, digest, address)

    def require_token(self, authorization: str | None) -> None:
        """Unauthenticated without a token that counts, for where nobody knows the address.

        Such attempts are not counted: together they would have those wait who made none.
        """
        if not self.is_required:
            return
        digest = digest_of(_secret(authorization))
        if not hmac.compare_digest(digest, self._host_digest):
            self._require_same(self._current(id_of(digest)).token, digest)

    def recheck(self, caller: Caller) -> None:
        """Whether a caller whose stream is open still is one; may read the state, not often."""
        if caller.token_id is None or caller.token_id == id_of(self._host_digest):
            return
        self._require_valid(self._current(caller.token_id).token)

    def is_valid(self, caller: Caller) -> bool:
        """The same as a claim; what cannot be found out does not hold."""
        try:
            self.recheck(caller)
        except CalveError:
            return False
        return True

    def of_id(self, token_id: str, address: str) -> Caller:
        """The caller whose token has an id: for what was signed in its name."""
        if not self.is_required:
            return Caller.of_host(address)
        if token_id == id_of(self._host_digest):
            return Caller.of_host(address, token_id=token_id)
        return Caller.of_token(self._require_valid(self._current(token_id).token), address)

    def of_ticket(self, ticket: LogRange, address: str) -> Caller:
        """Who reads with a signed ticket: the pipeline, as long as its token counts."""
        require_signed(ticket, self._ticket_key(), self._clock)
        if ticket.token is None:
            return Caller.of_pipeline(address)
        return self.of_id(ticket.token, address)

    def _ticket_key(self) -> bytes:
        if self._key is None:
            with self._asking():
                self._key = self._state.signing_key(KEY_NAME)
        return self._key

    def tokens(self, caller: Caller) -> Tokens:
        """Those that a caller may see, to make more and to revoke them."""
        return Tokens(
            self._state, caller, clock=self._clock, trail=self._trail, revoked=self._forget
        )

    def _forget(self, token_id: str) -> None:
        with self._lock:
            if token_id in self._known:
                self._known[token_id] = _Known(None, self._clock.monotonic())

    def _looked_up(self, authorization: str | None, address: str) -> Caller:
        digest = digest_of(_secret(authorization))
        token_id = id_of(digest)
        known = self._known.get(token_id)
        if known is None or known.token is None:
            self._attempts.require(address)
        return self._admitted(self._read(token_id).token, digest, address)

    def _admitted(self, token: Token | None, digest: str, address: str) -> Caller:
        try:
            found = self._require_same(token, digest)
        except Unauthenticated:
            self._attempts.failed(address)
            raise
        return Caller.of_token(found, address)

    def _require_same(self, token: Token | None, digest: str) -> Token:
        found = self._require_valid(token)
        if not hmac.compare_digest(digest, found.digest):
            raise _refused()
        return found

    def _require_valid(self, token: Token | None) -> Token:
        if token is None or token.is_over(self._clock.now()):
            raise _refused()
        return token

    def _current(self, token_id: str) -> _Known:
        """As it was a moment ago, or as it is now."""
        known = self._known.get(token_id)
        return self._read(token_id) if known is None or self._is_old(known) else known

    def _is_old(self, known: _Known) -> bool:
        return self._clock.monotonic() - known.read_at >= READ_AGAIN_SECONDS

    def _read(self, token_id: str) -> _Known:
        """What the state says now. What is not there is not kept, unless it was: guesses are many.

        While the state cannot be asked nobody gets in on what was known: it may be revoked.
        """
        read_at = self._clock.monotonic()
        with self._asking():
            content = self._state.token(token_id)
            known = _Known(None if content is None else decoded(content), read_at)
        with self._lock:
            if content is not None or token_id in self._known:
                self._known[token_id] = known
                self._known.move_to_end(token_id)
            while len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
        return known

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Around what reads the state. Why that fails names places of this host, and who asks may
        be a stranger: it is for the log, once, since strangers may ask often."""
        try:
            yield
        except CalveError as error:
            if self._trouble != error.message:
                self._trouble = error.message
                _log.error("tokens cannot be looked up: %s", error)
            raise Unavailable(
                "tokens cannot be looked up for now", hint="try again; the service's log says why"
            ) from error
        self._trouble = None


def _secret(authorization: str | None) -> str:
    if authorization is None:
        raise Unauthenticated("a token is needed here", hint=_HINT)
    if authorization[: len(_BEARER)].lower() != _BEARER:
        raise Unauthenticated("the header Authorization holds no token", hint=_HINT)
    return authorization[len(_BEARER) :].strip()


def _refused() -> Unauthenticated:
    return Unauthenticated(
        "the token is not known, was revoked, or is over",
        hint="`calve token list` shows those that count; `calve token create` makes one",
    )
