"""A tenant reaches its own data only: attempts of one tenant on another, through every door.

What is tried is tried twice, on a topic of the other tenant and on one that is not there: whoever
asks must not be able to tell which is which.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import msgspec
import pyarrow as pa
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from pyarrow import flight

from calve import Client
from calve.access.tickets import KEY_NAME, TicketSigner
from calve.clock import SystemClock
from calve.errors import CalveError, Conflict, NotFound, Unauthenticated
from calve.model import TableName
from calve.protocol import LogRange
from calve.query.queries import Question
from calve.settings import Secret
from calve.sources.entries import Sources
from calve.sources.place import LogPlace, LogSpan
from calve.state import SubscriptionName
from tests.integration.access_site import OTHER, OWN, ROWS, Site, access_site, bearer
from tests.integration.flight_calls import refused

THEIRS, NOBODYS = f"{OTHER}.default.orders", f"{OTHER}.default.nothing"
LOGS = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with access_site(tmp_path_factory.mktemp("tenants") / "lake") as site:
        site.tokens = {OWN: site.token(), OTHER: site.token(tenant=OTHER)}
        with client(site, OTHER).subscribe("orders", "billing", follow=False) as theirs:
            assert len(list(theirs)) == 1
        yield site


def client(site: Site, tenant: str = OWN) -> Client:
    return Client(site.addresses.flight, token=site.tokens[tenant])


def headers(site: Site) -> dict[str, str]:
    return bearer(site.tokens[OWN])


HTTP: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/v1/topics/{}/rows", [{"id": 1}]),
    ("GET", "/v1/topics/{}/rows", None),
    ("POST", "/v1/topics/{}/messages", {}),
    ("GET", "/v1/topics/{}", None),
    ("PATCH", "/v1/topics/{}", {}),
    ("DELETE", "/v1/topics/{}", None),
    ("POST", "/v1/topics/{}/flush?timeout_ms=0", None),
    ("GET", "/v1/topics/{}/stream?follow=false", None),
    ("GET", "/v1/topics/{}/subscriptions", None),
    ("GET", "/v1/topics/{}/subscriptions/billing", None),
    ("DELETE", "/v1/topics/{}/subscriptions/billing", None),
    ("GET", "/v1/topics/{}/subscriptions/billing/stream?follow=false", None),
    ("POST", "/v1/topics/{}/subscriptions/billing/ack", {"id": "0-0-0:1"}),
    ("POST", "/v1/topics/{}/subscriptions/billing/seek", {"to": "earliest"}),
    ("POST", "/v1/topics/{}/subscriptions/billing/reset", None),
    ("GET", "/v1/topics/{}/verify", None),
    ("GET", "/v1/topics/{}/dead-letters", None),
    ("GET", "/v1/topics/{}/dead-letters/0", None),
    ("POST", "/v1/topics/{}/dead-letters/replay", {"all": True}),
    ("POST", "/v1/topics/{}/dead-letters/discard", {"all": True}),
    ("GET", "/v1/pipeline?topic={}", None),
)


@pytest.mark.parametrize(("method", "path", "body"), HTTP, ids=lambda each: str(each)[:50])
def test_another_tenants_topic_is_answered_over_http_like_one_that_is_not_there(
    site: Site, method: str, path: str, body: Any
) -> None:
    answers = []
    for name in (THEIRS, NOBODYS):
        answer = site.http.request(method, path.format(name), headers=headers(site), json=body)
        assert answer.status_code == 404
        said = {key: value for key, value in answer.headers.items() if key != "date"}
        del said["content-length"]
        answers.append((answer.text.replace(name, "X"), said))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("verb", ["pause", "resume", "skip"])
def test_another_tenants_topic_is_not_directed(site: Site, verb: str) -> None:
    answers = set()
    for name in (THEIRS, NOBODYS):
        body = {"topic": name, **({"to": 1} if verb == "skip" else {})}
        answer = site.http.post(f"/v1/pipeline/{verb}", headers=headers(site), json=body)
        assert answer.status_code == 404
        answers.add(answer.text.replace(name, "X"))
    assert len(answers) == 1
    orders = site.intake.state.pipeline_orders()
    assert not orders.is_paused
    assert not orders.skips


def got(site: Site, **ticket: object) -> Any:
    wanted = flight.Ticket(json.dumps(ticket).encode())
    return site.flight.do_get(wanted, site.options(site.tokens[OWN])).read_all()


def acted(site: Site, action: str, **body: object) -> Any:
    wanted = flight.Action(action, json.dumps(body).encode())
    results = site.flight.do_action(wanted, site.options(site.tokens[OWN]))
    return json.loads(next(iter(results)).body.to_pybytes())


def sent(site: Site, name: str) -> None:
    place = flight.FlightDescriptor.for_path(*name.split("."))
    writer, reader = site.flight.do_put(place, ROWS.schema, site.options(site.tokens[OWN]))
    writer.write_batch(ROWS)
    writer.done_writing()
    reader.read()
    writer.close()


ONE = {"subscription": "billing"}
FLIGHT: dict[str, Callable[[Site, str], object]] = {
    "put": sent,
    "rows": lambda site, name: got(site, topic=name),
    "frames": lambda site, name: got(site, topic=name, form="frames"),
    "stream": lambda site, name: got(site, kind="stream", topic=name, follow=False),
    "subscription": lambda site, name: got(site, kind="stream", topic=name, **ONE),
    "info": lambda site, name: site.flight.get_flight_info(
        flight.FlightDescriptor.for_path(*name.split(".")), site.options(site.tokens[OWN])
    ),
    "describe": lambda site, name: acted(site, "topic.describe", topic=name),
    "create": lambda site, name: acted(site, "topic.create", topic=name, schema={"id": "long"}),
    "alter": lambda site, name: acted(site, "topic.alter", topic=name),
    "delete": lambda site, name: acted(site, "topic.delete", topic=name),
    "flush": lambda site, name: acted(site, "flush", topic=name, timeout_seconds=0),
    "verify": lambda site, name: acted(site, "topic.verify", topic=name),
    "stats": lambda site, name: acted(site, "stats", topic=name),
    "ack": lambda site, name: acted(site, "subscription.ack", topic=name, place="0-0-0:1", **ONE),
    "seek": lambda site, name: acted(site, "subscription.seek", topic=name, to="latest", **ONE),
    "reset": lambda site, name: acted(site, "subscription.reset", topic=name, **ONE),
    "forget": lambda site, name: acted(site, "subscription.delete", topic=name, **ONE),
    "subscriptions": lambda site, name: acted(site, "subscription.list", topic=name),
    "letters": lambda site, name: acted(site, "dead_letter.list", topic=name),
    "replay": lambda site, name: acted(site, "dead_letter.replay", topic=name, all=True),
    "pipeline": lambda site, name: acted(site, "pipeline.status", topic=name),
}


@pytest.mark.parametrize("attempt", FLIGHT)
def test_another_tenants_topic_is_answered_over_flight_like_one_that_is_not_there(
    site: Site, attempt: str
) -> None:
    answers = set()
    for name in (THEIRS, NOBODYS):
        error = told(lambda name=name: FLIGHT[attempt](site, name))  # type: ignore[misc]
        answers.add(error.replace(name, "X"))
    assert len(answers) == 1


def told(work: Callable[[], object]) -> str:
    """What a call that must fail says, as not found."""
    try:
        work()
    except KeyError as error:  # Arrow's NOT_FOUND
        return str(error).split("Detail:")[0]
    except flight.FlightError as error:
        return str(error.extra_info or error)
    pytest.fail("it was answered")


def test_nothing_of_another_tenant_is_looked_up_before_it_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the time that a refusal takes tells nothing either."""
    asked: list[object] = []
    of_topic = type(site.intake.state).topic
    site.http.get("/v1/topics/orders", headers=headers(site))  # the token is known from here on

    def noted(state: Any, name: TableName) -> Any:
        asked.append(name)
        return of_topic(state, name)

    monkeypatch.setattr(type(site.intake.state), "topic", noted)
    for name in (THEIRS, NOBODYS):
        assert site.http.get(f"/v1/topics/{name}", headers=headers(site)).status_code == 404
    assert asked == []
    assert site.http.get("/v1/topics/orders", headers=headers(site)).status_code == 200
    assert {str(name) for name in asked} == {"acme.default.orders"}


