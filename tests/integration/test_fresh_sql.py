"""SQL that sees every acknowledged row: table and log as one relation, at one point in time."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from calve.errors import CalveError, Corruption, NotFound
from calve.model import TableName
from calve.query import tail_rows
from calve.query.tail import Tails
from calve.topics import TopicChange
from calve.wal import Rejected
from tests.conftest import MakeSettings
from tests.fakes.topic_site import TopicSite, topic_site

FLAGS: dict[str, Any] = {
    "wal__free_bytes_min": 0,
    "wal__hot_window_seconds": 0,
    "pipeline__flush_interval_ms": 1,
}


@pytest.fixture
def site(make_settings: MakeSettings) -> Iterator[TopicSite]:
    with topic_site(make_settings(**FLAGS)) as made:
        yield made


@pytest.fixture
def two(make_settings: MakeSettings) -> Iterator[TopicSite]:
    with topic_site(make_settings(**FLAGS), partitions=2) as made:
        yield made


def asked(site: TopicSite, sql: str, *, fresh: bool = True) -> list[tuple[Any, ...]]:
    rows = site.lake.sql(sql, fresh=fresh)
    return [tuple(row.values()) for row in rows]


def test_every_acknowledged_row_is_there_once_in_the_log_in_the_table_or_in_both(
    site: TopicSite,
) -> None:
    count = "SELECT count(*), sum(id), count(DISTINCT id) FROM orders"
    site.append(3)
    assert asked(site, count) == [(3, 3, 3)]
    assert asked(site, "SHOW TABLES") == [("orders",)]
    site.commit()
    assert asked(site, count) == [(3, 3, 3)]
    site.append(2)
    assert asked(site, count) == [(5, 10, 5)]
    assert asked(site, count, fresh=False) == [(3, 3, 3)]
    site.trim()
    assert asked(site, count) == [(5, 10, 5)]
    site.commit()
    site.trim()
    assert asked(site, count) == asked(site, count, fresh=False) == [(5, 10, 5)]


def test_the_answer_says_as_of_which_snapshot_and_offsets(two: TopicSite) -> None:
    two.append(4)
    two.append(2, partition=1)
    two.commit()
    two.append(3)
    (as_of,) = two.lake.sql("SELECT * FROM orders").as_of
    snapshot = two.table.current_snapshot()
    assert snapshot is not None
    assert as_of.table == "orders"
    assert as_of.snapshot_id == snapshot.snapshot_id
    assert (as_of.committed, as_of.durable) == ({0: 4, 1: 2}, {0: 7, 1: 2})
    assert "3 newer in the log, up to offset 7 of partition 0" in str(as_of)
    (committed,) = two.lake.sql("SELECT * FROM orders", fresh=False).as_of
    assert (committed.snapshot_id, committed.durable) == (snapshot.snapshot_id, {})


def test_time_travel_is_of_the_table_alone(site: TopicSite) -> None:
    site.append(2)
    site.commit()
    snapshot = site.table.current_snapshot()
    assert snapshot is not None
    site.append(2)
    old = f"orders AT (VERSION => {snapshot.snapshot_id})"
    assert asked(site, f"SELECT count(*) FROM {old}") == [(2,)]
    joined = f"SELECT count(*) FROM orders n LEFT JOIN {old} o USING (id) WHERE o.id IS NULL"
    assert asked(site, joined) == [(2,)]


def test_rows_of_the_log_come_under_the_columns_that_the_table_is_to_have(site: TopicSite) -> None:
    site.append(1, price=1, place={"lat": 1.5}, old="x")
    site.commit()
    site.intakes[0].alter_topic(site.name, TopicChange(rename_columns={"old": "new"}))
    site.append(1, price=2**40, place={"lat": 2.5, "lon": 3.5}, note="added")
    rows = site.lake.sql("SELECT * FROM orders ORDER BY id").to_arrow().to_pylist()
    assert rows[0]["place"] == {"lat": 1.5, "lon": None}
    assert rows[1]["place"] == {"lat": 2.5, "lon": 3.5}
    assert [row["note"] for row in rows] == [None, "added"]
    site.commit()
    assert site.lake.sql("SELECT * FROM orders ORDER BY id").to_arrow().to_pylist() == rows


def test_system_columns_are_hidden_unless_asked_for(site: TopicSite) -> None:
    site.append(2)
    assert site.lake.sql("SELECT * FROM orders").columns == ["id"]
    site.commit()
    site.append(1)
    assert site.lake.sql("SELECT * FROM orders").columns == ["id"]
    found = asked(site, "SELECT _calve_partition, _calve_offset FROM orders ORDER BY ALL")
    assert found == [(0, 0), (0, 1), (0, 2)]


def test_rows_that_go_to_the_dead_letters_do_not_appear(site: TopicSite) -> None:
    site.append(2)
    rejected = Rejected(b"no json", "application/json", "it cannot be read")
    site.intakes[0].submit(site.name, [rejected]).wait()
    site.append(1)
    assert asked(site, "SELECT id FROM orders ORDER BY id") == [(0,), (1,), (3,)]
    site.commit()
    assert asked(site, "SELECT id FROM orders ORDER BY id") == [(0,), (1,), (3,)]


def test_nan_and_null_of_the_log_are_found_as_those_of_the_table(site: TopicSite) -> None:
    site.append(1, score=1.0)
    site.commit()
    for score in (float("nan"), None, 2.0):
        site.append(1, score=score)
    where = "SELECT id FROM orders WHERE {} ORDER BY id"
    found = {
        "score > 1": [(1,), (3,)],
        "score = 'nan'": [(1,)],
        "score IS NULL": [(2,)],
        "score IS DISTINCT FROM 1.0 OR score = 2": [(1,), (2,), (3,)],
    }
    assert {text: asked(site, where.format(text)) for text in found} == found
    site.commit()
    assert {text: asked(site, where.format(text)) for text in found} == found


def test_a_topic_that_nobody_has_written_to_is_empty_and_others_are_not_found(
    site: TopicSite,
) -> None:
    site.create(schema={"id": "long", "at": "timestamptz"})
    assert asked(site, "SELECT * FROM orders") == []
    assert site.lake.sql("SELECT * FROM orders").columns == ["id", "at"]
    with pytest.raises(NotFound, match=r"orders"):
        site.lake.sql("SELECT * FROM order1")
    with pytest.raises(NotFound):
        site.lake.sql("SELECT * FROM orders", fresh=False)


def test_a_lake_without_topics_gets_no_state_by_being_asked(make_settings: MakeSettings) -> None:
    from calve.lake import Lake
    from calve.paths import DataLayout

    settings = make_settings()
    with Lake(settings) as lake:
        lake.catalog.create_table("users", pa.schema([("id", pa.int64())])).append(
            pa.table({"id": [1]})
        )
        assert lake.sql("SELECT * FROM users").to_arrow().to_pylist() == [{"id": 1}]
    assert not DataLayout(settings.data).state.exists()


def test_a_tail_that_is_too_large_to_be_held_is_read_piece_by_piece(
    site: TopicSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_rows, "HELD_BYTES_MAX", 1)
    site.append(3)
    site.commit()
    site.append(4)
    twice = "SELECT count(*), sum(a.id) FROM orders a JOIN orders b USING (id)"
    assert asked(site, twice) == [(7, 21)]


def test_an_answer_stays_what_it_was_while_the_log_is_trimmed(site: TopicSite) -> None:
    site.append(5)
    rows = site.lake.sql("SELECT id FROM orders")
    site.commit()
    site.trim()
    site.append(1)
    assert len(rows.to_arrow()) == 5
    assert len(rows.head(10)) == 5


def test_a_table_looked_at_before_a_commit_and_a_trim_is_looked_at_again(
    site: TopicSite,
) -> None:
    site.append(3)
    site.commit()
    site.append(3)
    looks = 0
    find = site.lake.catalog.find_table

    def then_commit(name: TableName) -> Any:
        nonlocal looks
        looks += 1
        found = find(name)
        if looks <= 2:  # a commit and a trim between the looks at table and log
            site.commit()
            site.trim()
            site.append(1)
        return found

    with Tails(site.settings) as tails:
        table, tail = tails.joined([site.name], then_commit)[site.name]
    assert looks == 3
    assert table is not None
    assert tail is not None
    assert tail.spans == {0: (7, 8)}
    assert len(table.scan().to_arrow()) == 7


def test_a_table_that_was_set_back_behind_the_log_is_reported(site: TopicSite) -> None:
    site.append(3)
    site.commit()
    old = site.table
    site.append(3)
    site.commit()
    site.trim()
    site.lake.catalog.drop_table(site.topic)
    with pytest.raises(NotFound, match="dropped or renamed"):
        site.lake.sql("SELECT * FROM orders")
    site.lake.catalog.iceberg.register_table(
        ("default", "default", "orders"), old.metadata_location
    )
    with pytest.raises(Corruption, match="neither in the log"):
        site.lake.sql("SELECT * FROM orders")


def test_a_query_for_one_day_of_a_year_opens_the_files_of_that_day_alone(site: TopicSite) -> None:
    site.create(schema={"id": "long", "came": "timestamptz"}, partition_by=["day(came)"])
    first = datetime(2026, 1, 1, 12, tzinfo=UTC)
    days = [{"id": n, "came": first + timedelta(days=n)} for n in range(365)]
    site.intakes[0].submit(site.name, pa.RecordBatch.from_pylist(days)).wait()
    site.commit()
    site.intakes[0].submit(site.name, pa.RecordBatch.from_pylist(days)).wait()
    files = [task.file.file_path for task in site.table.scan().plan_files()]
    assert len(files) == 365
    day = "came >= '2026-01-05 00:00:00+00' AND came < '2026-01-06 00:00:00+00'"
    (plan,) = asked(site, f"EXPLAIN ANALYZE SELECT id FROM orders WHERE {day}")
    assert re.findall(r"Total Files Read: (\d+)", plan[-1]) == ["1"]
    for path in files:
        if "2026-01-05" not in path:
            Path(path.removeprefix("file://")).unlink()
    assert asked(site, f"SELECT id FROM orders WHERE {day}") == [(4,), (4,)]
    grouped = f"SELECT id, count(*) FROM orders WHERE {day} GROUP BY id HAVING count(*) > 1"
    assert asked(site, grouped) == [(4, 2)]
    with pytest.raises(CalveError):
        asked(site, "SELECT sum(id) FROM orders")


def test_rows_of_the_log_are_filtered_before_they_meet_those_of_the_table(site: TopicSite) -> None:
    site.append(50, price=1, note="x")
    site.commit()
    site.append(30, price=2, note="y")
    (plan,) = asked(site, "EXPLAIN ANALYZE SELECT max(price) FROM orders WHERE id IN (40, 70)")
    united, scanned = plan[-1].rpartition("UNION")[2], plan[-1].rpartition("ARROW_SCAN")[2]
    assert re.findall(r"(\d+) rows", united)[0] == "2"
    assert re.findall(r"(\d+) rows", scanned)[0] == "30"
    assert "note" not in united, "a column that nobody asked for is not looked at"


def test_topics_and_tables_are_joined_at_one_point_in_time(site: TopicSite) -> None:
    site.append(3, city="oslo")
    site.commit()
    site.append(2, city="rome")
    paid = pa.RecordBatch.from_pylist([{"order_id": n, "cents": 100} for n in (1, 4, 9)])
    site.intakes[0].submit(TableName.parse("shop.money.payments"), paid).wait()
    site.lake.tables.create_table("cities", {"city": "string", "country": "string"})
    site.lake.tables.insert_data("cities", [{"city": "oslo", "country": "no"}])
    rows = site.lake.sql(
        "SELECT id, country, cents FROM orders JOIN shop.money.payments p ON id = p.order_id "
        "LEFT JOIN cities USING (city) ORDER BY id"
    )
    assert [tuple(row.values()) for row in rows] == [(1, "no", 100), (4, None, 100)]
    assert [(each.table, dict(each.durable)) for each in rows.as_of] == [
        ("orders", {0: 5}),
        ("shop.money.payments", {0: 3}),
        ("cities", {}),
    ]


@pytest.mark.parametrize("mode", ["always", "periodic", "none"])
def test_what_is_seen_follows_the_synced_end_of_the_log(
    make_settings: MakeSettings, mode: str
) -> None:
    flags = {**FLAGS, "wal__sync_mode": mode, "wal__sync_interval_ms": 50}
    count = "SELECT count(*) FROM orders"
    with topic_site(make_settings(**flags)) as site:
        site.create(schema={"id": "long"})
        site.intakes[0].submit(site.name, pa.RecordBatch.from_pylist([{"id": 1}])).wait()
        if mode == "always":
            assert asked(site, count) == [(1,)]
        elif mode == "periodic":
            deadline = time.monotonic() + 10
            while asked(site, count) != [(1,)]:
                assert time.monotonic() < deadline
        else:
            assert asked(site, count) == [(0,)]
            site.intakes[0].log.flush()
            assert asked(site, count) == [(1,)]


@pytest.mark.parametrize("answers", [40, pytest.param(10_000, marks=pytest.mark.torture)])
def test_every_answer_is_exact_while_rows_come_go_to_the_table_and_leave_the_log(
    site: TopicSite, answers: int
) -> None:
    site.append(1)
    stop = threading.Event()
    acknowledged = [1]

    def produce() -> None:
        while not stop.is_set():
            acknowledged[0] = site.append(3)

    def keep() -> None:
        while not stop.wait(0.01):
            site.commit()
            site.compact()
            site.trim()

    threads = [threading.Thread(target=work) for work in (produce, keep)]
    for each in threads:
        each.start()
    try:
        for _ in range(answers):
            before = acknowledged[0]
            rows = site.lake.sql(
                "SELECT count(*) c, sum(id) s, count(DISTINCT _calve_offset) d FROM orders"
            )
            (found,) = list(rows)
            end = rows.as_of[0].durable[0]
            assert end >= before
            assert found == {"c": end, "s": end * (end - 1) // 2, "d": end}
    finally:
        stop.set()
        for each in threads:
            each.join()
