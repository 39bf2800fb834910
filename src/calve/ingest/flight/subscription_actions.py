"""Actions on subscriptions: acknowledge, list, describe, move and forget them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from calve.ingest.intake import Intake
    from calve.model import TableName


class Listing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one topic, or all of them."""

    topic: str | None = None


class Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str
    subscription: str


class Acknowledged(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str
    subscription: str
    place: str


class Moved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str
    subscription: str
    to: str


def list_all(intake: Intake, _: TableName | None, body: Listing) -> Any:
    return [each.document() for each in intake.subscriptions.list(body.topic)]


def describe(intake: Intake, _: TableName, body: Named) -> Any:
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


def reset(intake: Intake, _: TableName, body: Named) -> Any:
    return intake.subscriptions.reset(body.topic, body.subscription).document()


def delete(intake: Intake, _: TableName, body: Named) -> Any:
    intake.subscriptions.delete(body.topic, body.subscription)
    return {"topic": body.topic, "name": body.subscription, "deleted": True}
