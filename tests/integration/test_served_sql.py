"""SQL over the service: HTTP, Flight, the client and the command; bounded, shared, cancelled."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from calve.client import Client
from calve.errors import CalveError, InvalidRequest, MissingPart, NotFound, Overloaded
from calve.ingest.flight import FlightServer
from calve.query.queries import Queries, Question
from calve.query.stream import Stop
from calve.query.turns import Turns
from tests.commands import run_command
from tests.conftest import MakeSettings
from tests.fakes.delete_files import delete_equal
from tests.fakes.small_pipeline import drain
from tests.integration.serving import Serving, serving
from tests.servers import tcp

# Works for minutes, in little memory.
LONG = "SELECT sum(a.i * b.i % 7) FROM range(1000000) a(i), range(1000000) b(i)"
ROWS = '{"id": 1, "name": "Ada", "price": 1.5}\n{"id": 2, "name": null, "price": 2.5}\n'


@pytest.fixture
def service(make_settings: MakeSettings) -> Iterator[Serving]:
    settings = make_settings(
        ingest__http_port=0,
        ingest__flight_port=0,
        wal__free_bytes_min=0,
        query__rows_max=200_000,
        query__concurrent_max=2,
    )
    with serving(settings) as made:
        made.send("orders", ROWS.encode()).raise_for_status()
        yield made


@pytest.fixture
def client(service: Serving) -> Iterator[Client]:
    with FlightServer(service.intake) as server, Client(server.url) as made:
        yield made


def ask(service: Serving, sql: str, query: str = "", **more: Any) -> httpx.Response:
    return service.client.post(f"/v1/query{query}", json={"sql": sql, **more})


def threads() -> set[str]:
    return {each.name for each in threading.enumerate() if each.name.startswith("calve-http-query")}


def eventually(claim: Any, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_acknowledged_row_is_in_the_next_answer(service: Serving) -> None:
    count = "SELECT count(*) AS orders FROM orders"
    answer = ask(service, count)
    assert answer.json() == [{"orders": 2}]
    assert json.loads(answer.headers["Calve-As-Of"]) == [
        {"table": "orders", "snapshot_id": None, "committed": {"0": 0}, "durable": {"0": 2}}
    ]
    assert ask(service, count, fresh=False).status_code == 404
    drain(service.intake, service.intake.catalog, next(iter(service.intake.topics.list())).name)
    service.send("orders", b'{"id": 3}\n').raise_for_status()
    assert ask(service, count).json() == [{"orders": 3}]
    assert ask(service, count, fresh=False).json() == [{"orders": 2}]


def test_answers_come_in_every_format_with_their_types(service: Serving) -> None:
    sql = "SELECT id, price, name, [id] AS ids FROM orders ORDER BY id"
    rows = [
        {"id": 1, "price": 1.5, "name": "Ada", "ids": [1]},
        {"id": 2, "price": 2.5, "name": None, "ids": [2]},
    ]
    assert ask(service, sql).json() == rows
    lines = ask(service, sql, "?format=ndjson").text.splitlines()
    assert [json.loads(line) for line in lines] == rows
    arrow = pa.ipc.open_stream(ask(service, sql, "?format=arrow").content).read_all()
    parquet = pq.read_table(io.BytesIO(ask(service, sql, "?format=parquet").content))
    assert arrow.to_pylist() == parquet.to_pylist() == rows
    assert arrow.schema.field("id").type == parquet.schema.field("id").type == pa.int64()
    assert ask(service, sql, "?format=csv").text.splitlines()[1] == '1,1.5,"Ada","[1]"'
    assert ask(service, sql, "?format=table").text.split()[:2] == ["id", "price"]
    accepting = {"Accept": "text/csv"}
    answer = service.client.post("/v1/query", json={"sql": sql}, headers=accepting)
    assert answer.headers["content-type"].startswith("text/csv")
    assert ask(service, sql, "?format=xml").status_code == 400


def test_values_are_bound_and_not_pasted(service: Serving, client: Client) -> None:
    sql = "SELECT name FROM orders WHERE name = ? OR id = ?"
    assert ask(service, sql, parameters=["x' OR 1=1 --", 1]).json() == [{"name": "Ada"}]
    named = "SELECT name FROM orders WHERE id = $id"
    assert ask(service, named, parameters={"id": 1}).json() == [{"name": "Ada"}]
    assert list(client.sql(named, {"id": 1})) == [{"name": "Ada"}]
    for parameters in (None, [], [1, 2], {"other": 1}, [{"a": 1}]):
        answer = ask(service, named, parameters=parameters)
        assert answer.status_code == 400, parameters


def test_what_is_wrong_is_a_problem(service: Serving) -> None:
    wrong = {
        "SELECT * FROM nowhere": 404,
        "SELECT nothing FROM orders": 400,
        "DROP TABLE orders": 400,
        "SELECT * FROM range(1000001)": 400,
        "SELECT 1; SELECT 2": 400,
        "": 400,
    }
    for sql, status in wrong.items():
        answer = ask(service, sql)
        assert answer.status_code == status, sql
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_plan_is_shown_and_nothing_else_is_explained(service: Serving) -> None:
    (plan,) = ask(service, "EXPLAIN SELECT sum(id) FROM orders").json()
    assert "AGGREGATE" in plan["explain_value"]
    assert ask(service, "EXPLAIN ANALYZE SELECT sum(id) FROM orders").status_code == 200
    for sql in ("EXPLAIN DROP TABLE orders", "EXPLAIN COPY orders TO 'x'", "EXPLAIN EXPLAIN x"):
        assert ask(service, sql).status_code == 400


def test_the_client_and_the_command_ask_the_service(
    service: Serving,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = client.sql("SELECT id, price::DECIMAL(9, 2) AS price FROM orders ORDER BY id")
    assert rows.as_of[0].durable == {0: 2}
    assert rows.schema.field("price").type == pa.decimal128(9, 2)
    assert "2 rows" in repr(rows)
    streamed = client.sql("SELECT * FROM range(100000)")
    assert sum(map(len, streamed.batches())) == 100_000
    with pytest.raises(InvalidRequest, match="read already"):
        next(streamed.batches())
    with pytest.raises(NotFound, match="no table 'nowhere'"):
        client.sql("SELECT * FROM nowhere")
    with pytest.raises(InvalidRequest, match="more than 200,000 rows"):
        client.sql("SELECT * FROM range(10000000)").to_arrow()
    url = client._link.url
    question = ["SELECT id FROM orders WHERE id = ?", "--param", "2", "--json"]
    done = run_command(["calve", "sql", *question, "--server", url], monkeypatch, capsys)
    assert (done.code, done.json()) == (0, [{"id": 2}])
    assert f"through the service at {url}" in done.err


def test_a_table_that_only_spark_can_read_is_refused_with_the_way_to_read_it(
    service: Serving, client: Client
) -> None:
    (topic,) = service.intake.topics.list()
    drain(service.intake, service.intake.catalog, topic.name)
    table = service.intake.catalog.load_table(topic.name)
    before = table.current_snapshot()
    assert before is not None
    delete_equal(table, "id", [1])
    refused = ask(service, "SELECT count(*) AS orders FROM orders")
    assert refused.status_code == 501
    assert "only Spark can read this table: it has equality deletes" in refused.json()["detail"]
    assert "`calve sql` without --server" in refused.json()["hint"]
    with pytest.raises(MissingPart, match="only Spark can read"):
        client.sql("SELECT count(*) FROM orders")
    old = f"SELECT count(*) AS orders FROM orders AT (VERSION => {before.snapshot_id})"
    assert ask(service, old).json() == [{"orders": 2}]


def test_a_flight_client_that_goes_ends_its_query(service: Serving, client: Client) -> None:
    with ThreadPoolExecutor() as pool:
        with Client(client._link.url) as going:
            asked = pool.submit(going.sql, LONG)
            eventually(lambda: bool(service.intake.queries.list()))
            (running,) = service.intake.queries.list()
            service.intake.queries.cancel(running.id)
            with pytest.raises(InvalidRequest, match="cancelled"):
                asked.result()
        rows = client.sql("SELECT i, repeat('x', 1000) FROM range(100000) t(i)")
        next(rows.batches())
        del rows
    eventually(lambda: not service.intake.queries.list())


def test_a_service_far_away_is_reached(client: Client) -> None:
    port = urlsplit(client._link.url).port
    assert port is not None
    with (
        tcp.serve(port, connect_seconds=0.3) as far,
        Client(f"grpc://127.0.0.1:{far.port}") as asking,
    ):
        assert list(asking.sql("SELECT count(*) AS orders FROM orders")) == [{"orders": 2}]


def test_time_is_limited(make_settings: MakeSettings) -> None:
    settings = make_settings(query__time_ms_max=200)
    with ExitStack() as opened:
        from calve.tables.catalog import LakeCatalog

        catalog = opened.enter_context(LakeCatalog(settings))
        queries = Queries(settings, lambda: catalog)
        opened.callback(queries.close)
        started = time.monotonic()
        with pytest.raises(InvalidRequest, match="took longer than 200 ms"):
            queries.ask(Question(LONG))
        assert time.monotonic() - started < 5
        assert queries.list() == []


def test_each_client_has_its_turn_however_much_another_asks() -> None:
    turns = Turns(1, waiting_max=3)
    turns.take("busy", Stop(), 1)
    order: list[str] = []

    def wait(client: str) -> None:
        turns.take(client, Stop(), 10)
        order.append(client)
        turns.give()

    with ThreadPoolExecutor() as pool:
        waiting = []
        for number, client in enumerate(("busy", "busy", "other"), 1):
            waiting.append(pool.submit(wait, client))
            eventually(lambda number=number: turns.waiting_count == number)
        with pytest.raises(Overloaded, match="3 queries are waiting"):
            turns.take("late", Stop(), 1)
        turns.give()
        for each in waiting:
            each.result()
    assert order == ["busy", "other", "busy"]
    turns.take("next", Stop(), 1)
    with pytest.raises(Overloaded, match="no turn within"):
        turns.take("next", Stop(), 0.01)
    stopped = Stop()
    stopped.end(CalveError("enough"))
    with pytest.raises(CalveError, match="enough"):
        turns.take("next", stopped, 10)
    assert turns.waiting_count == 0


def test_many_small_queries_at_once_are_all_answered(service: Serving) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda _: ask(service, "SELECT max(id) AS m FROM orders").json(), range(32))
        )
    assert found == [[{"m": 2}]] * 32
    eventually(lambda: not threads())
