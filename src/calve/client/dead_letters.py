"""The dead letters of a topic, through its service."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

_Act: TypeAlias = Callable[..., dict[str, Any]]
# Each call does as much as one commit holds.
_SECONDS: Final = 300.0


class ClientDeadLetters:
    """The same as `lake.dead_letters(topic)`, with answers in plain values."""

    def __init__(self, act: _Act, topic: str) -> None:
        self._act = act
        self._topic = topic

    def list(self, *, limit: int = 100, **filters: Any) -> dict[str, Any]:
        """How many there are, by reason, and the first of them by offset."""
        return self._do("list", limit=limit, **_plain(filters))

    def show(self, offset: int, partition: int | None = None) -> dict[str, Any]:
        """One of them, with what was sent."""
        return self._do("show", offset=offset, partition=partition)

    def original(self, offset: int, partition: int | None = None) -> bytes:
        """What was sent, byte for byte."""
        found = self._do("original", offset=offset, partition=partition)
        return b64decode(found["original"])

    def replay(
        self, *, dry_run: bool = False, give_up: bool = False, **filters: Any
    ) -> dict[str, Any]:
        """Send all that are meant to the topic again, each once."""
        done = self._do("replay", dry_run=dry_run, give_up=give_up, **_plain(filters))
        while not (done["is_done"] or dry_run):
            more = self._do("replay", ends=done["ends"], **_plain(filters))
            reasons = list(dict.fromkeys([*done["reasons"], *more["reasons"]]))
            done = _added(done, more, "rows", "rejected") | {"reasons": reasons[:5]}
        return done

    def discard(self, *, dry_run: bool = False, **filters: Any) -> dict[str, Any]:
        """Remove all that are meant; it is recorded that it was on purpose."""
        done = self._do("discard", dry_run=dry_run, **_plain(filters))
        while not (done["is_done"] or dry_run):
            done = _added(done, self._do("discard", ends=done["ends"], **_plain(filters)), "count")
        return done

    def _do(self, what: str, **body: Any) -> dict[str, Any]:
        return self._act(f"dead_letter.{what}", {"topic": self._topic, **body}, _SECONDS)


def _plain(filters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.isoformat() if isinstance(value, datetime) else value
        for key, value in filters.items()
    }


def _added(done: dict[str, Any], more: dict[str, Any], *counts: str) -> dict[str, Any]:
    return more | {name: done[name] + more[name] for name in counts}
