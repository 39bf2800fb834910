"""Tokens as the doors of a service show them: made, listed, revoked; with their secret once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from calve.access import NewToken, Scope
from calve.model import DEFAULT_DATASET, DEFAULT_TENANT

if TYPE_CHECKING:
    from calve.access import Token, Tokens

_LAST: Final = datetime.max.replace(tzinfo=UTC)


class TokenOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to be made. Without a tenant, the caller's own, or `default` for an operator.

    `topics` are patterns such as `orders_*`; `expires_in_seconds` or `expires_at`, or neither.
    """

    name: str
    scopes: tuple[Scope, ...]
    tenant: str | None = None
    topics: tuple[str, ...] = ()
    dataset: str = DEFAULT_DATASET
    expires_at: datetime | None = None
    expires_in_seconds: Annotated[int, Meta(ge=1, le=10**10)] | None = None


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    tenant: str
    scopes: tuple[str, ...]
    topics: tuple[str, ...]
    dataset: str
    created_at: datetime
    expires_at: datetime | None


class NewTokenView(TokenView, frozen=True, kw_only=True):
    """With the secret, which is shown this once."""

    secret: str


class TokenList(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[TokenView]


def create_token(tokens: Tokens, order: TokenOrder) -> NewTokenView:
    expires_at = order.expires_at
    if order.expires_in_seconds is not None:
        in_time = timedelta(seconds=order.expires_in_seconds)
        expires_at = min(tokens.now, _LAST - in_time) + in_time
    wanted = NewToken(
        name=order.name,
        tenant=order.tenant or tokens.only_tenant or DEFAULT_TENANT,
        scopes=order.scopes,
        topics=order.topics,
        dataset=order.dataset,
        expires_at=expires_at,
    )
    token, secret = tokens.create(wanted)
    return NewTokenView(secret=secret, **_shown(token))


def list_tokens(tokens: Tokens) -> TokenList:
    return TokenList(tokens=[_view(each) for each in tokens.list()])


def revoke_token(tokens: Tokens, token_id: str) -> TokenView:
    return _view(tokens.revoke(token_id))


def _view(token: Token) -> TokenView:
    return TokenView(**_shown(token))


def _shown(token: Token) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.structs.asdict(token)
    return {name: value for name, value in fields.items() if name != "digest"}
