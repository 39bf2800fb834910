"""Requests that nobody should send: each is told what is wrong with it, and none is a 5xx."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pyarrow as pa
import pytest

from calve.ingest.http.routes import OPERATIONS
from tests.conftest import MakeSettings
from tests.integration.serving import NDJSON, Serving, serving

ARROW = "application/vnd.apache.arrow.stream"


@pytest.fixture
def service(make_settings: MakeSettings) -> Iterator[Serving]:
    with serving(make_settings(ingest__http_port=0)) as found:
        found.send("events", b'{"id": 1}')
        yield found


def stream_of(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def is_told(response: httpx.Response) -> bool:
    kind = response.headers["content-type"]
    return 400 <= response.status_code < 500 and kind == "application/problem+json"


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "null", "http://", "ä"])
def test_an_origin_that_is_none_is_refused(service: Serving, origin: str) -> None:
    response = service.client.get("/v1/topics", headers={b"Origin": origin.encode()})
    assert (response.status_code, is_told(response)) == (403, True)


@pytest.mark.parametrize("host", [b"[", b"[::1", b"a:b:c", b"localhost:x", b"\xff"])
def test_a_host_that_is_none_is_no_defect(service: Serving, host: bytes) -> None:
    assert service.client.get("/v1/topics", headers={b"Host": host}).status_code < 500


@pytest.mark.parametrize("offset", ["9" * 5000, "9" * 19, "-1", "1.0", "%D9%A1"])
def test_an_offset_that_is_none_is_refused(service: Serving, offset: str) -> None:
    response = service.client.get(f"/v1/topics/events/dead-letters/{offset}")
    assert (response.status_code, is_told(response)) == (400, True)


@pytest.mark.parametrize("slash", ["%2F", "%2f", "%252f"])
def test_an_encoded_slash_is_part_of_a_name_and_no_name_has_one(
    service: Serving, slash: str
) -> None:
    """On every route; `events%2Frows` is not `events/rows`."""
    sent = {"content": b'{"id": 2}', "headers": {"Content-Type": NDJSON}}
    response = service.client.post(f"/v1/topics/events{slash}rows", **sent)  # type: ignore[arg-type]
    assert (response.status_code, is_told(response)) == (405, True)
    for each in OPERATIONS:
        if "{" in each.path:
            path = re.sub("{.*?}", f"events{slash}x", each.path)
            assert is_told(service.client.request(each.method, path, **sent)), (each.method, path)  # type: ignore[arg-type]
    described = service.client.get("/v1/topics").json()["topics"]
    assert [each["name"] for each in described] == ["events"]
    assert len(service.client.get("/v1/topics/events/rows").json()["rows"]) == 1


def test_moments_beyond_the_calendar_come_back_as_text(service: Serving) -> None:
    """Iceberg and Arrow have more days than Python."""
    batch = pa.record_batch(
        {
            "day": pa.array([5_000_000], pa.date32()),
            "at": pa.array([300_000_000_000_000_000], pa.timestamp("us", "UTC")),
            "all": pa.array([[300_000_000_000_000_000]], pa.list_(pa.timestamp("us"))),
        }
    )
    assert service.send("far", stream_of(batch), ARROW).status_code == 200
    for kind in ("application/json", NDJSON, ARROW):
        answer = service.client.get("/v1/topics/far/rows", headers={"Accept": kind})
        assert answer.status_code == 200
    value = service.client.get("/v1/topics/far/rows").json()["rows"][0]["value"]
    assert value["day"].startswith("15659-")
    assert value["at"].startswith("11476-")
    assert value["at"].endswith("Z")
    assert value["all"][0].startswith("11476-")


def test_arrow_with_any_bit_flipped_is_taken_or_refused(service: Serving) -> None:
    batch = pa.record_batch({"id": [1, 2], "name": ["a", "b"], "list": [[1], [2, 3]]})
    content, chance = stream_of(batch), random.Random(8)
    for _ in range(200):
        bad = bytearray(content)
        bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        response = service.send("flipped", bytes(bad[: chance.choice([None, 100, 300])]), ARROW)
        assert response.status_code == 200 or is_told(response)


def test_a_topic_that_is_deleted_meanwhile_is_no_defect(service: Serving) -> None:
    spec = {"name": "gone", "columns": [{"name": "id", "type": "long"}]}
    column = {"add_columns": [{"name": "more", "type": "long"}]}
    asked: list[Callable[[httpx.Client], httpx.Response]] = [
        lambda http: http.post("/v1/topics", json=spec),
        lambda http: http.delete("/v1/topics/gone"),
        lambda http: http.get("/v1/topics"),
        lambda http: http.get("/v1/topics/gone"),
        lambda http: http.get("/v1/topics/gone/rows"),
        lambda http: http.get("/v1/pipeline?topic=gone"),
        lambda http: http.patch("/v1/topics/gone", json=column),
        lambda http: http.post("/v1/topics/gone/flush?timeout_ms=5"),
        lambda http: http.post("/v1/topics/gone/rows", json=[{"id": 1}] * 50),
    ]
    until = time.monotonic() + 1.5
    failed: list[httpx.Response] = []

    def ask(one: Callable[[httpx.Client], httpx.Response]) -> None:
        with httpx.Client(base_url=service.url, timeout=30) as http:
            while time.monotonic() < until:
                response = one(http)
                if response.status_code >= 500 and response.status_code != 503:
                    failed.append(response)

    threads = [threading.Thread(target=ask, args=(one,)) for one in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not [(each.request.url, each.text) for each in failed]
