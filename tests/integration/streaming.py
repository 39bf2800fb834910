"""What the tests of streams over HTTP share: a topic, a subscription and rows."""

from __future__ import annotations

import time
from typing import Final

from calve.model import TableName
from calve.state import State, SubscriptionClaim, SubscriptionName
from tests.integration.serving import Serving

PATH: Final = "/v1/topics/orders/subscriptions/billing"
BILLING: Final = SubscriptionName(TableName.parse("orders"), "billing")


def left_by_the_dead(state: State, seconds: float) -> SubscriptionClaim:
    """What a consumer leaves behind that was killed: a lease that nobody renews."""
    deadline = time.monotonic() + 10
    while (claim := state.claim_subscription(BILLING, "one that was killed", seconds)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return claim


def append(service: Serving, count: int) -> None:
    """Rows whose id is their offset."""
    known = service.intake.topics.find(BILLING.topic)
    start = service.intake.offsets(BILLING.topic).durable if known else 0
    body = "".join(f'{{"id":{start + n}}}\n' for n in range(count))
    service.send("orders", body.encode()).raise_for_status()