def test_lists_show_the_tenants_own(site: Site) -> None:
    own = f"{OWN}.default.orders"
    for query in ("", f"?tenant={OTHER}", "?tenant=acme"):
        found = site.http.get(f"/v1/topics{query}", headers=headers(site)).json()["topics"]
        assert [each["name"] for each in found] == ([] if OTHER in query else [own])
    assert [each["name"] for each in acted(site, "topic.list")] == [own]
    for criteria in (b"", OTHER.encode(), b"*"):
        infos = site.flight.list_flights(criteria, site.options(site.tokens[OWN]))
        assert all(info.descriptor.path[0] == OWN.encode() for info in infos)
    assert site.http.get("/v1/subscriptions", headers=headers(site)).json() == {"subscriptions": []}
    partitions = acted(site, "pipeline.status")["partitions"]
    assert {each["topic"] for each in partitions} == {own}
    status = acted(site, "status")
    assert [each["name"] for each in status["topics"]] == [own]
    assert status["log"]["path"] == ""
    assert OTHER not in json.dumps(status)
    assert site.http.get("/v1/status", headers=headers(site)).json()["topics"] == 1
    streams = acted(site, "log.ends")["streams"]
    topic = site.intake.topics.topic(TableName.parse(own))
    assert list(streams) == [str(topic.partitions[0].stream_id)]
    tokens = site.http.get("/v1/tokens", headers=headers(site)).json()["tokens"]
    assert {each["tenant"] for each in tokens} == {OWN}


