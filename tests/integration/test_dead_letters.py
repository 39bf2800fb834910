"""Dead letters listed, shown, replayed and discarded, from the front door to both tables."""

from __future__ import annotations

import resource
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import calve
from calve.errors import Conflict, Corruption, InvalidRequest, NotFound
from calve.ingest.dead_letters import plan
from calve.ingest.dead_letters.box import DeadLetters
from calve.ingest.dead_letters.letters import LetterScan
from calve.ingest.dead_letters.replay import Replay
from calve.ingest.dead_letters.rounds import Chunk, Round, round_under_way
from calve.ingest.dead_letters.views import Selection
from calve.ingest.formats import KnownTypes, decode
from calve.lake import Lake
from calve.model import TableName
from calve.topics import TopicChange, TopicSpec
from calve.wal import Rejected
from tests.fakes.small_pipeline import drain

ORDERS = TableName.parse("orders")


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with calve.open(tmp_path / "lake") as lake:
        lake.intake.create_topic(
            ORDERS,
            TopicSpec(schema={"id": "long", "name": "string"}, on_unknown_column="dead_letter"),
        )
        yield lake


def send(lake: Lake, body: bytes, media_type: str = "application/x-ndjson") -> None:
    """As a request does that has bad rows set aside; and then the pipeline."""
    types = KnownTypes.of(lake.intake.topics.topic(ORDERS))
    decoded = decode(body, media_type, types, sets_aside=True, bytes_max=1 << 26)
    lake.intake.submit(ORDERS, decoded.parts).wait()
    drain(lake.intake, lake.catalog, ORDERS)


def set_aside(lake: Lake, *rejected: Rejected) -> None:
    lake.intake.submit(ORDERS, list(rejected)).wait()
    drain(lake.intake, lake.catalog, ORDERS)


def letters(lake: Lake) -> DeadLetters:
    return lake.dead_letters("orders")


def rows(lake: Lake) -> list[dict[str, Any]]:
    found = lake.sql("select id, name from orders order by id, name", fresh=False)
    return [dict(row) for row in found]


def take_unknown_columns(lake: Lake) -> None:
    lake.intake.alter_topic(ORDERS, TopicChange(on_unknown_column="ignore"))


def test_dead_letters_are_counted_by_reason_and_listed_by_offset(lake: Lake) -> None:
    assert letters(lake).list().count == 0
    send(lake, b'{"id": "a"}\n{"id": 1}\n{"id": "b"}\n{"id": 2, "x": 1}')
    found = letters(lake).list()
    assert found.count == 3
    assert sum(each.count for each in found.reasons) == 3
    assert [each.offset for each in found.letters] == [1, 2, 3]
    assert {each.content_type for each in found.letters} == {"application/x-ndjson"}
    assert letters(lake).list(limit=2).letters == found.letters[:2]
    assert letters(lake).list(limit=2).count == 3
    some = letters(lake).list(reason=found.letters[2].reason)
    assert [each.offset for each in some.letters] == [3]
    assert [each.offset for each in letters(lake).list(offsets="0-2,3-").letters] == [1, 3]
    assert letters(lake).list(partition=1).count == 0
    assert letters(lake).list(until="2001-01-01").count == 0
    assert letters(lake).list(since="2001-01-01").count == 3


@pytest.mark.parametrize("offsets", ["x", "3-2", "-1", "1,,2", "5-5", "99999999999999999999"])
def test_offsets_that_make_no_sense_are_refused(lake: Lake, offsets: str) -> None:
    send(lake, b'{"id": "a"}')
    with pytest.raises(InvalidRequest, match="no range of offsets"):
        letters(lake).list(offsets=offsets)


