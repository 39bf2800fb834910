"""Rows into topics, on real files: durable, once, in order, and nothing else than was sent."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import calve
from calve.audit import records
from calve.errors import (
    CalveError,
    Conflict,
    Fenced,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
)
from calve.ingest import Intake, as_refusal, produce
from calve.lake import Lake
from calve.model import TableName
from calve.paths import make_private
from calve.state import PIPELINE_LEASE, Progress, open_state
from calve.topics import TopicChange, TopicRegistry, TopicSpec
from calve.wal import Kind, Rejected
from tests.conftest import MakeSettings

ORDERS = TableName.parse("orders")


@pytest.fixture
def intake(make_settings: MakeSettings) -> Iterator[Intake]:
    with Intake(make_settings()) as intake:
        yield intake


def rows_in(intake: Intake, name: TableName = ORDERS, start: int = 0) -> list[dict[str, Any]]:
    entries = [entry for entry in intake.read(name, start) if entry.kind == Kind.ROWS]
    return [row for entry in entries if entry.batch is not None for row in entry.batch.to_pylist()]


def columns_of(intake: Intake, name: TableName = ORDERS) -> list[str]:
    return [field.name for field in intake.topics.topic(name).schema.fields]


def publish(intake: Intake, offset: int, name: TableName = ORDERS) -> None:
    """What the pipeline does after a commit."""
    topic = intake.topics.topic(name)
    log_id = topic.partitions[intake.partition].log_id
    intake.state.publish_committed(topic.id, intake.partition, log_id=log_id, offset=offset)


def test_a_first_batch_makes_its_topic(intake: Intake) -> None:
    batch = pa.record_batch({"id": [1, 2], "name": ["a", "b"], "nothing": pa.nulls(2)})
    assert intake.submit(ORDERS, batch).wait() == (0, 2, False)
    assert columns_of(intake) == ["id", "name"]
    assert rows_in(intake) == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    assert intake.offsets(ORDERS) == (0, 2, 0)


def first_rows_at_once(intake: Intake, count: int) -> list[object]:
    """What became of rows that came for one topic at the same moment, before it was there."""
    outcomes: list[object] = []
    at_once = threading.Barrier(count)

    def send() -> None:
        at_once.wait()
        try:
            outcomes.append(intake.submit(ORDERS, pa.record_batch({"id": [1]})).wait().is_repeat)
        except CalveError as error:
            outcomes.append(type(error))

    threads = [threading.Thread(target=send) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def audit_of(intake: Intake) -> list[tuple[str, str | None]]:
    directory = intake.settings.data / "_calve" / "audit"
    return [(each.step, each.result) for each in records(directory)]


def test_of_many_first_batches_at_once_one_makes_the_topic_and_all_are_in(intake: Intake) -> None:
    assert first_rows_at_once(intake, 50) == [False] * 50
    assert intake.offsets(ORDERS).durable == 50
    # One who looked for the topic before it was there, and comes when all is over.
    intake._creation.create_from(ORDERS, pa.schema([("id", pa.int64())]))
    assert audit_of(intake) == [("begin", None), ("end", "done")]


@contextmanager
def holding_the_audit_log(intake: Intake) -> Iterator[None]:
    """So that making a topic takes until others wait for it."""
    place = intake.settings.data / "_calve" / "audit"
    make_private(place)
    with (place / "audit.jsonl").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_topic_that_cannot_be_made_is_refused_to_all_who_wait_and_made_later(
    intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calve.audit.trail._LOCK_SECONDS", 0.3)
    with holding_the_audit_log(intake):
        assert first_rows_at_once(intake, 20) == [Unavailable] * 20
    assert first_rows_at_once(intake, 20) == [False] * 20


def test_first_rows_that_make_no_topic_are_refused_alone(intake: Intake) -> None:
    """Also while others wait for what becomes of them."""
    refusals: list[CalveError] = []

    def send_what_makes_none() -> None:
        with pytest.raises(InvalidRequest) as raised:
            intake.submit(ORDERS, pa.record_batch({"": [1]}))
        refusals.append(raised.value)

    with holding_the_audit_log(intake):
        bad = threading.Thread(target=send_what_makes_none)
        bad.start()
        while not intake._creation._makings:
            time.sleep(0.001)
        outcomes: list[object] = []
        good = threading.Thread(target=lambda: outcomes.extend(first_rows_at_once(intake, 10)))
        good.start()
        good.join(0.2)
    bad.join()
    good.join()
    assert len(refusals) == 1
    assert outcomes == [False] * 10
    assert ("end", "failed") in audit_of(intake)


def test_topics_are_not_made_by_themselves_where_that_is_not_allowed(
    make_settings: MakeSettings,
) -> None:
    with Intake(make_settings(ingest__auto_create=False)) as intake:
        with pytest.raises(NotFound, match="no topic orders"):
            intake.submit(ORDERS, pa.record_batch({"id": [1]}))
        assert intake.topics.list() == []
        assert intake.log.streams == []


def test_everything_is_there_after_reopening(make_settings: MakeSettings) -> None:
    with Intake(make_settings()) as intake:
        topic = intake.create_topic(ORDERS, TopicSpec(schema={"id": "long"}))
        intake.submit(ORDERS, pa.record_batch({"id": [1]})).wait()
        stats = intake.stats(ORDERS)
    with Intake(make_settings()) as intake:
        assert intake.problems == {}
        assert intake.topics.topic(ORDERS) == topic
        assert intake.stats(ORDERS) == stats
        assert intake.submit(ORDERS, pa.record_batch({"id": [2]})).wait() == (1, 2, False)
        assert rows_in(intake) == [{"id": 1}, {"id": 2}]


def test_a_topic_grows_before_the_rows_that_need_it(intake: Intake) -> None:
    intake.submit(ORDERS, pa.record_batch({"id": pa.array([1], pa.int32())})).wait()
    pending = intake.submit(ORDERS, pa.record_batch({"id": [2**40], "ключ": ["x"]}))
    assert columns_of(intake) == ["id", "ключ"]
    pending.wait()
    assert str(intake.topics.topic(ORDERS).schema.find_field("id").field_type) == "long"
    assert rows_in(intake) == [{"id": 1}, {"id": 2**40, "ключ": "x"}]


def test_a_refused_append_leaves_topic_and_log_as_they_were(intake: Intake) -> None:
    intake.submit(ORDERS, pa.record_batch({"id": [1]})).wait()
    before = intake.topics.topic(ORDERS)
    good = pa.record_batch({"id": [2], "new": ["x"]})
    bad = pa.record_batch({"id": ["text"]})
    with pytest.raises(InvalidRequest, match="'id' is long, and string was sent"):
        intake.submit(ORDERS, [good, bad])
    assert intake.topics.topic(ORDERS) == before
    assert intake.offsets(ORDERS).durable == 1


def test_parts_of_one_append_share_what_each_of_them_adds(intake: Intake) -> None:
    parts = [
        pa.record_batch({"id": [1], "a": ["x"]}),
        pa.record_batch({"id": pa.array([], pa.int64())}),
        pa.record_batch({"id": [2], "b": [True]}),
        [Rejected(b"{", "application/json", "broken")],
    ]
    assert intake.submit(ORDERS, parts).wait() == (0, 3, False)
    assert columns_of(intake) == ["id", "a", "b"]
    kinds = [(entry.kind, entry.first_offset) for entry in intake.read(ORDERS, 0)]
    assert kinds == [(Kind.ROWS, 0), (Kind.ROWS, 1), (Kind.REJECTED, 2)]


def test_bad_rows_are_kept_in_the_same_append(intake: Intake) -> None:
    required = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    intake.create_topic(ORDERS, TopicSpec(schema=required, on_bad_row="dead_letter"))
    batch = pa.record_batch({"id": pa.array([1, None, 3], pa.int64())})
    assert intake.submit(ORDERS, batch).wait() == (0, 3, False)
    good, bad = intake.read(ORDERS, 0)
    assert good.batch is not None
    assert good.batch.column("id").to_pylist() == [1, 3]
    assert [row.reason for row in bad.rejected] == [
        "row 2, column 'id': a required value is missing"
    ]


@pytest.mark.parametrize(
    "rows", [pa.record_batch({"id": pa.array([], pa.int64())}), [], [[]], pa.record_batch([], [])]
)
def test_an_append_without_rows_or_columns_is_refused(intake: Intake, rows: Any) -> None:
    intake.create_topic(ORDERS, TopicSpec(schema={"id": "long"}))
    with pytest.raises(InvalidRequest, match=r"at least one row|no column"):
        intake.submit(ORDERS, rows)


def invalid_text() -> pa.Array:
    return pa.array([b"\xff\xfe"]).view(pa.string())


def offsets_beyond_the_data() -> pa.Array:
    offsets = pa.array([0, 1_000_000, 1], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"x")])


@pytest.mark.parametrize("broken", [invalid_text, offsets_beyond_the_data])
@pytest.mark.parametrize("as_list", [True, False])
def test_what_only_claims_to_be_arrow_is_refused(
    intake: Intake, broken: Callable[[], pa.Array], as_list: bool
) -> None:
    intake.create_topic(ORDERS, TopicSpec(schema={"s": "string"}))
    batch = pa.RecordBatch.from_arrays([broken()], ["s"])
    with pytest.raises(InvalidRequest, match="not valid Arrow data"):
        intake.submit(ORDERS, [batch] if as_list else batch)
    assert intake.offsets(ORDERS).durable == 0


def test_a_retry_with_the_same_sequence_appends_nothing_also_after_a_restart(
    make_settings: MakeSettings,
) -> None:
    batch = pa.record_batch({"id": [1, 2]})
    with Intake(make_settings()) as intake:
        assert intake.submit(ORDERS, batch, producer="p", sequence=0).wait() == (0, 2, False)
        assert intake.submit(ORDERS, batch, producer="p", sequence=0).wait() == (0, 2, True)
    with Intake(make_settings()) as intake:
        assert intake.submit(ORDERS, batch, producer="p", sequence=0).wait() == (0, 2, True)
        assert intake.stats(ORDERS).producer_count == 1
        with pytest.raises(Conflict, match="sequence 5 after 0"):
            intake.submit(ORDERS, batch, producer="p", sequence=5).wait()
        assert intake.offsets(ORDERS).durable == 2


def test_a_deleted_topic_takes_its_stream_along_and_comes_back_as_another(intake: Intake) -> None:
    first = intake.create_topic(ORDERS, TopicSpec(schema={"id": "long"}))
    intake.submit(ORDERS, pa.record_batch({"id": [1]}), producer="p", sequence=0).wait()
    intake.delete_topic(ORDERS)
    assert intake.log.streams == []
    assert intake.state.ended_streams() == set()
    with pytest.raises(NotFound, match="no topic orders"):
        intake.offsets(ORDERS)
    assert intake.submit(ORDERS, pa.record_batch({"n": ["x"]})).wait() == (0, 1, False)
    second = intake.topics.topic(ORDERS)
    assert second.id != first.id
    assert second.partitions[0].stream_id != first.partitions[0].stream_id
    assert rows_in(intake) == [{"n": "x"}]


def test_an_altered_topic_acts_on_the_next_rows(intake: Intake) -> None:
    intake.create_topic(ORDERS, TopicSpec(schema={"id": "long", "name": "string"}))
    change = TopicChange(on_unknown_column="refuse", rename_columns={"name": "title"})
    intake.alter_topic(ORDERS, change)
    with pytest.raises(InvalidRequest, match="no column 'x'"):
        intake.submit(ORDERS, pa.record_batch({"x": [1]}))
    intake.submit(ORDERS, pa.record_batch({"name": ["a"]})).wait()
    assert rows_in(intake) == [{"title": "a"}]


def test_what_another_process_changes_is_noticed(make_settings: MakeSettings) -> None:
    other = open_state(make_settings())
    with Intake(make_settings()) as intake:
        intake.create_topic(ORDERS, TopicSpec(schema={"id": "long"}))
        registry = TopicRegistry(other)
        registry.alter(ORDERS, TopicChange(on_unknown_column="refuse"))
        wait_until(lambda: is_refused(intake, pa.record_batch({"x": [1]})))
        registry.delete(ORDERS)
        wait_until(lambda: intake.log.streams == [])
        with pytest.raises(NotFound):
            intake.offsets(ORDERS)
    other.close()


def is_refused(intake: Intake, batch: pa.RecordBatch) -> bool:
    try:
        intake.submit(ORDERS, batch).wait()
    except InvalidRequest:
        return True
    return False


def wait_until(claim: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)


def test_flush_returns_when_the_table_has_what_was_acknowledged(intake: Intake) -> None:
    intake.submit(ORDERS, pa.record_batch({"id": [1, 2, 3]})).wait()
    waiting = threading.Thread(target=lambda: flushed.append(intake.flush(ORDERS, 20)))
    flushed: list[object] = []
    waiting.start()
    publish(intake, 2)
    waiting.join(0.2)
    assert waiting.is_alive()
    publish(intake, 3)
    waiting.join(20)
    assert flushed == [(0, 3, 3)]


def test_flush_says_how_far_it_came_when_nobody_commits(intake: Intake) -> None:
    intake.submit(ORDERS, pa.record_batch({"id": [1, 2, 3]})).wait()
    publish(intake, 1)
    with pytest.raises(Unavailable, match="reached offset 1, and 3 was asked for") as raised:
        intake.flush(ORDERS, 0.05)
    assert "pipeline" in str(raised.value.hint)


@pytest.fixture
def two_partitions(
    make_settings: MakeSettings, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[Intake, Intake]]:
    """Two processes' intakes; the first may read the other's log, or knows nothing of it."""
    other = str(tmp_path / "other-log")
    logs = other if request.param == "reads" else ""
    with (
        Intake(make_settings(pipeline__logs=logs)) as first,
        Intake(make_settings(wal__path=other, ingest__partition=1)) as second,
    ):
        first.submit(ORDERS, pa.record_batch({"id": [1]})).wait()
        second.submit(ORDERS, pa.record_batch({"id": [2, 3]})).wait()
        publish(first, 1)
        yield first, second


@pytest.mark.parametrize("two_partitions", ["reads"], indirect=True)
def test_flush_waits_for_the_partitions_of_other_processes(
    two_partitions: tuple[Intake, Intake],
) -> None:
    first, second = two_partitions
    with pytest.raises(Unavailable, match=r"partition 1: .* offset 0, and 2 was asked") as late:
        first.flush(ORDERS, 0.05)
    assert late.value.context["partitions"] == "1"
    assert "calve up" in str(late.value.hint)
    assert {at.partition for at in first.state.flush_requests()} == {1}
    publish(second, 2)
    assert first.flush(ORDERS, 5).committed == 1


@pytest.mark.parametrize("two_partitions", ["knows nothing"], indirect=True)
def test_flush_leaves_out_a_partition_of_which_nothing_is_known(
    two_partitions: tuple[Intake, Intake],
) -> None:
    first, _ = two_partitions
    assert first.flush(ORDERS, 5).committed == 1


def test_a_flush_in_vain_says_what_keeps_it(intake: Intake) -> None:
    intake.submit(ORDERS, pa.record_batch({"id": [1]})).wait()
    intake.pipeline.pause()
    with pytest.raises(Unavailable) as paused:
        intake.flush(ORDERS, 0)
    assert "calve pipeline resume" in str(paused.value.hint)
    intake.pipeline.resume()
    topic = intake.topics.topic(ORDERS)
    intake.state.take_lease(PIPELINE_LEASE, "somebody", 60)
    failed = Progress(topic_id=topic.id, partition=0, rows_waiting=1, error="the table is gone")
    intake.state.publish_progress([failed])
    with pytest.raises(Unavailable) as failing:
        intake.flush(ORDERS, 0)
    assert "the table is gone" in str(failing.value.hint)


def test_flush_of_a_topic_without_rows_returns_at_once(intake: Intake) -> None:
    intake.create_topic(ORDERS, TopicSpec(schema={"id": "long"}))
    assert intake.flush(ORDERS, 0) == (0, 0, 0)
    assert intake.state.flush_requests() == {}


def test_committed_rows_leave_the_log(make_settings: MakeSettings) -> None:
    settings = make_settings(wal__hot_window_seconds=0, wal__segment_bytes_max=20_000)
    batch = pa.record_batch({"text": ["x" * 10_000]})
    with Intake(settings) as intake:
        for _ in range(6):
            intake.submit(ORDERS, batch).wait()
        assert intake.trim() == 0
        publish(intake, 4)
        assert intake.trim() > 0
        first = intake.offsets(ORDERS).first
        assert 0 < first <= 4
        assert len(rows_in(intake, start=first)) == 6 - first
        with pytest.raises(NotFound, match="no longer in the log"):
            list(intake.read(ORDERS, 0))


def send(intake: Intake, batches: list[pa.RecordBatch]) -> None:
    for batch in batches:
        intake.submit(ORDERS, batch).wait()


def test_a_full_log_is_a_refusal_with_a_delay_until_there_is_room(
    make_settings: MakeSettings,
) -> None:
    settings = make_settings(wal__disk_bytes_max=300_000, wal__segment_bytes_max=100_000)
    batch = pa.record_batch({"text": ["x" * 50_000]})
    with Intake(settings) as intake:
        with pytest.raises(Overloaded, match="disk_bytes_max") as raised:
            send(intake, [batch] * 10)
        assert raised.value.http_status == 429
        assert int(raised.value.context["retry_after_ms"]) > 0
        publish(intake, intake.offsets(ORDERS).durable)
        intake.trim()
        intake.submit(ORDERS, batch).wait()


def test_a_log_that_stopped_is_unavailable_to_producers(intake: Intake) -> None:
    intake.submit(ORDERS, pa.record_batch({"id": [1]})).wait()
    intake.log._journal.fence("the disk went away")
    pending = intake.log.submit(intake.log.stream(ORDERS), pa.record_batch({"id": [2]}))
    with pytest.raises(Fenced) as raised:
        pending.wait()
    assert as_refusal(raised.value).http_status == 503
    for refused in (
        lambda: intake.submit(ORDERS, pa.record_batch({"id": [2]})),
        lambda: intake.flush(ORDERS, 1),
    ):
        with pytest.raises(Unavailable, match="the disk went away") as told:
            refused()
        assert told.value.http_status == 503
        assert int(told.value.context["retry_after_ms"]) > 0


def test_an_error_that_is_no_stopped_log_stays_as_it_is() -> None:
    error = Overloaded("full")
    assert as_refusal(error) is error


def test_what_was_admitted_is_released_with_the_outcome(intake: Intake) -> None:
    admitted = intake.admission.hold(1000, "client")
    pending = intake.submit(ORDERS, pa.record_batch({"id": [1]}), admitted=admitted)
    released = threading.Event()
    pending.add_done_callback(lambda _: released.set())
    pending.wait()
    assert released.wait(10)
    assert intake.admission.held_bytes == 0
    admitted = intake.admission.hold(1000, "client")
    with pytest.raises(InvalidRequest):
        intake.submit(ORDERS, pa.record_batch({"id": ["x"]}), admitted=admitted)
    assert intake.admission.held_bytes == 0


def test_closing_gives_every_append_its_outcome(make_settings: MakeSettings) -> None:
    intake = Intake(make_settings())
    pending = [intake.submit(ORDERS, pa.record_batch({"id": [n]})) for n in range(50)]
    intake.close()
    intake.close()
    assert [each.wait().first for each in pending] == list(range(50))
    with pytest.raises(Unavailable, match="closed"):
        intake.submit(ORDERS, pa.record_batch({"id": [1]}))
    with pytest.raises(Unavailable, match="closed"):
        intake.submit(TableName.parse("others"), pa.record_batch({"id": [1]}))


def test_many_threads_lose_no_row_and_no_column(intake: Intake) -> None:
    def send(number: int) -> None:
        for each in range(10):
            batch = pa.record_batch({"n": [number], "i": [each], f"c{number % 8}": [each]})
            intake.submit(ORDERS, batch, producer=f"p{number}", sequence=each).wait()

    threads = [threading.Thread(target=send, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(columns_of(intake)) == sorted(["n", "i", *(f"c{n}" for n in range(8))])
    rows = rows_in(intake)
    assert len(rows) == 320
    for number in range(32):
        assert [row["i"] for row in rows if row["n"] == number] == list(range(10))


def test_two_processes_of_one_partition_each_share_a_topic(make_settings: MakeSettings) -> None:
    base = make_settings()
    second = {"wal__path": str(base.data / "second"), "ingest__partition": 1}
    with Intake(base) as one, Intake(make_settings(**second)) as two:
        one.submit(ORDERS, pa.record_batch({"a": [1]})).wait()
        two.submit(ORDERS, pa.record_batch({"b": [2]})).wait()
        one.submit(ORDERS, pa.record_batch({"c": [3]})).wait()
        assert columns_of(one) == ["a", "b", "c"]
        assert rows_in(one) == [{"a": 1}, {"c": 3}]
        assert rows_in(two) == [{"b": 2}]
        assert two.offsets(ORDERS) == (0, 1, 0)
        one.delete_topic(ORDERS)
        wait_until(lambda: two.log.streams == [])


def test_two_processes_of_the_same_partition_are_told(make_settings: MakeSettings) -> None:
    base = make_settings()
    with Intake(base) as one, Intake(make_settings(wal__path=str(base.data / "b"))) as two:
        one.submit(ORDERS, pa.record_batch({"a": [1]})).wait()
        with pytest.raises(Conflict, match="is in log") as raised:
            two.submit(ORDERS, pa.record_batch({"a": [1]}))
        assert "ingest.partition" in str(raised.value.hint)


def test_two_processes_that_create_one_topic_make_one(make_settings: MakeSettings) -> None:
    settings = make_settings()
    code = (
        "import sys; from calve.settings import load_settings; from calve.ingest import Intake\n"
        "from calve.model import TableName; import pyarrow as pa\n"
        "flags = {'data': sys.argv[1], 'ingest.partition': int(sys.argv[2]),"
        " 'wal.path': sys.argv[1] + '/wal' + sys.argv[2]}\n"
        "with Intake(load_settings(flags=flags, environ={}).settings) as intake:\n"
        "    for n in range(20):\n"
        "        batch = pa.record_batch({'n': [n], f'c{sys.argv[2]}_{n % 4}': ['x']})\n"
        "        intake.submit(TableName.parse('orders'), batch).wait()\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(settings.data), str(partition)])
        for partition in range(2)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    state = open_state(settings)
    topic = TopicRegistry(state).topic(ORDERS)
    state.close()
    expected = {"n", *(f"c{p}_{n}" for p in range(2) for n in range(4))}
    assert {field.name for field in topic.schema.fields} == expected
    assert set(topic.partitions) == {0, 1}


@pytest.mark.parametrize(
    "rows",
    [
        [{"id": 1, "name": "a"}, {"id": 2}],
        {"id": [1, 2], "name": ["a", None]},
        pa.table({"id": [1, 2], "name": ["a", None]}),
        pd.DataFrame({"id": [1, 2], "name": ["a", None]}),
        pl.DataFrame({"id": [1, 2], "name": ["a", None]}),
    ],
    ids=["dicts", "columns", "arrow", "pandas", "polars"],
)
def test_a_lake_takes_rows_of_any_kind(make_settings: MakeSettings, rows: Any) -> None:
    with Lake(make_settings()) as lake:
        assert lake.produce("orders", rows) == (2, 0, 2, False)
        assert rows_in(lake.intake) == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]


def test_values_follow_the_types_that_the_topic_has(intake: Intake) -> None:
    intake.create_topic(ORDERS, TopicSpec(schema={"id": "int", "price": "double", "day": "date"}))
    produce(intake, ORDERS, [{"id": 1, "price": 2, "day": "2026-01-02"}])
    kinds = {
        field.name: str(field.field_type) for field in intake.topics.topic(ORDERS).schema.fields
    }
    assert kinds == {"id": "int", "price": "double", "day": "date"}
    with pytest.raises(InvalidRequest, match="row 2, column 'price'"):
        produce(intake, ORDERS, [{"price": 1.5}, {"price": "much"}])
    with pytest.raises(InvalidRequest, match="no rows"):
        produce(intake, ORDERS, [])


def test_a_large_produce_is_several_appends_unless_it_has_a_sequence(
    make_settings: MakeSettings,
) -> None:
    with Intake(make_settings(ingest__request_bytes_max=100_000)) as intake:
        rows = [pa.record_batch({"text": ["x" * 60_000]}) for _ in range(3)]
        assert produce(intake, ORDERS, rows) == (3, 0, 3, False)
        with pytest.raises(InvalidRequest, match="request_bytes_max"):
            produce(intake, ORDERS, rows, producer="p", sequence=0)
        assert intake.offsets(ORDERS).durable == 3


def test_a_lake_whose_log_a_service_has_says_so(make_settings: MakeSettings) -> None:
    settings = make_settings()
    with Intake(settings), Lake(settings) as lake:
        with pytest.raises(Conflict, match="somebody else takes rows") as raised:
            lake.produce("orders", [{"id": 1}])
        assert "Client" in str(raised.value.hint)


def test_a_lake_flushes_and_closes_its_intake(make_settings: MakeSettings) -> None:
    with calve.open(make_settings()) as lake:
        lake.produce("orders", [{"id": 1}], producer="p", sequence=0)
        assert lake.produce("orders", [{"id": 1}], producer="p", sequence=0).is_repeat
        with pytest.raises(Unavailable, match="not flushed"):
            lake.flush("orders", timeout_seconds=0.01)
        publish(lake.intake, 1)
        assert lake.flush("orders").committed == 1
    with Intake(make_settings()) as intake:
        assert intake.offsets(ORDERS).durable == 1
    with pytest.raises(InvalidRequest, match="closed"):
        lake.produce("orders", [{"id": 1}])
