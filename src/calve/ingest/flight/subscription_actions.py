"""Actions on subscriptions: acknowledge, list, describe, move and forget them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from calve.ingest.flight.action import Action, Asked, Named
from calve.ingest.listing import seen_subscriptions


class Listing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one topic, or all of them."""

    topic: str | None = None


class One(Named, frozen=True, forbid_unknown_fields=True):
    subscription: str


class Acknowledged(One, frozen=True, forbid_unknown_fields=True):
    place: str


class Moved(One, frozen=True, forbid_unknown_fields=True):
    to: str


def list_all(asked: Asked, body: Listing) -> Any:
    topic = None if body.topic is None else asked.caller.topic(body.topic)
    found = seen_subscriptions(asked.intake, asked.caller, topic)
    return [each.document() for each in found]


def describe(asked: Asked, body: One) -> Any:
    return asked.intake.subscriptions.describe(str(asked.name), body.subscription).document()


def acknowledge(asked: Asked, body: Acknowledged) -> Any:
    # Whoever only takes rows in need not load what reads tables.
    from calve.subscriptions.place import Place

    place = Place.parse(body.place)
    return {
        "counts": asked.intake.subscriptions.acknowledge(str(asked.name), body.subscription, place)
    }


def seek(asked: Asked, body: Moved) -> Any:
    from calve.subscriptions.start import parse_start

    to = parse_start(body.to)
    return asked.intake.subscriptions.seek(str(asked.name), body.subscription, to).document()


def reset(asked: Asked, body: One) -> Any:
    return asked.intake.subscriptions.reset(str(asked.name), body.subscription).document()


def delete(asked: Asked, body: One) -> Any:
    asked.intake.subscriptions.delete(str(asked.name), body.subscription)
    return {"topic": str(asked.name), "name": body.subscription, "deleted": True}


SUBSCRIPTION_ACTIONS: Final[Mapping[str, Action]] = {
    "subscription.list": Action(
        "subscribe", Listing, list_all,
        'Subscriptions and how far behind they are; without a topic, all: {"topic": "events"}',
        is_named=False,
    ),
    "subscription.describe": Action(
        "subscribe", One, describe,
        'Where one is, and who has it: {"topic": "events", "subscription": "billing"}',
    ),
    "subscription.ack": Action(
        "subscribe", Acknowledged, acknowledge,
        'Be done with all up to a place: {"topic": "events", "subscription": "a", "place": "…"}',
    ),
    "subscription.seek": Action(
        "subscribe", Moved, seek,
        'Go on elsewhere: {"topic": "events", "subscription": "billing", "to": "latest"}',
    ),
    "subscription.reset": Action(
        "subscribe", One, reset,
        'Begin with the first row: {"topic": "events", "subscription": "billing"}',
    ),
    "subscription.delete": Action(
        "subscribe", One, delete,
        'Forget it: {"topic": "events", "subscription": "billing"}',
    ),
}  # fmt: skip
