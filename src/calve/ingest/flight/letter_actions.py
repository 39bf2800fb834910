"""Actions on dead letters: what can be done with the rows that a topic could not take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from calve.ingest.dead_letters.views import LIMIT_DEFAULT, Selection, Wish
from calve.ingest.flight.action import Action, Asked, Named

if TYPE_CHECKING:
    from calve.ingest.dead_letters.box import DeadLetters


class Listing(Selection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: str
    limit: int = LIMIT_DEFAULT


class One(Named, frozen=True, forbid_unknown_fields=True):
    offset: int
    partition: int | None = None


class TopicWish(Wish, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: str


def list_letters(asked: Asked, body: Listing) -> Any:
    return _box(asked).list_some(body.plain, body.limit)


def show_letter(asked: Asked, body: One) -> Any:
    return _box(asked).show(body.offset, body.partition)


def original_of(asked: Asked, body: One) -> Any:
    return {"original": _box(asked).original(body.offset, body.partition)}


def replay_letters(asked: Asked, body: TopicWish) -> Any:
    return _box(asked).replay_some(
        body.selection, ends=body.ends, dry_run=body.dry_run, give_up=body.give_up
    )


def discard_letters(asked: Asked, body: TopicWish) -> Any:
    return _box(asked).discard_some(body.selection, ends=body.ends, dry_run=body.dry_run)


def _box(asked: Asked) -> DeadLetters:
    # Whoever only takes rows in need not load what reads tables.
    from calve.ingest.dead_letters.box import DeadLetters

    return DeadLetters.of(asked.intake, asked.name)


LETTER_ACTIONS: Final[Mapping[str, Action]] = {
    "dead_letter.list": Action(
        "admin", Listing, list_letters,
        'Rows that a topic could not take: {"topic": "events", "offsets": "5,10-20"}',
    ),
    "dead_letter.show": Action(
        "admin", One, show_letter, 'One of them: {"topic": "events", "offset": 5}'
    ),
    "dead_letter.original": Action(
        "admin", One, original_of, 'What was sent: {"topic": "events", "offset": 5}'
    ),
    "dead_letter.replay": Action(
        "admin", TopicWish, replay_letters,
        'Send them to the topic again, until is_done: {"topic": "events", "all": true}',
    ),
    "dead_letter.discard": Action(
        "admin", TopicWish, discard_letters,
        'Remove them, until is_done: {"topic": "events", "reason": "no number"}',
    ),
}  # fmt: skip
