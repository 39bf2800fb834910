"""Actions on dead letters: what can be done with the rows that a topic could not take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from calve.ingest.dead_letters.views import LIMIT_DEFAULT, Selection, Wish

if TYPE_CHECKING:
    from calve.ingest.dead_letters.box import DeadLetters
    from calve.ingest.intake import Intake
    from calve.model import TableName


class Listing(Selection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: str
    limit: int = LIMIT_DEFAULT


class One(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str
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

    return DeadLetters(lambda: intake.catalog, name, lambda: intake)
