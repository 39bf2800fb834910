"""Dead letters over HTTP: the same objects as in Python, and problems that say what to do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from calve.ingest.dead_letters import plan
from calve.model import TableName
from calve.topics import TopicChange, TopicSpec
from tests.fakes.small_pipeline import drain
from tests.integration.serving import Serving

ORDERS = TableName.parse("orders")
PATH = "/v1/topics/orders/dead-letters"


@pytest.fixture
def letters(service: Serving) -> Serving:
    spec = TopicSpec(schema={"id": "long"}, on_unknown_column="dead_letter")
    service.intake.create_topic(ORDERS, spec)
    body = b'{"id": 1}\n{"id": 2, "x": 1}\n{"id": 3, "x": 1}\n{"id": "gr\xc3\xbcn"}'
    assert service.send("orders", body, query="?on_error=dead_letter").json()["rejected"] == 3
    drain(service.intake, service.intake.catalog, ORDERS)
    service.intake.alter_topic(ORDERS, TopicChange(on_unknown_column="ignore"))
    return service


def ids(service: Serving) -> list[int]:
    return sorted(row["id"] for row in service.rows("orders"))


def listed(service: Serving, **query: Any) -> dict[str, Any]:
    found = service.client.get(PATH, params=query)
    assert found.status_code == 200, found.text
    answer: dict[str, Any] = found.json()
    return answer


def test_dead_letters_are_listed_and_shown(letters: Serving) -> None:
    found = listed(letters)
    assert (found["topic"], found["count"], found["other_reasons"]) == ("orders", 3, 0)
    assert [each["offset"] for each in found["letters"]] == [1, 2, 3]
    assert listed(letters, offsets="3-", limit=1)["letters"] == found["letters"][2:]
    assert listed(letters, until="2001-01-01T00:00:00Z")["count"] == 0
    one = letters.client.get(f"{PATH}/3").json()
    assert (one["text"], one["is_whole"]) == ('{"id": "grün"}', True)
    raw = letters.client.get(f"{PATH}/3", headers={"Accept": "application/octet-stream"})
    assert raw.content == '{"id": "grün"}'.encode()


def test_a_replay_goes_on_until_it_is_done(
    letters: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "ROUND_ROWS_MAX", 2)
    wish: dict[str, Any] = {"all": True}
    told = []
    while True:
        done = letters.client.post(f"{PATH}/replay", json=wish)
        assert done.status_code == 200, done.text
        told.append((done.json()["rows"], done.json()["rejected"], done.json()["is_done"]))
        if done.json()["is_done"]:
            break
        wish["ends"] = done.json()["ends"]
    assert told == [(2, 0, False), (0, 1, False), (0, 0, True)]
    assert ids(letters) == [1, 2, 3]
    drain(letters.intake, letters.intake.catalog, ORDERS)
    assert [each["offset"] for each in listed(letters)["letters"]] == [6]


def test_a_dry_run_and_a_discard(letters: Serving) -> None:
    tried = letters.client.post(f"{PATH}/replay", json={"all": True, "dry_run": True}).json()
    assert (tried["rows"], tried["rejected"], tried["dry_run"]) == (2, 1, True)
    gone = letters.client.post(f"{PATH}/discard", json={"offsets": "2-"}).json()
    assert (gone["count"], gone["is_done"]) == (2, True)
    assert listed(letters)["count"] == 1
    assert ids(letters) == [1]


def test_many_replays_at_once_land_each_row_once(letters: Serving) -> None:
    def replay(_: int) -> int:
        wish = {"all": True, "ends": {"0": 3}}
        return letters.client.post(f"{PATH}/replay", json=wish).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(replay, range(8))) == {200}
    assert ids(letters) == [1, 2, 3]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "told"),
    [
        ("GET", PATH + "?offsets=x", None, 400, "no range"),
        ("GET", PATH + "?reason=", None, 400, "reason"),
        ("POST", PATH + "/discard", {"reason": ""}, 400, "reason"),
        ("GET", PATH + "?limit=0", None, 400, "limit"),
        ("GET", PATH + "?since=yesterday", None, 400, "not a time"),
        ("GET", PATH + "?since=0001-01-01T00:00:00%2B10:00", None, 400, "not a time"),
        ("GET", PATH + "/99", None, 404, "no dead letter"),
        ("GET", PATH + "/x", None, 400, "no offset"),
        ("GET", "/v1/topics/other/dead-letters", None, 404, "there is no topic"),
        ("GET", "/v1/topics/other/dead-letters/1", None, 404, "there is no topic"),
        ("POST", PATH + "/replay", {}, 400, "not clear which"),
        ("POST", PATH + "/discard", {}, 400, "not clear which"),
        ("POST", PATH + "/discard", {"all": True, "reason": "x"}, 400, "not clear which"),
        ("POST", PATH + "/replay", {"all": True, "more": 1}, 400, "more"),
        ("POST", PATH + "/replay", {"all": True, "ends": {"0": -1}}, 400, "ends"),
        ("GET", "/v1/topics/orders__dead_letters/dead-letters", None, 400, "dead letters"),
    ],
)
def test_what_cannot_be_done_is_a_problem(
    letters: Serving, method: str, path: str, body: Any, status: int, told: str
) -> None:
    found = letters.client.request(method, path, json=body)
    assert found.status_code == status, found.text
    assert found.headers["content-type"] == "application/problem+json"
    assert told in found.json()["detail"]


def test_a_topic_without_dead_letters_has_none(service: Serving) -> None:
    service.send("orders", b'{"id":1}').raise_for_status()
    assert listed(service)["count"] == 0
