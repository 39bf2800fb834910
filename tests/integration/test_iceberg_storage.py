"""Messages in topics of a lake: kept when `store` returns, counted, read back, safe to retry."""

from __future__ import annotations

import threading
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pytest

import calve
from calve import IcebergStorage, PersistentStorage, StreamMessage
from calve.errors import Conflict, InvalidRequest, NotFound, Unavailable
from calve.lake import Lake
from calve.model import TableName
from calve.pipeline.pipeline import Pipeline
from calve.settings import Settings
from calve.state import open_state
from tests.conftest import MakeSettings
from tests.fakes.pipelines import run_here, site

MOMENT = datetime(2026, 1, 31, 10, tzinfo=UTC)


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    return make_settings(wal__free_bytes_min=0)


def test_messages_come_back_as_they_were_stored(settings: Settings) -> None:
    whole = StreamMessage(
        payload=b"\0\xff",
        key="k",
        attributes={"source": "web", "": "é"},
        publish_time=MOMENT,
        producer="p",
        sequence=7,
        content_type="application/octet-stream",
        schema="orders-value/3",
    )
    bare = StreamMessage(b"")
    with IcebergStorage(settings) as storage:
        storage.initialize_topic("inbox")
        assert storage.store("inbox", [whole, bare]) == [0, 1]
        assert storage.store("inbox", [bare]) == [2]
        first, second, third = islice(storage.subscribe("inbox"), 3)
        assert next(iter(storage.subscribe("inbox", start=2))) == third
    assert first == StreamMessage(
        payload=b"\0\xff",
        key="k",
        attributes={"source": "web", "": "é"},
        publish_time=MOMENT,
        producer="p",
        sequence=7,
        topic="inbox",
        offset=0,
        content_type="application/octet-stream",
        schema="orders-value/3",
    )
    assert (second.payload, second.key, second.attributes, second.offset) == (b"", None, {}, 1)
    assert second.publish_time is not None


def test_content_type_and_schema_can_be_asked_for_in_the_table(settings: Settings) -> None:
    whole = StreamMessage(b"{}", content_type="application/json", schema="orders-value/3")
    with IcebergStorage(settings) as storage:
        storage.initialize_topic("inbox")
        storage.store("inbox", [StreamMessage(b""), whole])
    with site(settings) as made, closing(made.pipeline()) as pipeline:
        assert pipeline.drain(30)
        assert made.committed("inbox") == 2
    with Lake(settings) as lake:
        found = lake.sql(
            "select _calve_offset, content_type, schema from inbox where schema = 'orders-value/3'",
            fresh=False,
        )
        assert list(found) == [
            {"_calve_offset": 1, "content_type": "application/json", "schema": "orders-value/3"}
        ]


def test_messages_and_counts_survive_a_restart(settings: Settings) -> None:
    with IcebergStorage(settings) as storage:
        storage.initialize_topic("acme.mail.inbox")
        storage.initialize_topic("acme.mail.inbox")
        storage.store("acme.mail.inbox", [StreamMessage(b"x" * 1000)] * 10)
    with IcebergStorage(settings) as storage:
        storage.initialize_topic("acme.mail.inbox")
        stats = storage.get_topic_stats("acme.mail.inbox")
        assert stats.message_count == 10
        assert stats.bytes_stored >= 10_000
        assert storage.store("acme.mail.inbox", [StreamMessage(b"y")]) == [10]


def test_the_same_call_again_stores_nothing(settings: Settings) -> None:
    messages = [StreamMessage(b"a"), StreamMessage(b"b")]
    with IcebergStorage(settings) as storage:
        storage.initialize_topic("inbox")
        first = storage.store("inbox", messages, producer="p", sequence=0)
    with IcebergStorage(settings) as storage:
        assert storage.store("inbox", messages, producer="p", sequence=0) == first == [0, 1]
        assert storage.get_topic_stats("inbox").message_count == 2


def test_a_subscription_follows_what_arrives_and_ends_with_the_storage(settings: Settings) -> None:
    found: list[bytes] = []
    with IcebergStorage(settings) as storage:
        storage.initialize_topic("inbox")
        arrived = threading.Semaphore(0)

        def follow() -> None:
            for message in storage.subscribe("inbox"):
                found.append(message.payload)
                arrived.release()

        thread = threading.Thread(target=follow)
        thread.start()
        for n in range(3):
            storage.store("inbox", [StreamMessage(b"%d" % n)])
            assert arrived.acquire(timeout=20)
        storage.shutdown()
        thread.join(20)
    assert not thread.is_alive()
    assert found == [b"0", b"1", b"2"]


def test_messages_that_the_log_has_let_go_of_come_from_the_table(
    make_settings: MakeSettings,
) -> None:
    settings = make_settings(
        wal__free_bytes_min=0, wal__hot_window_seconds=0, pipeline__flush_interval_ms=1
    )
    with calve.open(settings) as lake, IcebergStorage(lake) as storage:
        storage.initialize_topic("inbox")
        storage.store("inbox", [StreamMessage(b"a", attributes={"x": "y"}), StreamMessage(b"b")])
        with closing(open_state(settings)) as state:
            options: dict[str, Any] = {"session": None, "run_pieces": run_here}
            pipeline = Pipeline(settings, state=state, catalog=lake.catalog, **options)
            with closing(pipeline):
                assert pipeline.drain(30)
        lake.intake.log.rotate()
        lake.intake.log.trim()
        storage.store("inbox", [StreamMessage(b"c")])
        assert lake.intake.offsets(TableName.parse("inbox")).first == 2
        found = list(islice(storage.subscribe("inbox", subscription="billing"), 3))
        assert [(each.payload, each.offset) for each in found] == [(b"a", 0), (b"b", 1), (b"c", 2)]
        assert found[0].attributes == {"x": "y"}


def test_what_cannot_be_is_refused(settings: Settings) -> None:
    with calve.open(settings) as lake, IcebergStorage(lake) as storage:
        lake.produce("orders", [{"id": 1}])
        with pytest.raises(Conflict, match="holds rows"):
            storage.initialize_topic("orders")
        with pytest.raises(NotFound, match="no topic of messages orders"):
            storage.store("orders", [StreamMessage(b"x")])
        with pytest.raises(NotFound):
            storage.store("nowhere", [StreamMessage(b"x")])
        with pytest.raises(NotFound):
            storage.get_topic_stats("nowhere")
        with pytest.raises(InvalidRequest):
            storage.initialize_topic("..")
        storage.initialize_topic("inbox")
        assert storage.store("inbox", []) == []
        with pytest.raises(InvalidRequest, match="payload is bytes"):
            storage.store("inbox", [StreamMessage(b"x", key=5)])  # type: ignore[arg-type]
        storage.shutdown()
        storage.shutdown()
        with pytest.raises(Unavailable, match="shut down"):
            storage.store("inbox", [StreamMessage(b"x")])
        assert lake.produce("orders", [{"id": 2}]).first == 1, "the lake is still open"


def test_it_is_a_persistent_storage(settings: Settings) -> None:
    storage: PersistentStorage = IcebergStorage(settings)
    storage.shutdown()