@pytest.mark.parametrize(
    "sql",
    [
        "select * from {}",
        "select * from {}__dead_letters",
        "with mine as (select * from {}) select * from mine",
        "select (select count(*) from {})",
        "select * from orders where id in (select id from {})",
        "select * from orders union all select * from {}",
        "select * from {} at (version => 1)",
        "explain select * from {}",
    ],
)
@pytest.mark.parametrize("fresh", [True, False])
def test_sql_has_no_tables_but_the_tenants_own(site: Site, sql: str, fresh: bool) -> None:
    name = TableName.parse(f"{OTHER}.default.hidden")
    body = {"sql": sql.format(name.full), "fresh": fresh}
    before = site.http.post("/v1/query", headers=headers(site), json=body)
    site.produce(name.full)
    after = site.http.post("/v1/query", headers=headers(site), json=body)
    theirs = site.http.post("/v1/query", headers=bearer(site.tokens[OTHER]), json=body)
    site.intake.delete_topic(name)
    assert before.status_code == 404
    assert (after.status_code, after.text) == (before.status_code, before.text)
    if sql == "select * from {}" and fresh:
        assert theirs.status_code == 200  # so it was there


def test_sql_means_the_tenants_own_by_a_short_name(site: Site) -> None:
    for tenant in (OWN, OTHER):
        rows = client(site, tenant).sql("select distinct _calve_partition, secret from orders")
        assert {row["secret"] for row in rows} == {"alpha", "beta"}
        names = client(site, tenant).sql("show tables")
        assert [row["name"] for row in names] == [f"{tenant}.default.orders"]
    body = {"sql": "select 1", "tenant": OTHER}
    assert site.http.post("/v1/query", headers=headers(site), json=body).status_code == 200
    body = {"sql": f"select * from {THEIRS}", "tenant": OTHER}
    assert site.http.post("/v1/query", headers=headers(site), json=body).status_code == 404


def test_queries_of_others_are_neither_seen_nor_ended(site: Site) -> None:
    other = site.intake.doorkeeper.caller(f"Bearer {site.tokens[OTHER]}", "")
    answer = site.intake.queries.ask(
        Question("select n, n + 1, n + 2 from range(900000) as t(n)", caller=other, client="x")
    )
    try:
        assert site.http.get("/v1/queries", headers=headers(site)).json() == {"queries": []}
        for method in ("GET", "DELETE"):
            found = site.http.request(method, f"/v1/queries/{answer.id}", headers=headers(site))
            assert found.status_code == 404
        mine = bearer(site.tokens[OTHER])
        assert len(site.http.get("/v1/queries", headers=mine).json()["queries"]) == 1
    finally:
        answer.close()


def test_a_subscription_of_the_same_name_is_another_tenants_own(site: Site) -> None:
    theirs = SubscriptionName.parse(TableName.parse(THEIRS), "billing")
    before = site.intake.state.positions(theirs)
    with client(site).subscribe("orders", "billing", follow=False) as mine:
        for batch in mine:
            mine.ack(batch)
    client(site).subscriptions.reset("orders", "billing")
    client(site).subscriptions.delete("orders", "billing")
    assert site.intake.state.positions(theirs) == before
    assert len(client(site, OTHER).subscriptions.list()) == 1


