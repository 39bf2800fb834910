"""A service that needs tokens, with all its doors, in this process; and tokens of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import httpx
import msgspec
import pyarrow as pa
from pyarrow import flight

from calve.access import SCOPES, Caller, NewToken, Scope
from calve.access.token import made, new_secret
from calve.ingest import Intake
from calve.model import TableName
from calve.service.announcement import Addresses
from calve.service.serving import Serving
from calve.settings import load_settings
from calve.topics import TopicSpec
from tests.services import PORTS

OWN, OTHER = "acme", "rival"
ROWS = pa.record_batch({"id": [1, 2], "secret": ["alpha", "beta"]})


def bearer(secret: str | None) -> dict[str, str]:
    return {} if secret is None else {"Authorization": f"Bearer {secret}"}


@dataclass
class Site:
    intake: Intake
    addresses: Addresses
    http: httpx.Client
    otlp_http: httpx.Client
    flight: Any
    otlp_grpc: Any
    tokens: dict[str, str | None] = field(default_factory=dict)

    def token(self, scopes: tuple[Scope, ...] = SCOPES, tenant: str = OWN, **wish: Any) -> str:
        """The secret of a new one."""
        wanted = NewToken(name="test", tenant=tenant, scopes=scopes, **wish)
        return self.intake.doorkeeper.tokens(Caller.of_host()).create(wanted).secret

    def revoke(self, secret: str) -> None:
        caller = self.intake.doorkeeper.caller(f"Bearer {secret}", "")
        assert caller.token_id is not None
        self.intake.doorkeeper.tokens(Caller.of_host()).revoke(caller.token_id)

    def options(self, secret: str | None) -> Any:
        """Of a Flight call."""
        headers = [(b"authorization", f"Bearer {secret}".encode())] if secret else []
        return flight.FlightCallOptions(headers=headers, timeout=20)

    def open_options(self, secret: str) -> Any:
        """Of a call that stays open."""
        return flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {secret}".encode())])

    def produce(self, name: str, rows: pa.RecordBatch = ROWS) -> None:
        self.intake.submit(TableName.parse(name), rows).wait()


def tokens_of_every_kind(site: Site) -> dict[str, str | None]:
    """By what is special about each; the last ones have one scope."""
    revoked = site.token()
    site.revoke(revoked)
    long_ago = site.intake.clock.now() - timedelta(days=2)
    wish = NewToken(name="old", tenant=OWN, scopes=SCOPES, expires_at=long_ago + timedelta(days=1))
    over = new_secret()
    old = made(wish, over, long_ago)
    site.intake.state.create_token(old.id, msgspec.json.encode(old))
    return {
        "no token": None,
        "wrong": new_secret(),
        "expired": over,
        "revoked": revoked,
        **{scope: site.token((scope,)) for scope in SCOPES},
        "other tenant": site.token(tenant=OTHER),
    }


@contextmanager
def access_site(data: Path, **flags: object) -> Iterator[Site]:
    named = {name.replace("__", "."): value for name, value in flags.items()}
    given = {
        "data": str(data),
        "auth.required": True,
        **{f"ingest.{port}": 0 for port in PORTS},
        **named,
    }
    settings = load_settings(flags=given, environ={}).settings
    with (
        Intake(settings) as intake,
        Serving(intake, otlp=True) as served,
        clients_of(intake, served.addresses) as site,
    ):
        for tenant in (OWN, OTHER):
            name = TableName(tenant, "default", "orders")
            columns = pa.schema([("id", pa.int64()), ("secret", pa.string())])
            intake.create_topic(name, TopicSpec(schema=columns))
            site.produce(name.full)
        yield site


@contextmanager
def clients_of(intake: Intake, addresses: Addresses) -> Iterator[Site]:
    """Clients of all doors, with connections of their own."""
    assert addresses.otlp_grpc is not None
    assert addresses.otlp_http is not None
    own = [("grpc.use_local_subchannel_pool", 1)]
    with (
        flight.FlightClient(addresses.flight, generic_options=own) as over_flight,
        grpc.insecure_channel(addresses.otlp_grpc[7:], options=own) as channel,
        httpx.Client(base_url=addresses.http, timeout=20) as http,
        httpx.Client(base_url=addresses.otlp_http, timeout=20) as otlp_http,
    ):
        yield Site(intake, addresses, http, otlp_http, over_flight, channel)