def test_one_is_shown_by_its_type(lake: Lake) -> None:
    stream = pa.BufferOutputStream()
    batch = pa.record_batch({"id": [1], "when": pa.array([0], pa.timestamp("us"))})
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    arrow = stream.getvalue().to_pybytes()
    set_aside(
        lake,
        Rejected("grün \U0001f9ca".encode() + b"\xff", "text/csv", "no UTF-8"),
        Rejected(arrow, "application/vnd.apache.arrow.stream", "no such column"),
        Rejected(b"\x00\x01", "application/octet-stream", "what is it"),
        Rejected(b"x" * 200_000, "application/x-ndjson", "not JSON"),
    )
    box = letters(lake)
    assert box.show(0).text == "grün \U0001f9ca\\xff"
    assert box.show(1).values == [{"id": 1, "when": "1970-01-01T00:00:00"}]
    assert box.show(2).base64 == b"\x00\x01"
    cut = box.show(3)
    assert (cut.is_whole, cut.size_bytes, len(cut.text or "")) == (False, 200_000, 65_536)
    assert box.original(3) == b"x" * 200_000
    with pytest.raises(NotFound, match="no dead letter with offset 4"):
        box.show(4)


def test_a_replayed_row_lands_once_and_leaves_the_dead_letters(lake: Lake) -> None:
    send(lake, b'{"id": 1, "name": "a"}\n{"id": 2, "name": "b", "x": 1}\n{"id": "bad"}')
    take_unknown_columns(lake)
    done = letters(lake).replay(all=True)
    assert (done.rows, done.rejected, done.is_done) == (1, 1, True)
    assert "bad" in done.reasons[0]
    drain(lake.intake, lake.catalog, ORDERS)
    assert rows(lake) == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    # What still does not fit is a dead letter again, at its new offset.
    assert [each.offset for each in letters(lake).list().letters] == [4]
    assert letters(lake).show(4).text == '{"id": "bad"}'
    assert lake.tables.verify_topic("orders").is_sound


def test_what_is_set_aside_again_is_not_replayed_again_by_the_same_wish(lake: Lake) -> None:
    send(lake, b'{"id": "bad"}')
    first = letters(lake).replay(all=True)
    drain(lake.intake, lake.catalog, ORDERS)
    assert (first.rows, first.rejected) == (0, 1)
    again = letters(lake).replay_some(Selection(), ends=first.ends)
    assert again.is_done
    assert letters(lake).replay(all=True).rejected == 1


def test_csv_json_and_arrow_are_read_again_by_their_types(lake: Lake) -> None:
    send(lake, b'id,name,x\n1,"a, b",1\n2,"c\nd",2\n', "text/csv")
    send(lake, b'[{"id": 3, "name": "\\u00fc", "x": {"y": [1,\n2]}}]', "application/json")
    batch = pa.record_batch({"id": [4, 5], "name": ["e", "f"], "x": [1, 2]})
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    send(lake, stream.getvalue().to_pybytes(), "application/vnd.apache.arrow.stream")
    assert letters(lake).list().count == 5
    take_unknown_columns(lake)
    done = letters(lake).replay(all=True)
    assert (done.rows, done.rejected) == (5, 0)
    drain(lake.intake, lake.catalog, ORDERS)
    names = {row["id"]: row["name"] for row in rows(lake)}
    assert names == {1: "a, b", 2: "c\nd", 3: "ü", 4: "e", 5: "f"}


def test_rows_that_nobody_can_read_stay_dead_letters_and_lose_nothing(lake: Lake) -> None:
    originals = [
        (b"\xff\xfe broken", "application/x-ndjson"),
        (b'{"id": 1}\n{"id": 2', "application/x-ndjson"),
        (b"", "application/json"),
        (b"[[[", "application/json"),
        (b"id,name\n1,2,3", "text/csv"),
        (b"\xff\xff\xff\xff\x08\x00\x00\x00", "application/vnd.apache.arrow.stream"),
        (b"\x00" * 10, "image/png"),
        (b"[" * 100_000, "application/x-ndjson"),
    ]
    set_aside(lake, *(Rejected(original, kind, "bad") for original, kind in originals))
    done = letters(lake).replay(all=True)
    drain(lake.intake, lake.catalog, ORDERS)
    assert done.rejected + done.rows >= len(originals)
    kept = Counter(row["original"] for row in lake.sql("select original from orders__dead_letters"))
    for original, kind in originals:
        if kind != "application/x-ndjson" or b"\n" not in original:
            assert kept[original] == 1
    assert lake.tables.verify_topic("orders").is_sound


