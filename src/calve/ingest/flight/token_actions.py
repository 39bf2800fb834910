"""Actions on tokens: make, list and revoke them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from calve.ingest.flight.action import Action, Asked
from calve.ingest.tokens import TokenOrder, create_token, list_tokens, revoke_token

if TYPE_CHECKING:
    from calve.access import Tokens


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A body that is empty."""


class One(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str


def create(asked: Asked, body: TokenOrder) -> Any:
    return create_token(_tokens(asked), body)


def list_all(asked: Asked, _: Nothing) -> Any:
    return list_tokens(_tokens(asked))


def revoke(asked: Asked, body: One) -> Any:
    return revoke_token(_tokens(asked), body.id)


def _tokens(asked: Asked) -> Tokens:
    return asked.intake.doorkeeper.tokens(asked.caller)


TOKEN_ACTIONS: Final[Mapping[str, Action]] = {
    "token.create": Action(
        "admin", TokenOrder, create,
        'Make a token, whose secret is shown once: {"name": "shop", "scopes": ["produce"]}',
        is_named=False,
    ),
    "token.list": Action("admin", Nothing, list_all, "All tokens: {}", is_named=False),
    "token.revoke": Action(
        "admin", One, revoke, 'Have a token count no more: {"id": "0123456789abcdef"}',
        is_named=False,
    ),
}  # fmt: skip
