"""Rows over HTTP: durable when answered, all or nothing, once per sequence."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from calve.model import TableName
from calve.topics import TopicChange, TopicSpec
from calve.wal import Kind
from tests.conftest import MakeSettings
from tests.integration.serving import NDJSON, Serving, answer_of, serving

EVENTS = TableName.parse("events")
PROBLEM = "application/problem+json"


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as packing:
        packing.write(content)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def test_rows_are_in_the_log_when_they_are_acknowledged(service: Serving) -> None:
    answer = service.send("events", b'{"id":1}\n{"id":2}\n')
    assert answer.status_code == 200
    assert answer.json() == {
        "topic": "events", "partition": 0, "first": 0, "end": 2, "rows": 2,
        "repeat": False, "rejected": 0, "reasons": [],
    }  # fmt: skip
    assert service.rows("events") == [{"id": 1}, {"id": 2}]
    again = service.send("events", b'[{"id":3}]', "application/json; charset=utf-8")
    assert (again.json()["first"], again.json()["end"]) == (2, 3)


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_a_body_may_be_compressed(service: Serving, pack: object) -> None:
    assert callable(pack)
    encoding = "gzip" if pack is gzip.compress else "zstd"
    body = pack(b"id,name\n1,Ada\n")
    answer = service.send("events", body, "text/csv", headers={"Content-Encoding": encoding})
    assert answer.status_code == 200, answer.text
    assert service.rows("events") == [{"id": 1, "name": "Ada"}]


def test_arrow_goes_in_as_it_is(service: Serving) -> None:
    table = pa.table({"id": [1, 2], "tags": [["a"], None]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1)
    body = sink.getvalue().to_pybytes()
    answer = service.send("events", body, "application/vnd.apache.arrow.stream")
    assert answer.json()["rows"] == 2, answer.text
    assert service.rows("events") == table.to_pylist()


def test_a_bad_row_refuses_the_whole_request_and_is_named(service: Serving) -> None:
    service.send("events", b'{"id":1}')
    answer = service.send("events", b'{"id":2}\n{"id":"many"}\n')
    assert answer.status_code == 422
    assert answer.headers["content-type"] == PROBLEM
    problem = answer.json()
    assert problem["context"] == {"row": "2", "column": "id", "value": "'many'"}
    assert problem["status"] == 422
    assert problem["hint"]
    assert service.send("events", b'{"id":').status_code == 400
    assert service.rows("events") == [{"id": 1}]


def test_bad_rows_can_be_set_aside_in_the_same_append(service: Serving) -> None:
    service.send("events", b'{"id":1}')
    body = b'{"id":"x"}\n{"id":2}\nnonsense\n'
    answer = service.send("events", body, query="?on_error=dead_letter").json()
    assert (answer["first"], answer["end"]) == (1, 4)
    assert (answer["rows"], answer["rejected"]) == (1, 2)
    assert "'x'" in answer["reasons"][0]
    entries = list(service.intake.read(EVENTS, 1))
    assert [entry.kind for entry in entries] == [Kind.ROWS, Kind.REJECTED]
    assert [row.original for row in entries[1].rejected] == [b'{"id":"x"}', b"nonsense"]
    assert {row.content_type for row in entries[1].rejected} == {NDJSON}


def test_a_topic_can_want_its_bad_rows_set_aside_always(service: Serving) -> None:
    spec = TopicSpec(schema={"id": "long"}, on_bad_row="dead_letter")
    service.intake.create_topic(EVENTS, spec)
    answer = service.send("events", b'{"id":"x"}\n{"id":2}\n').json()
    assert (answer["rows"], answer["rejected"]) == (1, 1)


def test_columns_that_clash_are_all_named(service: Serving) -> None:
    service.send("events", b'{"a":1,"b":true,"c":"x"}')
    sink = pa.BufferOutputStream()
    table = pa.table({"a": ["x"], "b": [1.5], "c": ["y"]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body = sink.getvalue().to_pybytes()
    answer = service.send("events", body, "application/vnd.apache.arrow.stream")
    assert answer.status_code == 422
    assert "a" in answer.json()["context"]["columns"]
    assert "b" in answer.json()["context"]["columns"]


def test_the_same_sequence_again_appends_nothing_also_after_a_restart(
    make_settings: MakeSettings,
) -> None:
    settings = make_settings(ingest__http_port=0)
    identity: dict[str, str | bytes] = {"Calve-Producer": "p-ü".encode(), "Calve-Sequence": "0"}
    with serving(settings) as service:
        first = service.send("events", b'{"id":1}', headers=identity).json()
        again = service.send("events", b'{"id":1}', headers=identity).json()
    with serving(settings) as service:
        after = service.send("events", b'{"id":1}', headers=identity).json()
        gap = service.send("events", b'{"id":1}', headers={**identity, "Calve-Sequence": "7"})
        assert service.rows("events") == [{"id": 1}]
    assert (first["first"], first["end"], first["repeat"]) == (0, 1, False)
    assert (again["first"], again["end"], again["repeat"]) == (0, 1, True)
    assert (after["first"], after["end"], after["repeat"]) == (0, 1, True)
    assert gap.status_code == 409


def test_a_repeat_is_acknowledged_also_when_it_would_be_refused_now(service: Serving) -> None:
    identity = {"Calve-Producer": "p", "Calve-Sequence": "0"}
    body = b'{"id":1,"note":"a"}\n{"id":2,"note":"b"}\n'
    assert service.send("events", body, headers=identity).json()["end"] == 2
    service.intake.alter_topic(EVENTS, TopicChange(drop_columns=["note"]))
    service.intake.alter_topic(EVENTS, TopicChange(add_columns={"note": "long"}))
    again = service.send("events", body, headers=identity)
    assert again.status_code == 200, again.text
    assert again.json() == {
        "topic": "events", "partition": 0, "first": 0, "end": 2, "rows": 2,
        "repeat": True, "rejected": 0, "reasons": [],
    }  # fmt: skip
    unreadable = service.send("events", b'{"id":', headers=identity)
    assert unreadable.json()["repeat"]
    new = service.send("events", body, headers={**identity, "Calve-Sequence": "1"})
    assert new.status_code == 422
    assert service.intake.offsets(EVENTS).durable == 2


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Calve-Producer": "p"}, 400),
        ({"Calve-Sequence": "1"}, 400),
        ({"Calve-Rows-Before": "many"}, 400),
        ({"Calve-Producer": "p", "Calve-Sequence": "-1"}, 400),
        ({"Calve-Producer": "p", "Calve-Sequence": "9" * 30}, 400),
        ({"Calve-Producer": "p" * 300, "Calve-Sequence": "0"}, 400),
        ({"Calve-Producer": b"\xff", "Calve-Sequence": "0"}, 400),
        ({"Content-Encoding": "br"}, 415),
        ({"Content-Encoding": "gzip, gzip"}, 415),
        ({"Content-Encoding": "gzip"}, 400),
    ],
)
def test_headers_that_make_no_sense_are_refused(
    service: Serving, headers: dict[str, str | bytes], status: int
) -> None:
    answer = service.send("events", b'{"id":1}', headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.json()["detail"]
    assert service.client.get("/v1/topics/events").status_code == 404


def test_another_content_type_is_told_the_right_ones(service: Serving) -> None:
    for content_type in ("text/plain", "application/json; charset=utf-16", ""):
        answer = service.send("events", b'{"id":1}', content_type)
        assert answer.status_code == 415
    assert "application/x-ndjson" in answer.json()["hint"]
    answer = service.client.post("/v1/topics/events/rows", content=b'{"id":1}')
    assert answer.status_code == 415


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "a..b",
        "%2e%2e",
        "a%2fb",
        "a%00",
        "Events",
        "é",
        "ѕ",
        "a__b",
        "_calve",
        "a" * 64,
        "a.b",
    ],
)
def test_names_that_could_reach_elsewhere_are_refused(service: Serving, name: str) -> None:
    head = f"POST /v1/topics/{name}/rows HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    content = f'Content-Type: {NDJSON}\r\nContent-Length: 8\r\n\r\n{{"id":1}}'
    with service.connect() as connection:
        connection.sendall((head + content).encode())
        status, body = answer_of(connection)
    assert status in {400, 404}, body
    assert service.intake.topics.list() == []


@pytest.mark.parametrize("name", ["_calve_offset", "_CALVE_x", "_file", "_partition"])
def test_columns_with_reserved_names_are_refused(service: Serving, name: str) -> None:
    answer = service.send("events", json.dumps({"id": 1, name: 2}).encode())
    assert answer.status_code == 422
    assert "reserved" in answer.json()["detail"]


def test_without_auto_create_an_unknown_topic_is_not_made(make_settings: MakeSettings) -> None:
    with serving(make_settings(ingest__http_port=0, ingest__auto_create=False)) as service:
        assert service.send("events", b'{"id":1}').status_code == 404


def test_100_requests_at_once_are_all_answered_each_with_offsets_of_its_own(
    service: Serving,
) -> None:
    limits = httpx.Limits(max_connections=100)
    client = httpx.Client(base_url=service.url, limits=limits, timeout=60)

    def send(number: int) -> dict[str, int]:
        body = b"".join(b'{"id":%d,"n":%d}\n' % (number, n) for n in range(50))
        answer = client.post(
            "/v1/topics/events/rows", content=body, headers={"Content-Type": NDJSON}
        )
        assert answer.status_code == 200, answer.text
        found: dict[str, int] = answer.json()
        return found

    with client, ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(send, range(100)))
    ranges = sorted((each["first"], each["end"]) for each in answers)
    assert ranges == [(50 * n, 50 * n + 50) for n in range(100)]
    rows = service.rows("events")
    for number, each in enumerate(answers):
        sent = [{"id": number, "n": n} for n in range(50)]
        assert rows[each["first"] : each["end"]] == sent


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl_sends_and_reads(service: Serving, tmp_path: Path) -> None:
    def curl(*arguments: str) -> str:
        command = ["curl", "--silent", "--show-error", "--fail-with-body", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    rows = f"{service.url}/v1/topics/events/rows"
    large = tmp_path / "large.csv"
    large.write_text("id,text\n" + "".join(f"{n},{'x' * 100}\n" for n in range(20_000)))
    answer = curl("-H", f"Content-Type: {NDJSON}", "--data-binary", '{"id": 1}', rows)
    assert json.loads(answer)["end"] == 1
    # Larger than a megabyte: curl asks first, with `Expect: 100-continue`.
    answer = curl("-H", "Content-Type: text/csv", "-T", str(large), "-X", "POST", rows)
    assert json.loads(answer)["rows"] == 20_000
    chunked = ("-H", "Transfer-Encoding: chunked", "-H", "Content-Type: text/csv")
    answer = curl(*chunked, "--data-binary", f"@{large}", rows)
    assert json.loads(answer)["rows"] == 20_000
    line = curl("-H", f"Accept: {NDJSON}", f"{rows}?from=1&limit=1")
    assert json.loads(line)["value"] == {"id": 0, "text": "x" * 100}
