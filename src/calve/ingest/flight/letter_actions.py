"""Actions on dead letters: what can be done with the rows that a topic could not take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from calve.ingest.dead_letters.views import LIMIT_DEFAULT, Selection, Wish
from calve.ingest.flight.action import Action, Named

if TYPE_CHECKING:
    from calve.ingest.dead_letters.box import DeadLetters
    from calve.ingest.intake import Intake
    from calve.model import TableName


class Listing(Selection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: str
    limit: int = LIMIT_DEFAULT


class One(Named, frozen=True, forbid_unknown_fields=True):
    offset: int
    partition: int | None = None


class TopicWish(Wish, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: str


def list_letters(intake: Intake, name: TableName, body: Listing) -> Any:
    return _box(intake, name).list_some(body.plain, body.limit)


def show_letter(intake: Intake, name: TableName, body: One) -> Any:
    return _box(intake, name).show(body.offset, body.partition)


def original_of(intake: Intake, name: TableName, body: One) -> Any:
    return {"original": _box(intake, name).original(body.offset, body.partition)}


def replay_letters(intake: Intake, name: TableName, body: TopicWish) -> Any:
    return _box(intake, name).replay_some(
        body.selection, ends=body.ends, dry_run=body.dry_run, give_up=body.give_up
    )


def discard_letters(intake: Intake, name: TableName, body: TopicWish) -> Any:
    return _box(intake, name).discard_some(body.selection, ends=body.ends, dry_run=body.dry_run)


def _box(intake: Intake, name: TableName) -> DeadLetters:
    # Whoever only takes rows in need not load what reads tables.
    from calve.ingest.dead_letters.box import DeadLetters

    return DeadLetters.of(intake, name)


LETTER_ACTIONS: Final[Mapping[str, Action]] = {
    "dead_letter.list": Action(
        Listing, list_letters,
        'Rows that a topic could not take: {"topic": "events", "offsets": "5,10-20"}',
    ),
    "dead_letter.show": Action(
        One, show_letter, 'One of them: {"topic": "events", "offset": 5}'
    ),
    "dead_letter.original": Action(
        One, original_of, 'What was sent: {"topic": "events", "offset": 5}'
    ),
    "dead_letter.replay": Action(
        TopicWish, replay_letters,
        'Send them to the topic again, until is_done: {"topic": "events", "all": true}',
    ),
    "dead_letter.discard": Action(
        TopicWish, discard_letters,
        'Remove them, until is_done: {"topic": "events", "reason": "no number"}',
    ),
}  # fmt: skip
