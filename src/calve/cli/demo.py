"""Sample traffic for `calve up --demo`: a few rows each second, for as long as it is up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from calve.cli.output import say
from calve.client import Client
from calve.client.tls import client_tls
from calve.errors import CalveError
from calve.service.host_token import host_token
from calve.testdata import generate_test_data

if TYPE_CHECKING:
    from calve.settings import Settings

TOPIC: Final = "demo"
_ROWS: Final = 10
_PAUSE_SECONDS: Final = 1.0
_PATIENCE_SECONDS: Final = 5.0


@contextmanager
def demo_traffic(settings: Settings, url: str) -> Iterator[None]:
    """Rows into the topic `demo`, from a thread that ends with the block."""
    ending = threading.Event()
    sending = threading.Thread(
        target=_send, args=(settings, url, ending), name="calve-demo", daemon=True
    )
    sending.start()
    try:
        yield
    finally:
        ending.set()
        sending.join()


def _send(settings: Settings, url: str, ending: threading.Event) -> None:
    client = Client(
        url,
        token=host_token(settings, url),
        delivery_timeout_seconds=_PATIENCE_SECONDS,
        **client_tls(settings),
    )
    seed = 0
    while not ending.wait(_PAUSE_SECONDS):
        try:
            client.produce(TOPIC, generate_test_data(_ROWS, seed)).result()
        except CalveError as error:
            say(f"some of the demo's rows were not taken: {error.message}")
        seed += 1
    with suppress(CalveError):  # the service has ended by now, and whoever stopped it knows
        client.close(timeout_seconds=0)
