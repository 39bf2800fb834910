"""The audit log at the doors: who asked over HTTP and Flight, from where, and what was refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from calve import Client
from calve.access import Caller, NewToken
from calve.access.token import digest_of, id_of
from calve.audit import Actor, actions, records
from calve.audit.trail import Record
from calve.errors import CalveError
from calve.ingest.flight import FlightServer
from calve.ingest.flight.actions import ACTIONS
from calve.ingest.http.routes import OPERATIONS
from calve.ingest.recording import HTTP_ACTIONS
from tests.conftest import MakeSettings
from tests.integration.access_site import ROWS, Site, access_site, bearer
from tests.integration.serving import Serving, serving
from tests.otlp_door import EXPORT, PROTOBUF, spans

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
READS = (".list", ".describe", ".show", ".original", ".status", ".ends", ".verify")


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
        ("token.create", "ci", "done"),
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


def test_who_made_a_token_is_found_by_its_id(service: Serving) -> None:
    secret, maker = token(service, "admin")
    login = {"Authorization": f"Bearer {secret}"}
    wish = {"name": "shop", "scopes": ["produce"]}
    made = service.client.post("/v1/tokens", json=wish, headers=login).json()
    assert service.client.delete(f"/v1/tokens/{made['id']}", headers=login).status_code == 200
    begun, ended, _, revoked = audit(service)[-4:]
    assert (begun.subject, begun.details["wanted"]["scopes"]) == ("shop", ["produce"])
    assert (ended.subject, ended.details["id"], ended.who.token) == ("shop", made["id"], maker)
    assert (revoked.action, revoked.subject) == ("token.revoke", made["id"])
    written = (service.intake.settings.data / "_calve/audit/audit.jsonl").read_text()
    assert made["secret"] not in written


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


def rows_over_http(site: Site, secret: str) -> None:
    sent = site.http.post("/v1/topics/made/rows", json=[{"id": 1}], headers=bearer(secret))
    assert sent.status_code == 200, sent.text


def messages_over_http(site: Site, secret: str) -> None:
    headers = {"Content-Type": "text/plain", **bearer(secret)}
    path = "/v1/topics/made/messages?create=true"
    assert site.http.post(path, content="hello", headers=headers).status_code == 200


def rows_over_flight(site: Site, secret: str) -> None:
    with Client(site.addresses.flight, token=secret) as client:
        client.produce("made", ROWS).result()


def spans_over_http(site: Site, secret: str) -> None:
    headers = {"Content-Type": PROTOBUF, **bearer(secret)}
    body = spans().SerializeToString()
    assert site.otlp_http.post("/v1/traces", content=body, headers=headers).status_code == 200


def spans_over_grpc(site: Site, secret: str) -> None:
    login = [("authorization", f"Bearer {secret}")]
    site.otlp_grpc.unary_unary(EXPORT)(spans().SerializeToString(), metadata=login, timeout=20)


@pytest.mark.parametrize(
    ("send", "door"),
    [
        (rows_over_http, "http"),
        (messages_over_http, "http"),
        (rows_over_flight, "flight"),
        (spans_over_http, "otlp_http"),
        (spans_over_grpc, "otlp_grpc"),
    ],
)
def test_a_topic_is_made_by_the_token_that_sent_its_first_rows(
    tmp_path: Path, send: Callable[[Site, str], None], door: str
) -> None:
    with access_site(tmp_path / "lake") as site:
        secret = site.token(("produce",))
        send(site, secret)
        made = list(records(tmp_path / "lake" / "_calve" / "audit"))[-1]
    assert (made.action, made.result) == ("topic.create", "done")
    assert made.who == Actor(
        kind="token",
        name="test",
        address="127.0.0.1",
        door=door,
        token=id_of(digest_of(secret)),
        tenant="acme",
    )


def test_refusals_cannot_fill_the_disk(service: Serving) -> None:
    secret, _ = token(service, "produce")
    login = {"Authorization": f"Bearer {secret}"}
    for _ in range(200):
        assert service.client.delete("/v1/topics/acme.shop.x", headers=login).status_code == 403
    refused = [each for each in audit(service) if each.step == "refused"]
    assert 100 <= len(refused) < 180
