"""The tokens of a service: to make, list and revoke them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ClientTokens:
    """What a token of the scope `admin` may do with those of its tenant."""

    def __init__(self, act: Callable[..., Any]) -> None:
        self._act = act

    def create(self, name: str, scopes: list[str], **wish: Any) -> dict[str, Any]:
        """A token, with its `secret`, which is shown this once.

        `wish` may have tenant, topics, dataset, and expires_at or expires_in_seconds.
        """
        made: dict[str, Any] = self._act("token.create", {"name": name, "scopes": scopes, **wish})
        return made

    def list(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._act("token.list", {})["tokens"]
        return found

    def revoke(self, token_id: str) -> dict[str, Any]:
        """Have it count no more, within five seconds everywhere; what it was."""
        gone: dict[str, Any] = self._act("token.revoke", {"id": token_id})
        return gone
