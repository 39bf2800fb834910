"""Topics, messages, reading, flush and health over HTTP, and the document that tells of them."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from calve.access import Caller
from calve.errors import Unavailable
from calve.ingest.flight.actions import perform
from calve.ingest.http.routes import OPERATIONS
from calve.model import TableName
from calve.topics import TopicSpec
from tests.conftest import MakeSettings
from tests.integration.serving import NDJSON, Serving, as_bytes, serving

EVENTS = TableName.parse("events")
ARROW = "application/vnd.apache.arrow.stream"
SEVERAL = "application/vnd.calve.messages+json"


def publish(service: Serving, offset: int) -> None:
    """What the pipeline does after a commit."""
    topic = service.intake.topics.topic(EVENTS)
    log_id = topic.partitions[0].log_id
    service.intake.state.publish_committed(topic.id, 0, log_id=log_id, offset=offset)


def test_http_and_flight_show_the_same_topic(service: Serving) -> None:
    columns = [{"name": "id", "type": "long", "required": True}, {"name": "at", "type": "date"}]
    service.client.post("/v1/topics", json={"name": "events", "columns": columns})
    over_http = service.client.get("/v1/topics/events").json()["topic"]
    body = b'{"topic": "events"}'
    over_flight = json.loads(perform(service.intake, Caller.of_host(), "topic.describe", body))
    del over_flight["offsets"]
    assert over_http == over_flight
    assert over_http["columns"][1] == {"name": "at", "type": "date", "required": False}


def test_a_topic_is_created_described_altered_and_deleted(service: Serving) -> None:
    client = service.client
    wanted = {
        "name": "acme.sales.orders",
        "columns": [
            {"name": "id", "type": "long", "required": True, "doc": "the order"},
            {"name": "at", "type": "timestamptz"},
        ],
        "partition_by": ["day(at)"],
        "properties": {"owner": "me"},
        "on_unknown_column": "ignore",
        "flush": {"rows_max": 7},
    }
    made = client.post("/v1/topics", json=wanted)
    assert made.status_code == 201, made.text
    assert client.post("/v1/topics", json=wanted).status_code == 200
    assert client.post("/v1/topics", json={**wanted, "sort_by": ["id"]}).status_code == 409
    path = "/v1/topics/acme.sales.orders"
    described = client.get(path).json()
    assert described["topic"]["columns"][0] == {"name": "id", "type": "long", "required": True}
    assert described["topic"]["partition_by"] == ["day(at)"]
    assert described["topic"]["flush"]["rows_max"] == 7
    assert described["offsets"]["durable"] == 0
    change = {
        "on_bad_row": "dead_letter",
        "properties": {"owner": None},
        "flush": {"interval_ms": 20},
        "add_columns": [{"name": "note", "type": "string"}],
        "rename_columns": {"at": "moment"},
    }
    refused = client.patch(path, json=change)
    assert refused.status_code in {400, 422}, "rows are partitioned by it"
    del change["rename_columns"]
    altered = client.patch(path, json=change).json()
    assert [column["name"] for column in altered["columns"]] == ["id", "at", "note"]
    assert altered["properties"] == {}
    assert (altered["flush"]["rows_max"], altered["flush"]["interval_ms"]) == (7, 20)
    assert [each["name"] for each in client.get("/v1/topics").json()["topics"]] == [
        "acme.sales.orders"
    ]
    assert client.get("/v1/topics?tenant=other").json()["topics"] == []
    assert client.delete(path).status_code == 200
    assert client.get(path).status_code == 404
    assert client.delete(path).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "x"},
        {"name": "x", "columns": []},
        {"name": "x", "columns": [{"name": "id", "type": "no such type"}]},
        {"name": "x", "columns": [{"name": "_calve_offset", "type": "long"}]},
        {"name": "x", "columns": [{"name": "id", "type": "long"}], "other": 1},
        {"name": "..", "columns": [{"name": "id", "type": "long"}]},
        {"name": "x", "kind": "messages", "columns": [{"name": "id", "type": "long"}]},
        {"name": "x", "columns": [{"name": "u", "type": "uuid"}], "partition_by": ["u"]},
        {"name": "x", "columns": [{"name": "id", "type": "long"}], "partition_by": ["nothing(id)"]},
        {"name": "x", "columns": [{"name": "id", "type": "long"}], "retention_seconds": 0},
        {"name": "x", "columns": [{"name": "id", "type": "long"}], "flush": {"rows_max": 0}},
        [],
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_a_reason(service: Serving, body: object) -> None:
    answer = service.client.post("/v1/topics", json=body)
    assert answer.status_code in {400, 422}, answer.text
    assert answer.json()["detail"]
    assert service.intake.topics.list() == []


def test_rows_are_read_a_page_at_a_time(service: Serving) -> None:
    for n in range(5):
        service.send("events", b'{"id":%d}\n{"id":%d}\n' % (2 * n, 2 * n + 1))
    page = service.client.get("/v1/topics/events/rows?from=3&limit=4").json()
    assert [(row["offset"], row["value"]["id"]) for row in page["rows"]] == [
        (3, 3), (4, 4), (5, 5), (6, 6),
    ]  # fmt: skip
    assert (page["next"], page["first"], page["end"]) == (7, 0, 10)
    assert page["rows"][0]["partition"] == 0
    at = datetime.fromisoformat(page["rows"][0]["ingested_at"])
    assert abs((datetime.now(UTC) - at).total_seconds()) < 60
    rest = service.client.get(f"/v1/topics/events/rows?from={page['next']}").json()
    assert [row["value"]["id"] for row in rest["rows"]] == [7, 8, 9]
    assert service.client.get("/v1/topics/events/rows?from=10").json()["rows"] == []
    beyond = service.client.get("/v1/topics/events/rows?from=99").json()
    assert (beyond["rows"], beyond["next"]) == ([], 99)


def test_rows_are_read_as_lines_and_as_arrow(service: Serving) -> None:
    service.send("events", b'{"id":1}\n')
    service.send("events", b'{"id":2,"name":"Bob"}\n')
    lines = service.client.get("/v1/topics/events/rows", headers={"Accept": NDJSON})
    assert [line[:25] for line in lines.text.splitlines()] == [
        '{"partition":0,"offset":0', '{"partition":0,"offset":1',
    ]  # fmt: skip
    assert (lines.headers["Calve-Next"], lines.headers["Calve-End"]) == ("2", "2")
    arrow = service.client.get("/v1/topics/events/rows", headers={"Accept": f"{ARROW}, */*;q=0.1"})
    table = pa.ipc.open_stream(arrow.content).read_all()
    assert table.column("_calve_offset").to_pylist() == [0, 1]
    assert table.select(["id", "name"]).to_pylist() == [
        {"id": 1, "name": None},
        {"id": 2, "name": "Bob"},
    ]
    empty = service.client.get("/v1/topics/events/rows?from=2", headers={"Accept": ARROW})
    assert pa.ipc.open_stream(empty.content).read_all().num_rows == 0
    asked = service.client.get("/v1/topics/events/rows", headers={"Accept": "image/png"})
    assert asked.status_code == 406


def test_values_of_every_type_are_readable_as_json(service: Serving) -> None:
    columns = {
        "d": "decimal(10,2)", "t": "timestamptz", "day": "date", "b": "binary", "u": "uuid",
        "m": "map<string, long>", "s": "struct<a: long>", "l": "list<double>", "x": "double",
    }  # fmt: skip
    service.intake.create_topic(EVENTS, TopicSpec(schema=columns))
    row = {
        "d": "1.50", "t": "2026-01-31T10:00:00Z", "day": "2026-01-31", "b": "AP8=",
        "u": "123e4567-e89b-12d3-a456-426614174000", "m": {"k": 1}, "s": {"a": 1}, "l": [1.5],
        "x": 0.1,
    }  # fmt: skip
    answer = service.client.post("/v1/topics/events/rows", json=[row])
    assert answer.status_code == 200, answer.text
    page = service.client.get("/v1/topics/events/rows").json()
    assert page["rows"][0]["value"] == row
    assert service.rows("events")[0]["d"] == Decimal("1.50")


def test_rejected_rows_are_passed_over(service: Serving) -> None:
    service.send("events", b'{"id":1}\nx\n', query="?on_error=dead_letter")
    service.send("events", b'{"id":2}\n')
    page = service.client.get("/v1/topics/events/rows").json()
    assert [row["offset"] for row in page["rows"]] == [0, 2]
    rejected = service.client.get("/v1/topics/events/rows?from=1&limit=1").json()
    assert [row["offset"] for row in rejected["rows"]] == [2]


@pytest.mark.parametrize("query", ["from=-1", "from=x", "limit=0", "limit=10001", f"from={2**63}"])
def test_a_page_that_cannot_be_is_refused(service: Serving, query: str) -> None:
    service.send("events", b'{"id":1}')
    assert service.client.get(f"/v1/topics/events/rows?{query}").status_code == 400


def test_a_flush_waits_until_the_rows_are_in_the_table(service: Serving) -> None:
    service.send("events", b'{"id":1}\n{"id":2}\n')
    early = service.client.post("/v1/topics/events/flush?timeout_ms=50")
    assert early.status_code == 503
    assert early.json()["context"] == {"committed": "0", "wanted": "2", "partitions": "0"}
    assert list(service.intake.state.flush_requests().values()) == [2]
    threading.Timer(0.3, publish, [service, 2]).start()
    flushed = service.client.post("/v1/topics/events/flush?timeout_ms=20000")
    assert flushed.status_code == 200
    assert flushed.json()["committed"] == 2
    assert service.client.post("/v1/topics/nothing/flush").status_code == 404
    assert service.client.post("/v1/topics/events/flush?timeout_ms=-1").status_code == 400


def test_a_message_is_any_body_with_headers(service: Serving) -> None:
    headers = as_bytes(
        {
            "Content-Type": "application/json",
            "Calve-Key": "schlüssel".encode(),
            "Calve-Attributes": '{"source": "web", "place": "v1 é"}'.encode(),
            "Calve-Schema": "straße-value/3".encode(),
            "Calve-Publish-Time": "2026-01-31T10:00:00Z",
            "Calve-Producer": "p",
            "Calve-Sequence": "0",
        }
    )
    path = "/v1/topics/inbox/messages"
    answer = service.client.post(path, content=b'{"any": "thing"}', headers=headers)
    assert answer.status_code == 200, answer.text
    assert service.client.post(path, content=b'{"any": "thing"}', headers=headers).json()["repeat"]
    service.client.post(path, content=b"")
    first, second = service.rows("inbox")
    assert first == {
        "payload": b'{"any": "thing"}',
        "key": "schlüssel",
        "attributes": [("source", "web"), ("place", "v1 é")],
        "content_type": "application/json",
        "schema": "straße-value/3",
        "publish_time": datetime(2026, 1, 31, 10, tzinfo=UTC),
        "producer": "p",
        "sequence": 0,
    }
    assert (second["payload"], second["content_type"]) == (b"", None)
    assert second.get("schema") is None
    assert service.client.get("/v1/topics/inbox").json()["topic"]["kind"] == "messages"


def test_several_messages_go_in_or_none(service: Serving) -> None:
    def send(content: object) -> int:
        headers = {"Content-Type": SEVERAL}
        path = "/v1/topics/inbox/messages"
        return service.client.post(path, json=content, headers=headers).status_code

    payload = base64.b64encode(b"\0\xff").decode()
    assert (
        send([{"payload": payload, "key": "k"}, {"payload": "", "attributes": {"a": "b"}}]) == 200
    )
    assert send([{"payload": payload}, {"payload": "not base64!"}]) == 400
    assert send([{"payload": payload}, {"key": "no payload"}]) == 400
    assert send([]) == 400
    assert send({"payload": payload}) == 400
    assert [row["payload"] for row in service.rows("inbox")] == [b"\0\xff", b""]


def test_messages_and_rows_do_not_mix(service: Serving) -> None:
    service.send("events", b'{"id":1}')
    assert service.client.post("/v1/topics/events/messages", content=b"x").status_code == 409
    bad = {"Calve-Attributes": "no object"}
    assert service.client.post("/v1/topics/a/messages", headers=bad).status_code == 400
    bad = {"Calve-Publish-Time": "yesterday"}
    assert service.client.post("/v1/topics/a/messages", headers=bad).status_code == 400


def test_the_service_tells_how_it_is(service: Serving) -> None:
    service.send("events", b'{"id":1}')
    status = service.client.get("/v1/status").json()
    assert status["topics"] == 1
    assert status["log_id"] == str(service.intake.log.log_id)
    assert (status["memory_bytes"], status["problems"]) == (0, [])
    assert service.client.get("/health/live").json() == {"status": "live"}
    assert service.client.get("/health/ready").json() == {"status": "ready"}


def test_the_document_names_every_path_method_and_status(service: Serving) -> None:
    document = service.client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for operation in OPERATIONS:
        entry = document["paths"][operation.path][operation.method.lower()]
        assert entry["responses"].keys() >= {str(each.status) for each in operation.answers}
        assert {"403", "500", "503"} <= entry["responses"].keys()
    names = [e["operationId"] for path in document["paths"].values() for e in path.values()]
    assert len(set(names)) == len(names) == len(OPERATIONS)


def test_the_page_needs_nothing_from_elsewhere(service: Serving) -> None:
    page = service.client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "://" not in page.text
    assert "<script" not in page.text
    assert "/v1/topics/{topic}/rows" in page.text


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("PUT", "/v1/topics", 405, "GET, HEAD, OPTIONS, POST"),
        ("POST", "/v1/status", 405, "GET, HEAD, OPTIONS"),
        ("BREW", "/v1/status", 400, None),
        ("OPTIONS", "/v1/topics/events", 204, "DELETE, GET, HEAD, OPTIONS, PATCH"),
        ("HEAD", "/v1/status", 200, None),
        ("GET", "/v1/nothing", 404, None),
        ("GET", "/v1/topics/", 404, None),
    ],
)
def test_other_methods_and_paths_are_answered_in_form(
    service: Serving, method: str, path: str, status: int, allow: str | None
) -> None:
    answer = service.client.request(method, path)
    assert answer.status_code == status
    assert answer.headers.get("allow") == allow
    if status >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == status
    if method in {"HEAD", "OPTIONS"}:
        assert answer.content == b""


def test_a_taken_address_is_told(
    make_settings: MakeSettings, service: Serving, tmp_path: Path
) -> None:
    port = int(service.url.rsplit(":", 1)[1])
    taken = make_settings(data=str(tmp_path / "elsewhere"), ingest__http_port=port)
    with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1:{port}"), serving(taken):
        pass


def test_without_the_part_one_line_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['uvicorn'] = None\n"
        "from calve.errors import MissingPart\n"
        "from calve.parts import load_part\n"
        "try:\n    load_part('server', 'calve.ingest.http')\n"
        "except MissingPart as error:\n    print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "calve[server]" in run.stdout
