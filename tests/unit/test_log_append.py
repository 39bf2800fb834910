"""Appending: offsets, parts, handles, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from calve.errors import (
    Conflict,
    Fenced,
    InvalidRequest,
    NotFound,
    Unavailable,
    UnknownOutcome,
)
from calve.model import TableName
from calve.wal import Log, LogOptions, LogReader, NewStream, PendingAppend, Rejected
from calve.wal.frame import Kind, checksum
from calve.wal.payload import SchemaCache, encode
from tests.fakes.oracle import TOPIC, read_values, rows


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "wal", LogOptions(free_bytes_min=0)) as log:
        yield log


def test_offsets_are_dense_per_topic_and_partition(log: Log) -> None:
    other = TableName.parse("acme.sales.clicks")
    streams = log.create_streams([NewStream(TOPIC, 0), NewStream(TOPIC, 1), NewStream(other)])
    found = {stream: [] for stream in streams}  # type: ignore[var-annotated]
    for count in (1, 3, 2):
        for stream in streams:
            result = log.append(stream, rows(0, count))
            found[stream].append((result.first, result.end))
    assert all(ranges == [(0, 1), (1, 4), (4, 6)] for ranges in found.values())


def test_parts_of_one_append_have_contiguous_offsets(log: Log) -> None:
    stream = log.create_stream(TOPIC)
    bad = [Rejected(b"{", "application/json", "unexpected end"), Rejected(b"", "text/csv", "empty")]
    result = log.append(stream, [rows(0, 2), bad, rows(2)])
    assert (result.first, result.end) == (0, 5)
    with log.reader() as reader:
        entries = list(reader.read(stream, 0))
    assert [(entry.kind, entry.first_offset) for entry in entries] == [
        (Kind.ROWS, 0),
        (Kind.REJECTED, 2),
        (Kind.ROWS, 4),
    ]
    assert entries[1].rejected == bad


def test_a_new_log_for_a_table_with_rows_starts_at_the_committed_offset(log: Log) -> None:
    stream = log.create_stream(TOPIC, first_offset=1000)
    assert log.append(stream, rows(0)).first == 1000
    with log.reader() as reader:
        assert reader.offsets(stream) == (1000, 1001)


NESTED = pa.struct([("list", pa.list_(pa.map_(pa.string(), pa.float64()))), ("n", pa.int8())])


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"d": pa.array(["a", "b", None, "a"]).dictionary_encode()}),
        pa.record_batch({"s": pa.array([{"list": [[("k", 1.5)]], "n": 3}, None], NESTED)}),
        pa.record_batch(
            {
                "l": pa.array(
                    [[["x"]], []], pa.list_(pa.list_(pa.dictionary(pa.int8(), pa.string())))
                )
            }
        ),
        pa.record_batch({"t": pa.array([1, None], pa.timestamp("ns", "UTC"))}),
        pa.record_batch({"b": pa.array([b"x" * 100_000])}),
        pa.record_batch({"id": pa.array(range(100))}).slice(40, 5),
        pa.record_batch([pa.array([1])], pa.schema([pa.field("x", pa.int64())], {"k": "v"})),
        pa.record_batch([pa.nulls(3)], ["n"]),
    ],
    ids=["dictionary", "nested", "nested dictionary", "time", "large", "slice", "metadata", "null"],
)
def test_every_arrow_type_comes_back_as_it_went_in(log: Log, batch: pa.RecordBatch) -> None:
    stream = log.create_stream(TOPIC)
    log.append(stream, rows(7))
    log.append(stream, batch)
    with log.reader() as reader:
        (entry,) = reader.read(stream, 1)
    assert entry.batch is not None
    assert entry.batch.equals(batch)
    assert entry.batch.schema.equals(batch.schema, check_metadata=True)


def test_schemas_may_change_from_one_append_to_the_next(log: Log) -> None:
    stream = log.create_stream(TOPIC)
    batches = [pa.record_batch({f"c{i % 5}": [i]}) for i in range(20)]
    batches += [batches[-1].replace_schema_metadata({"version": str(i)}) for i in range(3)]
    for i, batch in enumerate(batches):
        log.append(stream, batch)
        if i % 6 == 5:
            log.rotate()
    with log.reader() as reader:
        found = [entry.batch for entry in reader.read(stream, 0)]
    assert found == batches
    assert [one.schema.metadata for one in found if one] == [one.schema.metadata for one in batches]


def test_many_appends_in_flight_keep_their_order(log: Log) -> None:
    stream = log.create_stream(TOPIC)
    handles = [log.submit(stream, rows(i)) for i in range(200)]
    assert [handle.wait().first for handle in handles] == list(range(200))
    with log.reader() as reader:
        assert read_values(reader, TOPIC) == list(range(200))


def test_a_callback_is_enough_to_get_an_append_written(log: Log) -> None:
    stream = log.create_stream(TOPIC)
    done = threading.Event()
    handle = log.submit(stream, rows(1))
    handle.add_done_callback(lambda _: done.set())
    assert done.wait(5)
    assert handle.is_done


def test_without_a_thread_a_callback_is_called_at_once(tmp_path: Path) -> None:
    with Log(tmp_path / "wal", LogOptions(free_bytes_min=0), background=False) as log:
        handle = log.submit(log.create_stream(TOPIC), rows(1))
        called: list[PendingAppend] = []
        assert not handle.is_done
        handle.add_done_callback(called.append)
        handle.add_done_callback(called.append)
        assert called == [handle, handle]


def test_an_append_that_nobody_waits_for_is_written_soon(log: Log) -> None:
    stream = log.create_stream(TOPIC)
    log.submit(stream, rows(1))
    with log.reader() as reader:
        assert reader.wait(stream, 0, timeout_seconds=5)


def test_a_callback_that_fails_keeps_nobody_from_an_acknowledgement(log: Log) -> None:
    stream = log.create_stream(TOPIC)

    def broken(handle: PendingAppend) -> None:
        raise RuntimeError("a mistake of the caller")

    first = log.submit(stream, rows(1))
    second = log.submit(stream, rows(2))
    first.add_done_callback(broken)
    assert second.wait().first == 1
    assert first.wait().first == 0


def test_close_writes_what_is_pending(tmp_path: Path) -> None:
    log = Log(tmp_path / "wal", LogOptions(free_bytes_min=0), background=False)
    stream = log.create_stream(TOPIC)
    handle = log.submit(stream, rows(5))
    log.close()
    assert handle.wait().first == 0
    with LogReader(tmp_path / "wal") as reader:
        assert read_values(reader, TOPIC) == [5]


def test_a_closed_log_refuses(log: Log) -> None:
    stream = log.create_stream(TOPIC)
    log.close()
    with pytest.raises(Unavailable):
        log.append(stream, rows(1))
    with pytest.raises(Unavailable):
        log.flush()


def test_over_the_bound_on_memory_appends_are_refused_with_a_delay(tmp_path: Path) -> None:
    options = LogOptions(pending_bytes_max=10_000, free_bytes_min=0)
    with Log(tmp_path / "wal", options, background=False) as log:
        stream = log.create_stream(TOPIC)
        accepted = [log.submit(stream, rows(i)) for i in range(4)]
        with pytest.raises(Unavailable) as refused:
            log.submit(stream, rows(9))
        assert int(refused.value.context["retry_after_ms"]) > 0
        assert [handle.wait().first for handle in accepted] == [0, 1, 2, 3]
        assert log.submit(stream, rows(9)).wait().first == 4


@pytest.mark.parametrize("rows_", [rows(0, 0), [], [rows(0), rows(0, 0)], [[]]])
def test_an_append_without_rows_is_refused(log: Log, rows_: object) -> None:
    stream = log.create_stream(TOPIC)
    with pytest.raises(InvalidRequest):
        log.append(stream, rows_)
    assert log.next_offset(stream) == 0


def test_unknown_and_deleted_topics_are_not_found(log: Log) -> None:
    with pytest.raises(NotFound):
        log.stream(TOPIC)
    stream = log.create_stream(TOPIC)
    log.delete_stream(stream)
    with pytest.raises(NotFound):
        log.append(stream, rows(0))
    with pytest.raises(NotFound):
        log.delete_stream(stream)


def test_a_topic_is_not_created_twice(log: Log) -> None:
    log.create_stream(TOPIC)
    with pytest.raises(Conflict):
        log.create_stream(TOPIC)
    with pytest.raises(Conflict):
        log.create_streams([NewStream(TOPIC, 1), NewStream(TOPIC, 1)])
    assert len(log.streams) == 1


def test_64_threads_get_an_offset_each(log: Log) -> None:
    stream = log.create_stream(TOPIC)
    found: list[int | None] = []

    def work() -> None:
        for _ in range(20):
            found.append(log.append(stream, rows(0)).first)  # noqa: PERF401

    threads = [threading.Thread(target=work) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(filter(lambda offset: offset is not None, found)) == list(range(64 * 20))  # type: ignore[type-var]


def test_a_log_is_large_only_by_what_it_holds(tmp_path: Path) -> None:
    """Space reserved ahead is given back when the log is closed."""
    with Log(tmp_path / "wal", LogOptions(free_bytes_min=0)) as log:
        log.append(log.create_stream(TOPIC), rows(0))
    assert sum(path.stat().st_size for path in (tmp_path / "wal").iterdir()) < 10_000


def test_rows_that_cannot_be_encoded_fail_alone(log: Log) -> None:
    stream = log.create_stream(TOPIC)
    before = log.submit(stream, rows(0))
    bad = log.submit(stream, [rows(7), [Rejected(b"{", "text/plain", "lone \ud800 surrogate")]])
    after = log.submit(stream, rows(1))
    assert after.wait(5).first == 1
    assert before.wait(5).first == 0
    with pytest.raises(InvalidRequest):
        bad.wait(5)
    done = threading.Event()
    bad = log.submit(stream, [Rejected(b"{", "text/plain", "\udfff")])
    bad.add_done_callback(lambda _: done.set())  # by the log's own thread
    assert done.wait(5)
    assert log.append(stream, rows(2)).first == 2
    assert read_values(log.reader(), TOPIC) == [0, 1, 2]


def test_the_logs_thread_never_leaves_appends_waiting(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = log.create_stream(TOPIC)

    def fail(*_: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr("calve.wal.group.Group.add", fail)
    pending = [log.submit(stream, rows(i)) for i in range(3)]
    done = [threading.Event() for _ in pending]
    for handle, event in zip(pending, done, strict=True):
        handle.add_done_callback(lambda _, event=event: event.set())  # type: ignore[misc]
    assert all(event.wait(5) for event in done)
    assert log.is_fenced
    for handle in pending:
        with pytest.raises((UnknownOutcome, Fenced)):
            handle.wait()
    with pytest.raises(Fenced):
        log.append(stream, rows(9))


@pytest.mark.parametrize(
    "wanted",
    [
        NewStream(TOPIC, 0, -1),
        NewStream(TOPIC, 0, 1 << 63),
        NewStream(TOPIC, -1),
        NewStream(TOPIC, 1 << 31),
    ],
)
def test_offsets_and_partitions_out_of_range_are_refused(tmp_path: Path, wanted: NewStream) -> None:
    with Log(tmp_path / "other", LogOptions(free_bytes_min=0)) as log:
        with pytest.raises(InvalidRequest):
            log.create_streams([wanted])
        stream = log.create_stream(TOPIC)
        with pytest.raises(InvalidRequest):
            log.record_hole(stream, 0, 1 << 63)
        log.append(stream, rows(0))
        log.rotate()
        log.append(stream, rows(1))
    with Log(tmp_path / "other", LogOptions(free_bytes_min=0)) as log:
        assert read_values(log.reader(), TOPIC) == [0, 1]


LARGE = ["x" * 1000] * 1000
LARGE_BATCHES = {
    "one column": pa.record_batch({"text": LARGE}),
    "two, one of them small": pa.record_batch({"text": LARGE, "id": range(1000)}),
    "nulls": pa.record_batch({"text": [*LARGE[:500], *[None] * 500], "none": pa.nulls(1000)}),
    "a slice": pa.record_batch({"text": LARGE * 3}).slice(999, 1001),
    "nested": pa.record_batch({"all": [{"a": [text, None], "b": {"c": 1}} for text in LARGE]}),
    "with metadata": pa.record_batch({"text": LARGE}).replace_schema_metadata({"k": "v"}),
}


@pytest.mark.parametrize("batch", LARGE_BATCHES.values(), ids=LARGE_BATCHES)
def test_large_columns_are_written_as_arrow_writes_them_and_not_copied(
    tmp_path: Path, batch: pa.RecordBatch
) -> None:
    whole = batch.serialize().to_pybytes()
    allocated = pa.total_allocated_bytes()
    part = encode(batch, SchemaCache())
    assert pa.total_allocated_bytes() - allocated < len(whole) / 2
    assert b"".join(part.payload) == whole
    assert (part.payload_bytes, part.payload_sum) == (len(whole), checksum(whole))
    with Log(tmp_path / "wal", LogOptions(free_bytes_min=0), background=False) as log:
        stream = log.create_stream(TOPIC)
        log.append(stream, [rows(0), batch, batch])
        with log.reader() as reader:
            assert [entry.batch for entry in reader.read(stream, 0)] == [rows(0), batch, batch]


def test_threads_encode_large_batches_of_one_schema_side_by_side(log: Log) -> None:
    stream = log.create_stream(TOPIC)
    batches = [pa.record_batch({"text": [f"{i}" * 200_000, f"{i}"]}) for i in range(8)]
    threads = [
        threading.Thread(target=lambda b=b: [log.append(stream, b) for _ in range(20)])
        for b in batches
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with log.reader() as reader:
        found = [entry.batch for entry in reader.read(stream, 0)]
    assert len(found) == 160
    assert all(found.count(batch) == 20 for batch in batches)


def test_a_large_batch_is_let_go_once_it_is_written(log: Log) -> None:
    stream = log.create_stream(TOPIC)
    allocated = pa.total_allocated_bytes()
    handle = log.submit(stream, pa.record_batch({"text": ["x" * 5_000_000]}))
    assert pa.total_allocated_bytes() - allocated > 5_000_000
    handle.wait()
    assert pa.total_allocated_bytes() - allocated < 1_000_000


def test_a_large_batch_that_failed_leaves_nothing_to_the_next() -> None:
    schemas, batch = SchemaCache(), pa.record_batch({"text": ["x" * 100_000]})
    other = pa.record_batch({"text": ["x"], "more": [1]})
    writer = schemas.large_writer(schemas.encoded(batch.schema), batch)
    writer._sink.write(b"half of it")
    with pytest.raises(pa.ArrowInvalid):
        writer.write(other)
    assert b"".join(encode(batch, schemas).payload) == batch.serialize().to_pybytes()
