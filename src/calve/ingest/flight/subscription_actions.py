"""Actions on subscriptions: acknowledge, list, describe, move and forget them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from calve.ingest.flight.action import Action, Named

if TYPE_CHECKING:
    from calve.ingest.intake import Intake
    from calve.model import TableName


class Listing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one topic, or all of them."""

    topic: str | None = None


class One(Named, frozen=True, forbid_unknown_fields=True):
    subscription: str


class Acknowledged(One, frozen=True, forbid_unknown_fields=True):
    place: str


class Moved(One, frozen=True, forbid_unknown_fields=True):
    to: str


def list_all(intake: Intake, _: TableName | None, body: Listing) -> Any:
    return [each.document() for each in intake.subscriptions.list(body.topic)]


def describe(intake: Intake, _: TableName, body: One) -> Any:
    return intake.subscriptions.describe(body.topic, body.subscription).document()


def acknowledge(intake: Intake, _: TableName, body: Acknowledged) -> Any:
    # Whoever only takes rows in need not load what reads tables.
    from calve.subscriptions.place import Place

    place = Place.parse(body.place)
    return {"counts": intake.subscriptions.acknowledge(body.topic, body.subscription, place)}


def seek(intake: Intake, _: TableName, body: Moved) -> Any:
    from calve.subscriptions.start import parse_start

    to = parse_start(body.to)
    return intake.subscriptions.seek(body.topic, body.subscription, to).document()


def reset(intake: Intake, _: TableName, body: One) -> Any:
    return intake.subscriptions.reset(body.topic, body.subscription).document()


def delete(intake: Intake, _: TableName, body: One) -> Any:
    intake.subscriptions.delete(body.topic, body.subscription)
    return {"topic": body.topic, "name": body.subscription, "deleted": True}


SUBSCRIPTION_ACTIONS: Final[Mapping[str, Action]] = {
    "subscription.list": Action(
        Listing, list_all,
        'Subscriptions and how far behind they are; without a topic, all: {"topic": "events"}',
        is_named=False,
    ),
    "subscription.describe": Action(
        One, describe,
        'Where one is, and who has it: {"topic": "events", "subscription": "billing"}',
    ),
    "subscription.ack": Action(
        Acknowledged, acknowledge,
        'Be done with all up to a place: {"topic": "events", "subscription": "a", "place": "…"}',
    ),
    "subscription.seek": Action(
        Moved, seek,
        'Go on elsewhere: {"topic": "events", "subscription": "billing", "to": "latest"}',
    ),
    "subscription.reset": Action(
        One, reset,
        'Begin with the first row: {"topic": "events", "subscription": "billing"}',
    ),
    "subscription.delete": Action(
        One, delete,
        'Forget it: {"topic": "events", "subscription": "billing"}',
    ),
}  # fmt: skip
