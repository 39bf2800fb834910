"""When a topic's rows go to its table: bounds of its own beside the pipeline's settings."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calve.clock import SystemClock
from calve.errors import Conflict, InvalidRequest
from calve.model import TableName
from calve.state.sqlite import SqliteState
from calve.topics import TopicChange, TopicRegistry, TopicSpec, change_of, document_of, spec_of
from calve.topics.flush import FlushBounds

ORDERS = TableName.parse("orders")
COLUMNS = {"columns": [{"name": "id", "type": "long"}]}
GOLDEN = Path(__file__).parents[1] / "golden" / "state" / "version-1.db"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[TopicRegistry]:
    state = SqliteState(tmp_path / "state.db", clock=SystemClock())
    yield TopicRegistry(state)
    state.close()


def test_bounds_come_back_and_change_one_by_one(registry: TopicRegistry) -> None:
    flush = {"rows_max": 10, "interval_ms": 100}
    made = registry.create(ORDERS, spec_of({**COLUMNS, "flush": flush}))
    assert made.flush == FlushBounds(rows_max=10, interval_ms=100)
    change = change_of({"flush": {"interval_ms": None, "freshness_ms": 900}})
    changed = registry.alter(ORDERS, change)
    assert changed.flush == FlushBounds(rows_max=10, freshness_ms=900)
    assert registry.topic(ORDERS).flush == changed.flush
    assert document_of(changed)["flush"] == {
        "rows_max": 10,
        "bytes_max": None,
        "interval_ms": None,
        "freshness_ms": 900,
    }
    assert registry.alter(ORDERS, TopicChange()).flush == changed.flush


def test_other_bounds_are_another_request(registry: TopicRegistry) -> None:
    spec = TopicSpec(schema={"id": "long"}, flush={"rows_max": 10})
    made = registry.create(ORDERS, spec)
    assert registry.create(ORDERS, spec) == made
    with pytest.raises(Conflict):
        registry.create(ORDERS, TopicSpec(schema={"id": "long"}))


@pytest.mark.parametrize(
    "flush",
    [
        {"rows_max": 0},
        {"bytes_max": -1},
        {"interval_ms": True},
        {"freshness_ms": 2**60},
        {"rows": 1},
    ],
)
def test_bounds_that_cannot_be_are_refused_by_name(
    registry: TopicRegistry, flush: dict[str, Any]
) -> None:
    name = next(iter(flush))
    with pytest.raises(InvalidRequest, match=name):
        registry.create(ORDERS, TopicSpec(schema={"id": "long"}, flush=flush))
    registry.create(ORDERS, TopicSpec(schema={"id": "long"}))
    with pytest.raises(InvalidRequest, match=name):
        registry.alter(ORDERS, TopicChange(flush=flush))


def test_a_topic_from_before_there_were_bounds_is_read_and_is_the_same_request(
    tmp_path: Path,
) -> None:
    shutil.copy(GOLDEN, tmp_path / "old.db")
    state = SqliteState(tmp_path / "old.db", clock=SystemClock())
    registry = TopicRegistry(state)
    assert registry.topic(ORDERS).flush == FlushBounds()
    changed = registry.alter(ORDERS, TopicChange(retention_seconds=60))
    assert registry.create(ORDERS, spec_of(COLUMNS)) == changed
    state.close()
