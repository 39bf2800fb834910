"""What does not fit is refused alone, before anything is written; its neighbours are acknowledged."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from calve.errors import Corruption, InvalidRequest, Unavailable
from calve.wal import Log, LogOptions, NewStream, Rejected, Stream, payload
from calve.wal.frame import pack
from calve.wal.group import OFFSET_MAX
from calve.wal.payload import SCHEMA_BYTES_MAX, schema_id
from tests.fakes.oracle import TOPIC, read_values, rows


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "wal", LogOptions(free_bytes_min=0), background=False) as log:
        yield log


def submit_around(log: Log, stream: Stream, bad: object, **producer: object) -> InvalidRequest:
    """The refusal of `bad`, sent in one group between two good appends."""
    first = log.next_offset(stream)
    before = log.submit(stream, rows(1))
    between = log.submit(stream, bad, **producer)  # type: ignore[arg-type]
    after = log.submit(stream, rows(2))
    assert after.wait(5).first == first + 1
    assert before.wait(5).first == first
    with pytest.raises(InvalidRequest) as refused:
        between.wait(5)
    return refused.value


def wide(columns: int, width: int = 8) -> pa.RecordBatch:
    return pa.record_batch({f"{i:0{width}}": [i] for i in range(columns)})


@pytest.mark.parametrize("failing_frame", [1, 2, 3, 4])
def test_an_error_while_frames_are_placed_reaches_nobody_else(
    log: Log, monkeypatch: pytest.MonkeyPatch, failing_frame: int
) -> None:
    """The bad one has a schema of its own, in two frames, and two parts."""
    stream = log.create_stream(TOPIC)
    log.append(stream, rows(0))
    bad = [pa.record_batch({"other": ["bad"]}), pa.record_batch({"other": ["worse"]})]
    schema = schema_id(bad[0].schema.serialize().to_pybytes())
    packed = 0

    def fail(header: tuple[bytes | int, ...], producer: bytes = b"") -> bytes:
        nonlocal packed
        if schema in header:
            packed += 1
            if packed == failing_frame:
                raise struct.error("argument out of range")
        return pack(header, producer)

    monkeypatch.setattr("calve.wal.group.pack", fail)
    refusal = submit_around(log, stream, bad, producer="p", sequence=0)
    assert "argument out of range" in refusal.message
    monkeypatch.undo()
    assert not log.is_fenced
    assert log.append(stream, bad, producer="p", sequence=0).first == 3
    log.close()
    with Log(log.directory, LogOptions(free_bytes_min=0), background=False) as again:
        with again.reader() as reader:
            found = [entry.batch for entry in reader.read(stream, 0)]
        assert found == [rows(0), rows(1), rows(2), *bad]
        assert again.append(stream, bad, producer="p", sequence=0).is_repeat


def test_offsets_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "wal"
    with Log(path, LogOptions(free_bytes_min=0), background=False) as log:
        last, other = log.create_streams([NewStream(TOPIC, 0, OFFSET_MAX - 3), NewStream(TOPIC, 1)])
        handles = [log.submit(last, rows(0, 4)), log.submit(last, rows(0, 3))]
        handles.append(log.submit(other, rows(7)))
        with pytest.raises(InvalidRequest) as refused:
            handles[0].wait(5)
        assert "no offsets left" in refused.value.message
        assert handles[1].wait(5) == (OFFSET_MAX - 3, OFFSET_MAX, False)
        assert handles[2].wait(5).first == 0
        with pytest.raises(InvalidRequest):
            log.append(last, rows(0))
    with Log(path, LogOptions(free_bytes_min=0), background=False) as log:
        assert log.next_offset(log.stream(TOPIC)) == OFFSET_MAX
        assert read_values(log.reader(), TOPIC, 1) == [7]


def test_a_schema_that_is_too_large_is_refused(log: Log) -> None:
    stream = log.create_stream(TOPIC)
    large = rows(0).replace_schema_metadata({"x": "y" * SCHEMA_BYTES_MAX})
    refusal = submit_around(log, stream, large)
    assert str(SCHEMA_BYTES_MAX) in (refusal.hint or "")
    log.append(stream, wide(5_000))


def test_many_large_schemas_at_once_are_refused_with_a_delay(log: Log) -> None:
    """Each is small enough, but the rows beside them would not account for what they take."""
    stream = log.create_stream(TOPIC)
    text = "y" * (SCHEMA_BYTES_MAX - 4096)
    batches = [rows(i).replace_schema_metadata({"x": text, "i": str(i)}) for i in range(6)]
    used = log.bytes_used
    handles = [log.submit(stream, batch) for batch in batches]
    small = log.submit(stream, rows(9))
    assert [handle.wait(5).first for handle in handles[:4]] == [0, 1, 2, 3]
    for handle in handles[4:]:
        with pytest.raises(Unavailable) as refused:
            handle.wait(5)
        assert int(refused.value.context["retry_after_ms"]) > 0
    assert small.wait(5).first == 4
    assert log.bytes_used - used < 2 * 4 * SCHEMA_BYTES_MAX + 100_000
    assert log.append(stream, batches[4]).first == 5


@pytest.mark.parametrize(
    ("producer", "sequence"),
    [
        ("lone \ud800", 0),
        ("p", 1.5),
        ("p", "0"),
        (b"p", 0),
        ("p", 1 << 63),
        ("", 0),
        ("ä" * 128, 0),
    ],
)
def test_a_producer_that_does_not_fit_is_refused_at_once(
    log: Log, producer: object, sequence: object
) -> None:
    stream = log.create_stream(TOPIC)
    neighbour = log.submit(stream, rows(0))
    with pytest.raises(InvalidRequest):
        log.submit(stream, rows(1), producer=producer, sequence=sequence)  # type: ignore[arg-type]
    assert neighbour.wait(5).first == 0
    assert read_values(log.reader(), TOPIC) == [0]


def dictionary_of_a_dictionary() -> pa.RecordBatch:
    """Arrow writes it to a stream and then cannot read it."""
    words = pa.array(["a", "b"]).dictionary_encode()
    return pa.record_batch({"x": pa.DictionaryArray.from_arrays(pa.array([0, 1]), words)})


def test_rows_that_could_not_be_read_back_are_refused(log: Log) -> None:
    stream = log.create_stream(TOPIC)
    with pytest.raises(InvalidRequest, match="cannot be written as Arrow"):
        log.append(stream, dictionary_of_a_dictionary())
    words = pa.ListArray.from_arrays([0, 1, 2], pa.array(["a", "b"]).dictionary_encode())
    batch = pa.record_batch({"x": words})
    assert log.append(stream, batch).first == 0
    with log.reader() as reader:
        assert [entry.batch for entry in reader.read(stream, 0)] == [batch]


def test_rows_that_an_older_build_took_and_arrow_cannot_read_are_named(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = log.create_stream(TOPIC)
    monkeypatch.setattr(payload, "decode_batch", lambda *_: None)
    log.append(stream, dictionary_of_a_dictionary())
    with log.reader() as reader, pytest.raises(Corruption) as reported:
        list(reader.read(stream, 0))
    assert (reported.value.context["first"], reported.value.context["end"]) == ("0", "2")


def test_an_estimate_is_not_far_below_what_is_written() -> None:
    column = pa.array([0] * 8192)
    parts: dict[str, payload.Part] = {
        "shared": pa.record_batch([column] * 50, names=[str(i) for i in range(50)]),
        "wide": wide(2000),
        "small": rows(0),
        "content type": [Rejected(b"x", "t" * 100_000, "r")] * 2,
        "not ascii": [Rejected(b"x", "t", "\u20ac" * 100_000)] * 2,
    }
    for name, part in parts.items():
        written = len(payload.encode(part, payload.SchemaCache()).payload)
        assert payload.bytes_estimate(part) + 2048 >= written, name
    sliced = pa.record_batch({"x": column}).slice(0, 1)
    assert payload.bytes_estimate(sliced) < 1000