def test_a_short_name_is_in_the_tokens_tenant_and_dataset_at_every_door(site: Site) -> None:
    token = site.token(dataset="sales")
    with Client(site.addresses.flight, token=token) as mine:
        mine.produce("visits", [{"id": 1}]).result()
        mine.produce(f"{OWN}.sales.visits", [{"id": 2}]).result()
    site.http.post("/v1/topics/visits/rows", headers=bearer(token), json=[{"id": 3}])
    with Client(site.addresses.flight, token=token) as mine:
        assert mine.stats("visits")["topic"] == "acme.sales.visits"
        assert len(mine.sql("select * from visits").to_arrow()) == 3
        assert len(mine.read("visits")) == 3
        assert "acme.sales.visits" in mine.topics()
    assert site.intake.topics.find(TableName.parse("visits")) is None
    site.intake.delete_topic(TableName.parse("acme.sales.visits"))


def test_a_token_for_some_topics_reaches_these_alone(site: Site) -> None:
    token = site.token(topics=("visits_*",))
    with Client(site.addresses.flight, token=token) as mine:
        mine.produce("visits_1", [{"id": 1}]).result()
        with pytest.raises(NotFound):
            mine.produce("orders", ROWS).result()
        with pytest.raises(NotFound, match="there is no table"):
            mine.sql("select * from orders").to_arrow()
        assert mine.topics() == ["acme.default.visits_1"]
        assert len(mine.sql("show tables")) == 1
    site.intake.delete_topic(TableName.parse("acme.default.visits_1"))


def test_telemetry_goes_to_the_tenant_of_the_token(site: Site) -> None:
    body = ExportLogsServiceRequest(
        resource_logs=[{"scope_logs": [{"log_records": [{"body": {"string_value": "hello"}}]}]}]  # type: ignore[list-item]
    ).SerializeToString()
    token = site.token(("produce",), dataset="own")
    sent = [("authorization", f"Bearer {token}")]
    export = site.otlp_grpc.unary_unary(LOGS)
    export(body, metadata=sent, timeout=20)
    export(body, metadata=[*sent, ("x-calve-dataset", "apps")], timeout=20)
    kind = {"Content-Type": "application/x-protobuf", "x-calve-dataset": "web"}
    answer = site.otlp_http.post("/v1/logs", headers={**bearer(token), **kind}, content=body)
    assert answer.status_code == 200
    for dataset in ("own", "apps", "web"):
        name = TableName(OWN, dataset, "logs")
        assert site.intake.offsets(name).durable == 1
        site.intake.delete_topic(name)
    few = site.token(("produce",), topics=("orders",))
    with pytest.raises(grpc.RpcError) as raised:
        export(body, metadata=[("authorization", f"Bearer {few}")], timeout=20)
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    assert site.intake.topics.find(TableName(OWN, "default", "logs")) is None


def test_no_name_of_another_tenant_is_suggested(site: Site) -> None:
    site.intake.submit(TableName.parse(f"{OTHER}.default.invoices"), ROWS).wait()
    answer = site.http.get(f"/v1/topics/{OWN}.default.invoice", headers=headers(site))
    assert answer.status_code == 404
    assert OTHER not in answer.text
    body = {"sql": "select * from invoice"}
    answer = site.http.post("/v1/query", headers=headers(site), json=body)
    assert answer.status_code == 404
    assert OTHER not in answer.text


def test_a_whole_lake_is_not_directed_by_a_tenant(site: Site) -> None:
    for verb in ("pause", "resume"):
        answer = site.http.post(f"/v1/pipeline/{verb}", headers=headers(site), json={})
        assert answer.status_code == 403
    operator = bearer(site.token(tenant="*"))
    assert site.http.post("/v1/pipeline/resume", headers=operator, json={}).status_code == 200


@pytest.mark.parametrize(
    ("wish", "status"),
    [
        ({"tenant": "*"}, 403),
        ({"tenant": OTHER}, 403),
        ({"tenant": OWN}, 201),
        ({}, 201),
        ({"scopes": ["open"]}, 400),
        ({"scopes": ["any"]}, 400),
    ],
)
def test_a_tenants_admin_makes_tokens_of_the_tenant_alone(
    site: Site, wish: dict[str, object], status: int
) -> None:
    body = {"name": "more", "scopes": ["query"], **wish}
    answer = site.http.post("/v1/tokens", headers=headers(site), json=body)
    assert answer.status_code == status
    if status == 201:
        made = answer.json()
        assert made["tenant"] == OWN
        assert site.http.get("/v1/queries", headers=bearer(made["secret"])).status_code == 200
        gone = site.http.delete(f"/v1/tokens/{made['id']}", headers=headers(site))
        assert gone.json() == {key: value for key, value in made.items() if key != "secret"}
        assert site.http.get("/v1/queries", headers=bearer(made["secret"])).status_code == 401