def test_some_are_replayed_by_reason_and_by_offset(lake: Lake) -> None:
    send(lake, b'{"id": 1, "x": 1}\n{"id": 2, "y": 1}\n{"id": 3, "x": 1}')
    take_unknown_columns(lake)
    reason = letters(lake).list(offsets="1").letters[0].reason
    assert letters(lake).replay(reason=reason).rows == 1
    assert letters(lake).replay(offsets="2").rows == 1
    drain(lake.intake, lake.catalog, ORDERS)
    assert [row["id"] for row in rows(lake)] == [2, 3]
    assert [each.offset for each in letters(lake).list().letters] == [0]


def test_nothing_is_replayed_or_discarded_because_nothing_was_said(lake: Lake) -> None:
    send(lake, b'{"id": "a"}')
    for act in (letters(lake).replay, letters(lake).discard):
        with pytest.raises(InvalidRequest, match="not clear which"):
            act()
        with pytest.raises(InvalidRequest, match="not clear which"):
            act(all=True, reason="x")
    assert letters(lake).list().count == 1


def test_a_dry_run_tells_what_would_become_of_them_and_changes_nothing(lake: Lake) -> None:
    send(lake, b'{"id": 1, "x": 1}\n{"id": "bad"}')
    take_unknown_columns(lake)
    before = lake.tables.get_current_snapshot("orders__dead_letters")
    tried = letters(lake).replay(all=True, dry_run=True)
    assert (tried.rows, tried.rejected, tried.dry_run) == (1, 1, True)
    assert letters(lake).discard(all=True, dry_run=True).count == 2
    assert lake.tables.get_current_snapshot("orders__dead_letters") == before
    assert lake.intake.offsets(ORDERS).durable == 2


def test_discarded_dead_letters_are_removed_on_purpose(lake: Lake) -> None:
    send(lake, b'{"id": 1}\n{"id": "a"}\n{"id": "b"}\n{"id": "c"}')
    assert letters(lake).discard(offsets="1,3").count == 2
    assert [each.offset for each in letters(lake).list().letters] == [2]
    assert letters(lake).discard(all=True).count == 1
    found = lake.tables.verify_topic("orders")
    assert found.is_sound
    assert found.partitions[0].dead_letters == 0


def test_without_dead_letters_there_is_nothing_to_replay(lake: Lake) -> None:
    with pytest.raises(NotFound, match="no dead letters in its table"):
        letters(lake).replay(all=True)
    with pytest.raises(InvalidRequest, match="table of dead letters"):
        lake.dead_letters("orders__dead_letters")


def interrupted(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Round:
    """A replay that has sent its rows and not removed them yet."""

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Replay, "_finish", die)
        with pytest.raises(KeyboardInterrupt):
            letters(lake).replay(all=True)
    properties = lake.catalog.load_table(ORDERS.dead_letters).properties
    found = round_under_way(properties)
    assert found is not None
    return found


