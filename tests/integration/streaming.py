"""What the tests of streams over HTTP share: a topic, a subscription and rows."""

from __future__ import annotations

from typing import Final

from calve.model import TableName
from calve.state import SubscriptionName
from tests.integration.serving import Serving

PATH: Final = "/v1/topics/orders/subscriptions/billing"
BILLING: Final = SubscriptionName(TableName.parse("orders"), "billing")


def append(service: Serving, count: int) -> None:
    """Rows whose id is their offset."""
    known = service.intake.topics.find(BILLING.topic)
    start = service.intake.offsets(BILLING.topic).durable if known else 0
    body = "".join(f'{{"id":{start + n}}}\n' for n in range(count))
    service.send("orders", body.encode()).raise_for_status()
