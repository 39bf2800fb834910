"""The audit log at the doors: who asked over HTTP and Flight, from where, and what was refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from calve import Client
from calve.access import Caller, NewToken
from calve.audit import actions, records
from calve.audit.trail import Record
from calve.errors import CalveError
from calve.ingest.flight import FlightServer
from calve.ingest.flight.actions import ACTIONS
from calve.ingest.http.routes import OPERATIONS
from calve.ingest.recording import HTTP_ACTIONS
from tests.conftest import MakeSettings
from tests.integration.serving import Serving, serving

# Operations that change something and are no administrator's: rows in and out, questions.
DATA = {
    ("POST", "/v1/topics/{topic}/rows"),
    ("POST", "/v1/topics/{topic}/messages"),
    ("POST", "/v1/topics/{topic}/flush"),
    ("POST", "/v1/topics/{topic}/subscriptions/{name}/ack"),
    ("POST", "/v1/query"),
    ("DELETE", "/v1/queries/{id}"),
}
DATA_ACTIONS = {"flush", "subscription.ack", "query.cancel"}
READS = (".list", ".describe", ".show", ".original", ".status", ".ends")


@pytest.fixture
def service(make_settings: MakeSettings) -> Iterator[Serving]:
    with serving(
        make_settings(ingest__http_port=0, ingest__flight_port=0, auth__required=True)
    ) as it:
        yield it


def audit(service: Serving) -> list[Record]:
    return list(records(Path(service.intake.settings.data) / "_calve" / "audit"))


def token(service: Serving, *scopes: str, tenant: str = "acme") -> tuple[str, str]:
    """A secret and the id that it is known by."""
    tokens = service.intake.doorkeeper.tokens(Caller.of_host())
    made = tokens.create(NewToken(name="ci", tenant=tenant, scopes=scopes))  # type: ignore[arg-type]
    return made.secret, made.token.id


def test_every_operation_that_changes_something_is_recorded_or_known_to_be_about_data() -> None:
    changing = {(each.method, each.path) for each in OPERATIONS if each.method != "GET"}
    assert changing == set(HTTP_ACTIONS) | DATA
    assert set(HTTP_ACTIONS.values()) <= actions.ALL
    others = {name for name in ACTIONS if not name.endswith(READS)} - {"status", "stats"}
    assert others - DATA_ACTIONS <= actions.ALL


def test_what_is_done_over_http_is_done_by_the_token(service: Serving) -> None:
    secret, token_id = token(service, "admin", "produce")
    login = {"Authorization": f"Bearer {secret}"}
    made = service.client.post(
        "/v1/topics",
        json={"name": "acme.shop.orders", "columns": [{"name": "id", "type": "long"}]},
        headers=login,
    )
    assert made.status_code == 201, made.text
    service.client.post("/v1/pipeline/pause", json={"topic": "acme.shop.orders"}, headers=login)
    assert service.client.delete("/v1/topics/acme.shop.orders", headers=login).status_code == 200
    found = [each for each in audit(service) if each.step == "end"]
    assert [(each.action, each.subject, each.result) for each in found] == [
        ("token.create", "", "done"),
        ("topic.create", "acme.shop.orders", "done"),
        ("pipeline.pause", "acme.shop.orders", "done"),
        ("topic.delete", "acme.shop.orders", "done"),
    ]
    assert found[0].who.kind == "user"
    for each in found[1:]:
        who = each.who
        assert (who.kind, who.name, who.token) == ("token", "ci", token_id)
        assert (who.tenant, who.address, who.door) == ("acme", "127.0.0.1", "http")
    assert secret not in (service.intake.settings.data / "_calve/audit/audit.jsonl").read_text()


def test_what_is_refused_at_the_door_is_recorded_with_who_tried(service: Serving) -> None:
    secret, token_id = token(service, "produce", tenant="other")
    login = {"Authorization": f"Bearer {secret}"}
    assert service.client.delete("/v1/topics/acme.shop.orders", headers=login).status_code == 403
    admin, _ = token(service, "admin", tenant="other")
    login = {"Authorization": f"Bearer {admin}"}
    assert service.client.delete("/v1/topics/acme.shop.orders", headers=login).status_code == 404
    assert service.client.delete("/v1/topics/acme.shop.orders").status_code == 401
    denied, hidden = [each for each in audit(service) if each.step == "refused"]
    assert (denied.action, denied.subject, denied.who.token) == (
        "topic.delete", "acme.shop.orders", token_id,
    )  # fmt: skip
    assert str(denied.error).startswith("Denied: ")
    assert str(hidden.error).startswith("NotFound: ")


def test_what_is_done_over_flight_is_done_by_the_token(service: Serving) -> None:
    secret, token_id = token(service, "admin")
    weak, _ = token(service, "produce")
    with FlightServer(service.intake) as flight:
        with Client(flight.url, token=secret) as client:
            client.create_topic("acme.shop.orders", schema={"id": "long"})
        with Client(flight.url, token=weak) as client, pytest.raises(CalveError):
            client.delete_topic("acme.shop.orders")
    made = [each for each in audit(service) if each.action == "topic.create"]
    assert {(each.who.token, each.who.door, each.who.address) for each in made} == {
        (token_id, "flight", "127.0.0.1")
    }
    (refused,) = [each for each in audit(service) if each.step == "refused"]
    assert (refused.action, refused.subject) == ("topic.delete", "acme.shop.orders")


def test_refusals_cannot_fill_the_disk(service: Serving) -> None:
    secret, _ = token(service, "produce")
    login = {"Authorization": f"Bearer {secret}"}
    for _ in range(200):
        assert service.client.delete("/v1/topics/acme.shop.x", headers=login).status_code == 403
    refused = [each for each in audit(service) if each.step == "refused"]
    assert 100 <= len(refused) < 180
