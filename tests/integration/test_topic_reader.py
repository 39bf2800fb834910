"""A reader of a topic: history from the table, the newest rows from the log, in one order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pytest

from calve.errors import CalveError, Conflict, InvalidRequest, NotFound, Unavailable
from calve.ingest.flight import FlightServer
from calve.lake import Lake
from calve.subscriptions import windows
from calve.topics import TopicChange
from calve.wal import Rejected
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.delete_files import delete_equal, delete_positions
from tests.fakes.topic_site import TopicSite, batch_offsets, offsets_of, topic_site

FLAGS = {
    "wal__free_bytes_min": 0,
    "wal__hot_window_seconds": 0,
    "pipeline__flush_interval_ms": 1,
    "reader__poll_interval_ms": 50,
    **QUICK_RETRIES,
}


@pytest.fixture
def site(make_settings: MakeSettings) -> Iterator[TopicSite]:
    with topic_site(make_settings(**FLAGS)) as made:
        yield made


@pytest.fixture
def two(make_settings: MakeSettings) -> Iterator[TopicSite]:
    with topic_site(make_settings(**FLAGS), partitions=2) as made:
        yield made


def test_history_and_the_newest_rows_come_in_one_order(two: TopicSite) -> None:
    for _ in range(3):
        two.append(10)
        two.append(7, partition=1)
        two.commit()
    two.append(5)
    assert two.all() == {0: list(range(35)), 1: list(range(21))}
    assert two.all({0: 33, 1: 20}) == {0: [33, 34], 1: [20]}
    assert two.all(12, partitions=[0]) == {0: list(range(12, 35))}


def test_a_reader_follows_from_the_first_row_on_until_it_is_closed(site: TopicSite) -> None:
    site.append(3)
    site.commit()
    with site.read() as reader:
        assert batch_offsets(next(reader)) == [0, 1, 2]
        assert reader.poll(0.01) is None
        site.append(2)
        assert batch_offsets(next(reader)) == [3, 4]
        site.commit()
        site.trim()
        site.append(1)
        assert batch_offsets(next(reader)) == [5]
        assert reader.positions == {0: 6}
        threading.Timer(0.1, reader.close).start()
        assert list(reader) == []


def test_a_reader_that_was_left_behind_by_the_log_goes_on_in_the_table(site: TopicSite) -> None:
    site.append(4)
    with site.read() as reader:
        assert batch_offsets(next(reader)) == [0, 1, 2, 3]
        for _ in range(3):
            site.append(4)
            site.commit()
            site.trim()
        site.append(1)
        assert offsets_of(next(reader) for _ in range(3)) == {0: list(range(4, 17))}


def test_latest_waits_for_what_comes_next_and_a_new_partition_is_read_whole(two: TopicSite) -> None:
    two.append(4)
    with two.read("latest") as reader:
        assert reader.poll(0) is None
        two.append(3, partition=1)
        two.append(2)
        assert offsets_of([next(reader), next(reader)]) == {0: [4, 5], 1: [0, 1, 2]}


def test_rows_that_were_removed_or_set_aside_are_skipped_and_not_waited_for(
    site: TopicSite,
) -> None:
    site.append(10)
    site.commit()
    intake = site.intakes[0]
    stream = intake.log.stream(site.name)
    intake.log.append(stream, [[Rejected(b"x", "text/plain", "no row")] * 3])
    site.append(2)
    intake.log.record_hole(stream, 15, 20)
    assert site.all() == {0: [*range(10), 13, 14]}
    site.lake.tables.delete_data("orders", "id in (0, 4, 9)", flush=False)
    assert site.all() == {0: [1, 2, 3, 5, 6, 7, 8, 13, 14]}
    with site.read(follow=False) as reader:
        list(reader)
        assert reader.positions == {0: 20}
    site.commit()
    assert site.all() == {0: [1, 2, 3, 5, 6, 7, 8, 13, 14]}
    assert site.all(15) == {}
    site.append(1)
    assert site.all(9) == {0: [13, 14, 20]}


def test_a_row_whose_committed_one_was_deleted_does_not_come_from_the_log(site: TopicSite) -> None:
    site.append(6)
    with site.read("latest") as reader:
        site.append(4)
        site.commit()
        site.lake.tables.delete_data("orders", "id >= 7")
        time.sleep(0.06)  # what the reader knows of the table is older than it may be
        assert batch_offsets(next(reader)) == [6]
        assert site.all() == {0: list(range(7))}


def test_rows_that_are_deleted_while_a_reader_is_under_way_do_not_come(
    site: TopicSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "WINDOW_ROWS", 20)
    site.append(200)
    site.commit()
    site.compact(file_rows=10)
    with site.read() as reader:
        found = [next(reader) for _ in range(3)]
        site.lake.tables.delete_data("orders", "id >= 60")
        site.append(1)
        time.sleep(0.06)  # what was read ahead is older than it may be
        while reader.positions[0] < 201:
            found.append(next(reader))
    offsets = offsets_of(found)[0]
    assert offsets == [*range(60), 200]


def test_rows_without_an_offset_are_not_delivered(site: TopicSite) -> None:
    site.append(3)
    site.commit()
    site.lake.tables.insert_data("orders", [{"id": 99}], force=True)
    site.append(1)
    site.commit()
    assert site.all() == {0: [0, 1, 2, 3]}
    site.compact()
    assert site.all() == {0: [0, 1, 2, 3]}


def test_filter_and_columns_choose_the_same_in_both_halves(site: TopicSite) -> None:
    site.append(10, kind="a", price=1.0)
    site.append(10, kind="b", price=2.0)
    site.commit()
    site.append(10, kind="a", price=3.0)
    site.append(10, kind="b", price=4.0)
    assert site.all(where="kind = 'a' and id % 2 = 1") == {0: [1, 3, 5, 7, 9, 21, 23, 25, 27, 29]}
    with site.read(where="kind = 'b'", columns=["price"], follow=False) as reader:
        found = [batch.to_arrow() for batch in reader]
        assert reader.positions == {0: 40}
    own = ["_calve_partition", "_calve_offset", "_calve_ingested_at"]
    assert [rows.schema.names for rows in found] == [["price", *own]] * 2
    assert [set(rows["price"].to_pylist()) for rows in found] == [{2.0}, {4.0}]
    with pytest.raises(InvalidRequest, match=r"there is no column 'prize'.*price"):
        site.read(columns=["prize"])
    with pytest.raises(InvalidRequest, match="kond"):
        site.read(where="kond = 1")


def test_files_in_which_the_condition_cannot_hold_are_not_opened(site: TopicSite) -> None:
    for _ in range(6):
        site.append(5)
        site.commit()
    with site.read(where="id between 12 and 13", follow=False) as reader:
        assert offsets_of(reader) == {0: [12, 13]}
        assert reader.stats.files_opened == 1


def test_both_halves_give_the_columns_that_the_topic_has_now(site: TopicSite) -> None:
    site.append(2, name="x")
    site.commit()
    site.append(2, name="y", extra=1)
    with site.read(follow=False) as reader:
        old, new = reader
    assert old.to_arrow().schema.equals(new.to_arrow().schema)
    assert old.to_arrow()["extra"].to_pylist() == [None, None]
    site.lake.tables.rename_column("orders", "name", "title")
    with site.read(follow=False) as reader:
        rows = pa.concat_tables([batch.to_arrow() for batch in reader])
    assert rows["title"].to_pylist() == ["x", "x", "y", "y"]


def test_columns_may_change_while_a_reader_is_under_way(site: TopicSite) -> None:
    site.append(2, name="x")
    with site.read() as reader:
        assert next(reader).to_arrow()["name"].to_pylist() == ["x", "x"]
        site.append(1, name="y", extra=1)
        assert next(reader).to_arrow()["extra"].to_pylist() == [1]
        site.commit()
        site.intakes[0].alter_topic(site.name, TopicChange(rename_columns={"name": "title"}))
        site.append(1, title="z", extra=2)
        assert next(reader).to_arrow()["title"].to_pylist() == ["z"]


@pytest.mark.parametrize("descending", [False, True])
def test_compaction_and_expiry_change_nothing(
    two: TopicSite, monkeypatch: pytest.MonkeyPatch, descending: bool
) -> None:
    monkeypatch.setattr(windows, "WINDOW_ROWS", 20)
    for _ in range(8):
        two.append(11)
        two.append(12, partition=1)
        two.commit()
        two.trim()
        two.trim(1)
    with two.read() as reader:
        found = [next(reader)]
        two.compact(descending=descending)
        two.lake.tables.expire_snapshots("orders", 0)
        while sum(map(len, found)) < 8 * 23:
            found.append(next(reader))
        assert offsets_of(found) == {0: list(range(88)), 1: list(range(96))}
        assert reader.poll(0.1) is None
    assert two.all(30) == {0: list(range(30, 88)), 1: list(range(30, 96))}


def test_a_large_file_is_read_in_pieces(site: TopicSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "WINDOW_ROWS", 100)
    site.append(5_000)
    site.commit()
    assert site.all(17) == {0: list(range(17, 5_000))}
    site.compact(descending=True)
    with site.read(follow=False) as reader:
        sizes = [len(batch) for batch in reader]
    assert sum(sizes) == 5_000
    assert max(sizes) <= 200
    assert site.all(17) == {0: list(range(17, 5_000))}


def test_a_start_in_the_middle_of_many_files_opens_few(site: TopicSite) -> None:
    site.append(400)
    site.commit()
    site.compact(file_rows=2)
    with site.read(121) as reader:
        assert batch_offsets(next(reader))[0] == 121
        assert reader.stats.files_opened <= 3
    with site.read(399) as reader:
        assert batch_offsets(next(reader)) == [399]
        opened = reader.stats.files_opened
        site.trim()
        for _ in range(4):
            site.append(2)
            site.commit()
            site.trim()
            assert len(next(reader)) == 2
        assert reader.stats.files_opened - opened <= 4  # only those with new rows


def test_a_stalled_consumer_holds_few_batches(
    site: TopicSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "WINDOW_ROWS", 10)
    site.append(400)
    site.commit()
    site.compact(file_rows=10)
    prefetch = site.settings.reader.prefetch_size
    with site.read() as reader:
        assert offsets_of([next(reader), next(reader)]) == {0: list(range(20))}
        deadline = time.monotonic() + 20
        while reader.stats.files_opened < 1 + prefetch:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.1)
        assert reader.stats.files_opened == 1 + prefetch
        assert offsets_of(next(reader) for _ in range(38)) == {0: list(range(20, 400))}


def test_rows_that_could_not_be_read_come_when_they_can(
    site: TopicSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "WINDOW_ROWS", 10)
    site.append(40)
    site.commit()
    site.compact(file_rows=10)
    paths = [Path(urlsplit(each.file.file_path).path) for each in site.table.scan().plan_files()]
    with site.read(follow=False) as reader:
        found = [next(reader)]
        for path in paths:
            path.rename(path.with_suffix(".away"))
        with pytest.raises(CalveError):
            next(reader)
        for path in paths:
            path.with_suffix(".away").rename(path)
        found += reader
    assert offsets_of(found) == {0: list(range(40))}


def test_a_start_by_time_is_the_first_row_of_that_time(site: TopicSite) -> None:
    moments = []
    for _ in range(4):
        time.sleep(0.01)
        moments.append(datetime.now(UTC))
        site.append(5)
        site.commit()
    for number, moment in enumerate(moments):
        assert site.all(moment)[0][0] == 5 * number
    site.trim()
    site.append(5)
    for number, moment in enumerate(moments):
        with site.read(moment) as reader:
            assert reader.positions == {0: 5 * number}
            assert reader.stats.files_opened <= 1
    assert site.all(moments[0].replace(tzinfo=None)) == {0: list(range(25))}
    assert site.all(datetime.now(UTC) + timedelta(seconds=60)) == {}


def test_a_rollback_fails_a_reader_that_has_passed_its_rows(site: TopicSite) -> None:
    for _ in range(3):
        site.append(5)
        site.commit()
    second = site.lake.tables.list_snapshots("orders")[1]
    with site.read() as reader, site.read(on_rollback="skip") as skipping:
        for each in (reader, skipping):
            assert offsets_of(next(each) for _ in range(2)) == {0: list(range(15))}
        site.lake.tables.rollback("orders", second.id)
        for _ in range(2):
            with pytest.raises(Conflict, match=r"from offset 10 .* come to 15") as caught:
                reader.poll(2)
        assert caught.value.context["lowest"] == "10"
        assert "reader.seek({0: 15})" in str(caught.value.hint)
        site.append(2)
        reader.seek({0: 15})
        assert batch_offsets(next(reader)) == batch_offsets(next(skipping)) == [15, 16]
    assert site.all() == {0: [*range(10), 15, 16]}


def test_rows_that_come_again_after_a_rollback_are_read_again_from_there(site: TopicSite) -> None:
    for _ in range(3):
        site.append(5)
        site.commit()
    second = site.lake.tables.list_snapshots("orders")[1]
    with site.read(on_rollback="from") as reader, site.read(on_rollback="skip") as skipping:
        for each in (reader, skipping):
            assert offsets_of(next(each) for _ in range(2)) == {0: list(range(15))}
        site.lake.tables.rollback("orders", second.id, replay=True)
        assert batch_offsets(next(reader)) == list(range(10, 15))
        assert skipping.poll(0.2) is None
        site.commit()
        assert reader.poll(0.2) is None


def test_a_rollback_of_rows_that_are_still_to_come_is_no_concern(site: TopicSite) -> None:
    for _ in range(3):
        site.append(5)
        site.commit()
    second = site.lake.tables.list_snapshots("orders")[1]
    with site.read() as reader:
        assert batch_offsets(next(reader)) == list(range(5))
        site.lake.tables.rollback("orders", second.id)
        time.sleep(0.06)
        assert batch_offsets(next(reader)) == list(range(5, 10))
        assert reader.poll(0.1) is None


def test_a_rollback_that_takes_out_nothing_is_no_concern(site: TopicSite) -> None:
    site.append(10)
    site.commit()
    first = site.lake.tables.list_snapshots("orders")[-1]
    site.compact()
    with site.read() as reader:
        assert batch_offsets(next(reader)) == list(range(10))
        site.lake.tables.rollback("orders", first.id)
        site.lake.tables.delete_data("orders", "id = 4")
        site.append(1)
        time.sleep(0.06)
        assert batch_offsets(next(reader)) == [10]


def test_a_rollback_is_told_once_and_not_again_at_the_next(site: TopicSite) -> None:
    for _ in range(3):
        site.append(5)
        site.commit()
    _, second, _ = site.lake.tables.list_snapshots("orders")
    site.lake.tables.rollback("orders", second.id)
    with site.read() as reader:
        assert offsets_of([next(reader), next(reader)]) == {0: list(range(10))}
        again = site.lake.tables.get_current_snapshot("orders")
        assert again is not None
        site.append(5)
        site.commit()
        assert batch_offsets(next(reader)) == list(range(15, 20))
        site.lake.tables.rollback("orders", again.id)
        with pytest.raises(Conflict) as caught:
            reader.poll(1)
        assert caught.value.context["lowest"] == "15"


def test_a_table_that_somebody_set_back_without_a_record_fails_a_reader_too(
    site: TopicSite,
) -> None:
    for _ in range(3):
        site.append(5)
        site.commit()
    second = site.lake.tables.list_snapshots("orders")[1]
    with site.read() as reader:
        assert offsets_of([next(reader), next(reader)]) == {0: list(range(15))}
        site.table.manage_snapshots().rollback_to_snapshot(second.id).commit()
        with pytest.raises(Conflict) as caught:
            reader.poll(1)
        assert caught.value.context["lowest"] == "10"


def test_messages_keep_their_offsets(site: TopicSite) -> None:
    site.create(kind="messages")
    batch = pa.RecordBatch.from_pylist([{"payload": bytes([n]), "key": f"k{n}"} for n in range(4)])
    site.intakes[0].submit(site.name, batch).wait()
    site.commit()
    site.lake.tables.delete_data("orders", "key = 'k1'")
    with site.read(follow=False) as reader:
        (found,) = reader
    assert [(each.offset, each.key, each.payload) for each in found.messages()] == [
        (0, "k0", b"\0"), (2, "k2", b"\2"), (3, "k3", b"\3"),
    ]  # fmt: skip
    with site.read(columns=["key"], follow=False) as reader, pytest.raises(InvalidRequest):
        list(next(reader).messages())


def test_what_cannot_be_read_is_said_at_once(site: TopicSite) -> None:
    with pytest.raises(NotFound, match="no topic"):
        site.read()
    site.append(3)
    with pytest.raises(InvalidRequest, match="ends at 3"):
        site.read(4)
    with pytest.raises(InvalidRequest, match="no place to start from"):
        site.read("first")
    with pytest.raises(InvalidRequest, match="on_rollback"):
        site.read(on_rollback="stop")
    with pytest.raises(NotFound, match="no partition 7"):
        site.read(partitions=[7])


def test_a_log_that_is_elsewhere_is_asked_for_when_it_is_needed(
    two: TopicSite,
) -> None:
    two.append(3, partition=1)
    two.commit()
    two.append(1, partition=1)
    alone = msgspec.structs.replace(
        two.settings, pipeline=msgspec.structs.replace(two.settings.pipeline, logs="")
    )
    with Lake(alone) as lake, lake.read("orders") as reader:
        assert batch_offsets(next(reader)) == [0, 1, 2]
        with pytest.raises(Unavailable, match=r"partition 1 of topic .* is in log"):
            reader.poll(1)


class Busy:
    """Does things again and again in threads until it is told to end."""

    def __init__(self) -> None:
        self.ended = threading.Event()  # nothing is done any more
        self._ending = threading.Event()
        self._with = ThreadPoolExecutor(8)
        self._all: list[Future[None]] = []

    def repeat(self, *work: Callable[[], object]) -> None:
        def run() -> None:
            while not self._ending.is_set():
                for each in work:
                    each()

        self._all.append(self._with.submit(run))

    def end(self) -> None:
        self._ending.set()
        try:
            for each in self._all:
                each.result(30)
        finally:
            self.ended.set()


def test_each_row_comes_once_while_everything_else_happens(site: TopicSite) -> None:
    """Commits, trimming, compaction and expiry, beside readers at the head and behind."""
    site.append(1)
    site.commit()
    busy = Busy()

    def follow() -> list[int]:
        found: list[int] = []
        with site.read() as reader:
            while not busy.ended.is_set() or reader.positions[0] < site.durable():
                batch = reader.poll(0.05)
                found += batch_offsets(batch) if batch is not None else []
        return found

    with ThreadPoolExecutor(2) as readers:
        busy.repeat(lambda: site.append(20), lambda: time.sleep(0.002))
        busy.repeat(site.commit, site.trim)
        busy.repeat(
            site.compact,
            lambda: site.lake.tables.expire_snapshots("orders", 0),
            lambda: time.sleep(0.05),
        )
        head = readers.submit(follow)
        time.sleep(1)
        behind = readers.submit(follow)
        time.sleep(1)
        busy.end()
        end = site.durable()
        assert end > 100
        assert head.result(30) == behind.result(30) == list(range(end))


def test_delete_files_of_other_engines_are_followed_or_refused(site: TopicSite) -> None:
    site.append(6)
    site.commit()
    (task,) = site.table.scan().plan_files()
    delete_positions(site.table, {task.file.file_path: [1, 4]})
    assert site.all() == {0: [0, 2, 3, 5]}
    delete_equal(site.table, "id", [2])
    with pytest.raises(InvalidRequest, match="equality deletes"):
        site.all()


def test_a_log_elsewhere_is_read_through_its_service(
    two: TopicSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calve.sources.remote_log._ASK_SECONDS", 0.02)
    two.append(6)
    two.append(5, partition=1)
    two.commit()
    moment = datetime.now(UTC)
    two.append(4, partition=1)
    with FlightServer(two.intakes[1]) as server:
        pipeline = msgspec.structs.replace(two.settings.pipeline, logs=server.url)
        elsewhere = msgspec.structs.replace(two.settings, pipeline=pipeline)
        with Lake(elsewhere) as lake, lake.read("orders") as reader:
            found = [next(reader) for _ in range(3)]
            assert offsets_of(found) == {0: list(range(6)), 1: list(range(9))}
            two.append(2, partition=1)
            assert batch_offsets(next(reader)) == [9, 10]
            reader.seek(moment)
            assert reader.positions == {0: 6, 1: 5}
            two.commit()
            two.trim(1)
            two.append(1, partition=1)
            assert offsets_of([next(reader), next(reader)]) == {1: [5, 6, 7, 8, 9, 10, 11]}


def test_a_rollback_that_a_seek_meets_is_told_before_anything_moves(
    make_settings: MakeSettings,
) -> None:
    flags = {**FLAGS, "reader__poll_interval_ms": 60_000}
    with topic_site(make_settings(**flags)) as site:
        for _ in range(3):
            site.append(5)
            site.commit()
        first, second, _ = site.lake.tables.list_snapshots("orders")
        with site.read() as reader:
            assert offsets_of(next(reader) for _ in range(2)) == {0: list(range(15))}
            for back, lowest in ((second, 10), (first, 5)):
                site.lake.tables.rollback("orders", back.id)
                with pytest.raises(Conflict, match=f"from offset {lowest} .* come to 15"):
                    reader.seek({0: 12})
                assert reader.positions == {0: 15}
            reader.seek({0: 3})
            site.append(2)
            assert offsets_of(next(reader) for _ in range(2)) == {0: [3, 4, 15, 16]}


def test_a_batch_of_the_log_is_small_however_much_waits(site: TopicSite) -> None:
    """Who stands still holds no more of it."""
    for _ in range(6):
        site.append(500, text="x" * 1_000)
    with site.read() as reader:
        sizes = [next(reader).rows.nbytes for _ in range(2)]
    assert max(sizes) < 2 << 20
