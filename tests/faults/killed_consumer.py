"""A consumer that is killed at any moment: it writes down what it got, and what it acknowledged."""

from __future__ import annotations

import os
import sys

from calve import Client
from calve.client.subscription import ClientSubscription


def main(url: str, journal: str) -> None:
    # Lines of all consumers in one file, in the order they were written.
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(word: str, subscription: ClientSubscription, start: int, end: int) -> None:
        assert subscription._place is not None
        os.write(file, f"{word} {subscription._place.token} {start} {end}\n".encode())

    with (
        Client(url, connect_timeout_seconds=60) as client,
        client.subscribe("orders", "billing", lease_seconds=1) as subscription,
    ):
        for batch in subscription:
            note("got", subscription, batch.first_offset, batch.next_offset)
            if subscription.ack(batch):
                note("done", subscription, batch.first_offset, batch.next_offset)


if __name__ == "__main__":
    main(*sys.argv[1:])
