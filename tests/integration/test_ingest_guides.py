"""The guides to producing, followed word by word against a real service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from calve.ingest import Intake
from calve.ingest.flight import FlightServer
from tests.conftest import MakeSettings
from tests.pages import DOCS, NEVER_RUN, follow


@pytest.fixture
def service(make_settings: MakeSettings) -> Iterator[str]:
    with Intake(make_settings(ingest__flight_port=0)) as intake, FlightServer(intake) as server:
        yield server.url


@pytest.mark.parametrize("page", ["producing-flight.md", "client.md"])
def test_a_guide_can_be_followed(reader: Path, service: str, page: str) -> None:
    shown = {"grpc://127.0.0.1:8815": service}
    follow(DOCS / "guides" / page, reader, NEVER_RUN, shown)
