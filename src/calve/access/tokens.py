"""Making, listing and revoking tokens, in the state of a lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from calve.access.token import EVERY_TENANT, NewToken, Token, made, new_secret
from calve.audit import audited
from calve.audit.actions import TOKENS
from calve.errors import Conflict, Denied, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from calve.access.caller import Caller
    from calve.audit import Trail
    from calve.clock import Clock
    from calve.state import State

_DECODER: Final = msgspec.json.Decoder(Token)


class MadeToken(NamedTuple):
    """The only time that the secret is seen."""

    token: Token
    secret: str

    @property
    def audit_details(self) -> dict[str, str]:
        """By its id one finds who made a token that is revoked later."""
        return {"id": self.token.id}


@audited(TOKENS)
class Tokens:
    """The tokens of a lake, as far as one caller may see them. Safe to share between threads."""

    def __init__(
        self,
        state: State,
        caller: Caller,
        *,
        clock: Clock,
        trail: Trail,
        revoked: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`revoked` is told the ids of those that count no more."""
        self._revoked = revoked
        self._trail = trail
        self._state = state
        self._caller = caller
        self._clock = clock

    @property
    def now(self) -> datetime:
        return self._clock.now()

    @property
    def only_tenant(self) -> str | None:
        """The one whose tokens they are; None for all."""
        return self._caller.only_tenant

    def create(self, wanted: NewToken) -> MadeToken:
        self._require_own(wanted)
        secret = new_secret()
        token = made(wanted, secret, self.now)
        if not self._state.create_token(token.id, msgspec.json.encode(token)):
            raise Conflict(f"there is a token {token.id} already", hint="try again")
        return MadeToken(token, secret)

    def list(self) -> list[Token]:
        """By name, then by when they were made."""
        self._require_whole_tenant()
        found = [decoded(each) for each in self._state.tokens().values()]
        return sorted(
            (each for each in found if self._is_own(each)),
            key=lambda token: (token.tenant, token.name, token.created_at),
        )

    def revoke(self, token_id: str) -> Token:
        """Have it count no more, within seconds everywhere."""
        self._require_whole_tenant()
        content = self._state.token(token_id)
        token = None if content is None else decoded(content)
        if token is None or not self._is_own(token) or not self._state.delete_token(token_id):
            raise NotFound(
                f"there is no token {token_id!r}", hint="`calve token list` shows their ids"
            )
        self._revoked(token_id)
        return token

    def _is_own(self, token: Token) -> bool:
        return self.only_tenant in {None, token.tenant}

    def _require_own(self, wanted: NewToken) -> None:
        """Tokens for every tenant are made on the host; whoever is bound to topics makes none."""
        self._require_whole_tenant()
        caller = self._caller
        if caller.is_host:
            return
        if wanted.tenant == EVERY_TENANT:
            raise Denied(
                "a token for every tenant is made on the host of the lake",
                hint="run `calve token create` there, or name one tenant",
            )
        if caller.only_tenant not in {None, wanted.tenant}:
            raise Denied(
                f"the token {caller.name!r} makes tokens of {caller.tenant} alone",
                hint=f"leave the tenant out, or give {caller.tenant}",
            )

    def _require_whole_tenant(self) -> None:
        if self._caller.topics:
            raise Denied(
                f"the token {self._caller.name!r} is for some topics, and not for tokens",
                hint="use a token of the whole tenant",
            )


def decoded(content: bytes) -> Token:
    return _DECODER.decode(content)
