"""Every store of messages keeps the protocol: stored is kept, in order, for any number of readers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from calve import IcebergStorage, MemoryStorage, PersistentStorage, StreamMessage
from calve.errors import InvalidRequest, NotFound, Unavailable
from tests.conftest import MakeSettings


@pytest.fixture(params=["iceberg", "memory"])
def storage(
    request: pytest.FixtureRequest, make_settings: MakeSettings
) -> Iterator[PersistentStorage]:
    made: dict[str, Callable[[], PersistentStorage]] = {
        "iceberg": lambda: IcebergStorage(make_settings(wal__free_bytes_min=0)),
        "memory": MemoryStorage,
    }
    found = made[request.param]()
    yield found
    found.shutdown()


def payloads(messages: Iterator[StreamMessage], count: int) -> list[bytes]:
    return [each.payload for each in islice(messages, count)]


def test_what_is_stored_is_counted_and_comes_back_in_order(storage: PersistentStorage) -> None:
    storage.initialize_topic("inbox")
    storage.initialize_topic("inbox")
    first = StreamMessage(b"a", key="k", attributes={"x": "y"}, content_type="text/plain")
    assert storage.store("inbox", [first, StreamMessage(b"b")]) == [0, 1]
    assert storage.store("inbox", []) == []
    assert storage.store("inbox", [StreamMessage(b"c")]) == [2]
    stats = storage.get_topic_stats("inbox")
    assert stats.message_count == 3
    assert stats.bytes_stored >= 3
    found = list(islice(storage.subscribe("inbox"), 3))
    assert [(each.payload, each.offset, each.topic) for each in found] == [
        (b"a", 0, "inbox"),
        (b"b", 1, "inbox"),
        (b"c", 2, "inbox"),
    ]
    assert (found[0].key, found[0].attributes) == ("k", {"x": "y"})
    assert found[0].publish_time is not None
    assert payloads(storage.subscribe("inbox", 2), 1) == [b"c"]


def test_a_subscription_goes_on_where_it_was_and_knows_nothing_of_others(
    storage: PersistentStorage,
) -> None:
    storage.initialize_topic("inbox")
    storage.store("inbox", [StreamMessage(b"%d" % n) for n in range(4)])
    billing = storage.subscribe("inbox", subscription="billing")
    assert payloads(billing, 3) == [b"0", b"1", b"2"]
    del billing
    # What was handed out last may not have been worked on.
    assert payloads(storage.subscribe("inbox", subscription="billing"), 2) == [b"2", b"3"]
    assert payloads(storage.subscribe("inbox", 3, subscription="audit"), 1) == [b"3"]
    with pytest.raises(InvalidRequest, match="not a name"):
        storage.subscribe("inbox", subscription="a/b")


def test_those_who_wait_get_what_arrives_and_end_with_the_storage(
    storage: PersistentStorage,
) -> None:
    storage.initialize_topic("inbox")
    found: list[bytes] = []
    arrived = threading.Semaphore(0)

    def follow() -> None:
        for message in storage.subscribe("inbox", subscription="billing"):
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


def test_what_cannot_be_is_refused(storage: PersistentStorage) -> None:
    for call in (
        lambda: storage.store("nowhere", [StreamMessage(b"x")]),
        lambda: storage.get_topic_stats("nowhere"),
        lambda: storage.subscribe("nowhere"),
    ):
        with pytest.raises(NotFound):
            call()
    with pytest.raises(InvalidRequest):
        storage.initialize_topic("..")
    storage.initialize_topic("inbox")
    with pytest.raises(InvalidRequest, match="payload is bytes"):
        storage.store("inbox", [StreamMessage(b"x", key=5)])  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="no offset 1 yet"):
        storage.subscribe("inbox", 1)
    assert storage.get_topic_stats("inbox").message_count == 0
    storage.shutdown()
    storage.shutdown()
    with pytest.raises(Unavailable, match="shut down"):
        storage.store("inbox", [StreamMessage(b"x")])
    with pytest.raises(Unavailable, match="shut down"):
        storage.subscribe("inbox")