def test_an_interrupted_replay_is_finished_by_the_next_one(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(lake, b'{"id": 1, "x": 1}\n{"id": 2, "x": 1}')
    take_unknown_columns(lake)
    interrupted(lake, monkeypatch)
    # Also one that means others: the round is finished first.
    letters(lake).replay(offsets="1")
    drain(lake.intake, lake.catalog, ORDERS)
    assert [row["id"] for row in rows(lake)] == [1, 2]
    assert letters(lake).list().count == 0
    assert lake.tables.verify_topic("orders").is_sound


def test_what_is_being_replayed_cannot_be_discarded(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(lake, b'{"id": 1, "x": 1}')
    take_unknown_columns(lake)
    interrupted(lake, monkeypatch)
    with pytest.raises(Conflict, match="are being replayed"):
        letters(lake).discard(all=True)


def test_a_replay_into_a_stream_that_is_gone_says_so_and_can_be_given_up(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(lake, b'{"id": 1, "x": 1}')
    interrupted(lake, monkeypatch)
    lake.intake.delete_topic(ORDERS)
    with pytest.raises(NotFound):
        letters(lake).replay(all=True)
    lake.intake.create_topic(ORDERS, TopicSpec(bind_table=True))
    with pytest.raises(Conflict, match="which is not here"):
        letters(lake).replay(all=True)
    assert letters(lake).replay(all=True, give_up=True).rows == 1


def test_a_round_that_cannot_be_read_stops_with_the_way_out(lake: Lake) -> None:
    send(lake, b'{"id": 1, "x": 1}')
    table = lake.catalog.load_table(ORDERS.dead_letters)
    with table.transaction() as change:
        change.set_properties({"calve.replay": '{"id": 7}'})
    with pytest.raises(Corruption, match=r"calve\.replay"):
        letters(lake).replay(all=True)


def test_two_replays_at_once_send_each_row_once(lake: Lake) -> None:
    send(lake, b"\n".join(b'{"id": %d, "x": 1}' % n for n in range(300)))
    take_unknown_columns(lake)
    problems: list[BaseException] = []

    def work() -> None:
        try:
            letters(lake).replay(all=True)
        except BaseException as error:  # noqa: BLE001
            problems.append(error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "ROUND_ROWS_MAX", 25)
        patch.setattr(plan, "CHUNK_ROWS_MAX", 7)
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert problems == []
    drain(lake.intake, lake.catalog, ORDERS)
    assert [row["id"] for row in rows(lake)] == list(range(300))
    assert letters(lake).list().count == 0
    assert lake.tables.verify_topic("orders").is_sound


def test_a_round_is_what_was_written_down(lake: Lake) -> None:
    send(lake, b'{"id": 1, "x": 1}\n{"id": 2, "x": 1}\n{"id": "z"}')
    table = lake.catalog.load_table(ORDERS.dead_letters)
    assert plan.next_chunks(LetterScan(table, Selection())) == (Chunk(0, "0-3"),)


def test_huge_originals_go_one_by_one(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "CHUNK_BYTES_MAX", 1 << 20)
    big = b'{"id": %d, "name": "' + b"x" * (3 << 20) + b'", "x": 1}'
    for number in range(3):
        send(lake, big % number)
    take_unknown_columns(lake)
    assert letters(lake).replay(all=True).rows == 3
    drain(lake.intake, lake.catalog, ORDERS)
    assert [row["id"] for row in rows(lake)] == [0, 1, 2]


def test_a_hundred_thousand_are_replayed_in_bounded_memory(lake: Lake) -> None:
    count = 100_000
    for start in range(0, count, count // 4):
        bodies = (b'{"id": %d, "x": 1}' % number for number in range(start, start + count // 4))
        rejected = [Rejected(body, "application/x-ndjson", "no column x") for body in bodies]
        lake.intake.submit(ORDERS, rejected).wait()
        drain(lake.intake, lake.catalog, ORDERS)
    take_unknown_columns(lake)
    assert letters(lake).replay(offsets="0-2").rows == 2
    with held_bytes() as held:
        assert letters(lake).list().count == count - 2
        assert letters(lake).replay(all=True).rows == count - 2
    assert max(held) - held[0] < 400 * 1024 * 1024
    drain(lake.intake, lake.catalog, ORDERS)
    counts = "select count(*) as n, count(distinct id) as ids from orders"
    (found,) = lake.sql(counts, fresh=False)
    assert dict(found) == {"n": count, "ids": count}


@contextmanager
def held_bytes() -> Iterator[list[int]]:
    """What the process holds in memory, looked at again and again."""
    held: list[int] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.02):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            held.append(pages * resource.getpagesize())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield held
    finally:
        done.set()
        thread.join()