def span(site: Site, tenant: str = OWN) -> LogSpan:
    topic = site.intake.topics.topic(TableName(tenant, "default", "orders"))
    binding = topic.partitions[0]
    place = LogPlace(
        log_id=binding.log_id,
        stream_id=binding.stream_id,
        directory="/nowhere",
        flight=site.addresses.flight,
    )
    return LogSpan(topic.name, 0, place, 0, 2)


def signed(site: Site, token: str | None = None, **changed: object) -> dict[str, Any]:
    """A ticket as the pipeline signs it for its executors."""
    signer = TicketSigner(
        site.intake.state.signing_key(KEY_NAME), SystemClock(), Secret(token) if token else None
    )
    found: dict[str, Any] = msgspec.to_builtins(signer.signed(span(site).range))
    return {**found, **changed}


def read_with(site: Site, ticket: dict[str, Any]) -> pa.Table:
    return site.flight.do_get(flight.Ticket(json.dumps(ticket).encode())).read_all()


def test_an_executor_reads_its_range_with_a_signed_ticket_and_no_token(site: Site) -> None:
    assert read_with(site, signed(site)).num_rows == 1
    token = site.token(("pipeline",), tenant="*")
    ticket = signed(site, token)
    with Sources() as sources:
        entries = list(sources.entries(span(site)._replace(ticket=msgspec.json.encode(ticket))))
    assert [entry.end_offset for entry in entries] == [2]
    with Sources() as sources, pytest.raises(Unauthenticated):
        list(sources.entries(span(site)))
    with Sources(Secret(token)) as sources:
        assert len(list(sources.entries(span(site)))) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"from": 1},
        {"to": 1},
        {"topic": THEIRS},
        {"topic": "orders"},
        {"form": "rows"},
        {"partition": None},
        {"stream": None},
        {"expires_at": 99999999999},
        {"expires_at": None},
        {"token": "0123456789abcdef"},
        {"mac": "0" * 64},
        {"mac": ""},
        {"mac": "\ud7ff"},
    ],
    ids=str,
)
def test_a_ticket_that_was_changed_does_not_count(site: Site, changed: dict[str, Any]) -> None:
    ticket = signed(site, **changed)
    assert isinstance(refused(lambda: read_with(site, ticket)), Unauthenticated)


def test_a_ticket_ends_with_its_time_and_with_its_token(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = site.token(("pipeline",))
    ticket = signed(site, token)
    assert read_with(site, ticket).num_rows == 1
    site.revoke(token)
    assert isinstance(refused(lambda: read_with(site, ticket)), Unauthenticated)
    other = signed(site, site.token(("pipeline",), tenant=OTHER))
    with pytest.raises(flight.FlightError, match="there is no topic acme"):
        read_with(site, other)
    no_pipeline = signed(site, site.token(("subscribe",)))
    with pytest.raises(flight.FlightUnauthorizedError):
        read_with(site, no_pipeline)
    monkeypatch.setattr("calve.access.tickets.SECONDS", -1)
    late = signed(site)
    assert isinstance(refused(lambda: read_with(site, late)), Unauthenticated)


def test_a_range_needs_the_scope_of_its_form(site: Site) -> None:
    wanted = LogRange(topic=f"{OWN}.default.orders")
    assert wanted.mac is None
    with Client(site.addresses.flight, token=site.token(("subscribe",))) as reader:
        assert len(reader.read("orders")) == 2
    with pytest.raises(CalveError):
        Client(site.addresses.flight, token=site.token(("produce",))).read("orders")


def test_what_is_written_for_a_tenant_stays_its_own(site: Site) -> None:
    """The other way round: what one has sent, the other does not get."""
    with client(site) as mine:
        mine.produce("orders", [{"id": 77, "secret": "gamma"}]).result()
        found = mine.sql("select * from orders where id = 77").to_arrow()
        assert len(found) == 1
    with client(site, OTHER) as theirs:
        assert len(theirs.sql("select * from orders where id = 77").to_arrow()) == 0
        assert 77 not in theirs.read("orders")["id"].to_pylist()
    with pytest.raises((Conflict, NotFound)):
        client(site, OTHER).create_topic(f"{OWN}.default.orders", schema={"id": "long"})
