"""The frame format: what was packed is read, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calve.wal.frame import (
    ALIGNMENT,
    LONG_VERSION,
    MAGIC,
    VERSION,
    BadFrame,
    Flag,
    Header,
    Kind,
    UnknownFormat,
    checksum,
    pack,
    padding,
    read_frame,
)
from calve.wal.scan import Walk

WORD = st.integers(0, (1 << 64) - 1)
SALT = st.integers(1, (1 << 63) - 1)


@st.composite
def frames(draw: st.DrawFn, position: int, salt: int) -> tuple[Header, str | None, bytes]:
    producer = draw(st.none() | st.text(min_size=1, max_size=40))
    payload = draw(st.binary(max_size=300))
    header = Header(
        MAGIC, VERSION, draw(st.sampled_from([Kind.ROWS, Kind.SCHEMA, Kind.HOLE])),
        0 if producer is None else Flag.PRODUCED,
        position, salt, draw(WORD), draw(WORD), draw(WORD),
        draw(st.integers(-(1 << 63), (1 << 63) - 1)), draw(WORD), draw(WORD), draw(WORD),
        draw(WORD), checksum(payload), len(payload), draw(st.integers(0, (1 << 32) - 1)),
        len((producer or "").encode()), 0, draw(WORD),
    )  # fmt: skip
    return header, producer, payload


def encode(header: Header, producer: str | None, payload: bytes) -> bytes:
    return pack(header, (producer or "").encode()) + payload + padding(len(payload))


@given(st.data(), st.integers(0, 5), SALT)
def test_a_frame_comes_back_as_it_was(data: st.DataObject, blocks: int, salt: int) -> None:
    position = blocks * ALIGNMENT
    header, producer, payload = data.draw(frames(position, salt))
    content = bytes(position) + encode(header, producer, payload)
    assert len(content) % ALIGNMENT == 0
    found = read_frame(memoryview(content), position, salt)
    assert (found.header, found.producer, bytes(found.payload)) == (header, producer, payload)
    assert found.end == len(content)


@given(st.data(), SALT)
def test_a_changed_frame_is_refused(data: st.DataObject, salt: int) -> None:
    header, producer, payload = data.draw(frames(0, salt))
    content = bytearray(encode(header, producer, payload))
    used = len(content) - (-len(payload) % ALIGNMENT)  # padding behind a payload means nothing
    at = data.draw(st.integers(0, used - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadFrame):
        read_frame(memoryview(bytes(content)), 0, salt)


@given(st.data(), SALT, SALT)
def test_a_frame_in_another_place_or_segment_is_refused(
    data: st.DataObject, salt: int, other: int
) -> None:
    header, producer, payload = data.draw(frames(0, salt))
    content = encode(header, producer, payload)
    with pytest.raises(BadFrame):
        read_frame(memoryview(bytes(ALIGNMENT) + content), ALIGNMENT, salt)
    if other != salt:
        with pytest.raises(BadFrame):
            read_frame(memoryview(content), 0, other)


@given(st.data(), SALT)
def test_a_frame_inside_a_payload_is_not_taken_for_one(data: st.DataObject, salt: int) -> None:
    """A whole log sent as a row must not come to life when its frame is damaged."""
    inner, _, payload = data.draw(frames(0, salt))
    outer = Header(*inner)._replace(
        producer_bytes=0, flags=0,
        payload_bytes=len(encode(inner, None, payload)),
        payload_sum=checksum(encode(inner._replace(producer_bytes=0, flags=0), None, payload)),
    )  # fmt: skip
    body = encode(inner._replace(producer_bytes=0, flags=0), None, payload)
    outer = outer._replace(payload_bytes=len(body), payload_sum=checksum(body))
    content = bytearray(encode(outer, None, body))
    content[0] ^= 1
    walk = Walk(memoryview(bytes(content)), 128, salt)
    assert list(walk) == []


@given(st.data(), st.sampled_from([Kind.BEGIN, Kind.COMMIT, Kind.ABORT, 99]), SALT)
def test_a_whole_frame_of_an_unknown_kind_is_no_torn_tail(
    data: st.DataObject, kind: int, salt: int
) -> None:
    header, producer, payload = data.draw(frames(0, salt))
    content = encode(header._replace(kind=kind), producer, payload)
    with pytest.raises(UnknownFormat):
        read_frame(memoryview(content), 0, salt)


@given(st.binary(max_size=2000), SALT)
def test_any_bytes_are_read_or_refused(content: bytes, salt: int) -> None:
    walk = Walk(memoryview(content), 0, salt)
    assert list(walk) == []
    assert walk.end == 0


@given(st.data(), st.lists(st.none(), max_size=6), SALT)
def test_a_walk_finds_every_frame_and_stops_at_the_end(
    data: st.DataObject, count: list[None], salt: int
) -> None:
    content = b""
    for _ in count:
        content += encode(*data.draw(frames(len(content), salt)))
    walk = Walk(memoryview(content + bytes(data.draw(st.integers(0, 500)))), 0, salt)
    assert len(list(walk)) == len(count)
    assert walk.end == len(content)
    assert walk.stop is None


@given(st.data(), st.sampled_from([Kind.ROWS, Kind.SCHEMA]), SALT)
def test_only_a_hole_has_the_version_of_long_holes(
    data: st.DataObject, kind: Kind, salt: int
) -> None:
    header, producer, payload = data.draw(frames(0, salt))
    changed = header._replace(kind=kind, version=LONG_VERSION)
    with pytest.raises(UnknownFormat):
        read_frame(memoryview(encode(changed, producer, payload)), 0, salt)


@given(st.data(), WORD, WORD, SALT)
def test_a_hole_covers_any_range(data: st.DataObject, one: int, other: int, salt: int) -> None:
    first, end = sorted((one, other))
    header, _, _ = data.draw(frames(0, salt))
    hole = header._replace(kind=Kind.HOLE, flags=0, producer_bytes=0, payload_bytes=0)
    hole = hole._replace(payload_sum=checksum(b"")).covering(first, end)
    found = read_frame(memoryview(encode(hole, None, b"")), 0, salt).header
    assert (found.first_offset, found.end_offset) == (first, end)
