"""What a log knows at one point: its streams with their next offsets, and its producers.

A stream is one life of a topic's partition: made again after a deletion, it is another stream.
Every segment begins with the whole state, so that it can be read alone and older ones can go.
`LogState.apply` is the only way from one frame to the next, for recovery, readers and repair.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from calve.model import TableName
from calve.wal.frame import Flag, Frame, Header, Kind
from calve.wal.producers import History, OffsetPair, ProducerKey, ProducerMemory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

PRODUCERS_MAX: Final = 10_000

assert sys.byteorder == "little", "the log's columns are read as they lie: little-endian"


@dataclass(frozen=True, slots=True)
class Stream:
    """One life of a topic's partition. `id` is its identity; `number` is short for it here."""

    number: int
    id: UUID
    topic: TableName
    partition: int
    first_offset: int

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.partition}"


class NotDense(Exception):
    """A frame does not continue what came before it."""


class _StreamRecord(msgspec.Struct, array_like=True, frozen=True):
    number: int
    id: bytes
    topic: tuple[str, str, str]
    partition: int
    first_offset: int


class _ProducerRecord(msgspec.Struct, array_like=True, frozen=True):
    stream: int
    producer: str
    last_sequence: int
    firsts: bytes
    ends: bytes


class _StateRecord(msgspec.Struct, frozen=True):
    next_stream: int
    last_time_us: int
    streams: list[_StreamRecord]
    producers: list[_ProducerRecord]


_ENCODER: Final = msgspec.msgpack.Encoder()
_STATE_DECODER: Final = msgspec.msgpack.Decoder(_StateRecord)
_STREAM_DECODER: Final = msgspec.msgpack.Decoder(_StreamRecord)


class LogState:
    def __init__(self, producers_max: int = PRODUCERS_MAX) -> None:
        self.next_stream = 1
        self.last_time_us = 0
        self.next_offsets: dict[int, int] = {}
        self.producers = ProducerMemory(producers_max)
        self._streams: dict[int, Stream] = {}
        self._by_name: dict[tuple[TableName, int], Stream] = {}
        self._append_first: int | None = None

    @property
    def streams(self) -> Collection[Stream]:
        return self._streams.values()

    def stream(self, number: int) -> Stream | None:
        return self._streams.get(number)

    def find(self, topic: TableName, partition: int) -> Stream | None:
        return self._by_name.get((topic, partition))

    def apply(self, header: Header, producer: str | None, payload: memoryview) -> None:
        """Take in the next frame, or raise NotDense and stay as before."""
        if header.takes_offsets:
            self._advance(header, producer)
        elif header.kind == Kind.STREAM_OPENED:
            self.add(decode_stream(payload))
        elif header.kind == Kind.STREAM_CLOSED:
            self.remove(header.stream)
        self.last_time_us = max(self.last_time_us, header.ingested_at_us)

    def advance(self, ends: Iterable[tuple[int, int]], time_us: int) -> None:
        """Take in rows that were placed where this state ends: streams, and where they end now."""
        self.next_offsets.update(ends)
        self.last_time_us = max(self.last_time_us, time_us)

    def apply_frame(self, frame: Frame) -> None:
        self.apply(frame.header, frame.producer, frame.payload)

    def _advance(self, header: Header, producer: str | None) -> None:
        if header.stream not in self._streams:
            raise NotDense(f"stream {header.stream} was never opened")
        expected = self.next_offsets[header.stream]
        if header.first_offset != expected:
            raise NotDense(f"offset {header.first_offset} comes where {expected} should")
        self.next_offsets[header.stream] = header.end_offset
        first = header.first_offset if self._append_first is None else self._append_first
        if header.flags & Flag.MORE:
            self._append_first = first
            return
        self._append_first = None
        if producer is not None:
            key = ProducerKey(header.stream, producer)
            self.producers.record(key, header.sequence, OffsetPair(first, header.end_offset))

    def add(self, stream: Stream) -> None:
        if stream.number in self._streams:
            return  # its frame is written twice
        self._streams[stream.number] = stream
        self._by_name[stream.topic, stream.partition] = stream
        self.next_offsets[stream.number] = stream.first_offset
        self.next_stream = max(self.next_stream, stream.number + 1)

    def remove(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            del self._by_name[stream.topic, stream.partition]
            del self.next_offsets[number]
            self.producers.forget_stream(number)

    def encode(self) -> bytes:
        """Two columns for binary search, stream numbers and next offsets; then the rest."""
        numbers = sorted(self._streams)
        record = _StateRecord(
            self.next_stream,
            self.last_time_us,
            [_stream_record(self._streams[number]) for number in numbers],
            [_ProducerRecord(*k, h.last_sequence, *h.columns()) for k, h in self.producers.items()],
        )
        return b"".join(
            (
                column([len(numbers)]),
                column(numbers),
                column(self.next_offsets[number] for number in numbers),
                zlib.compress(_ENCODER.encode(record), 1),
            )
        )

    @classmethod
    def decode(cls, payload: memoryview, producers_max: int = PRODUCERS_MAX) -> LogState:
        starts = StartOffsets(payload)
        state = cls(producers_max)
        record = _STATE_DECODER.decode(zlib.decompress(payload[starts.bytes_used :]))
        for entry in record.streams:
            state.add(_stream(entry))
        state.next_offsets.update(zip(starts.numbers, starts.offsets, strict=True))
        state.next_stream = record.next_stream
        state.last_time_us = record.last_time_us
        state.producers.restore(
            (ProducerKey(p.stream, p.producer), History(p.last_sequence, p.firsts, p.ends))
            for p in record.producers
        )
        return state


class StartOffsets:
    """The two columns at the start of an encoded state, read where they lie."""

    def __init__(self, payload: memoryview) -> None:
        count = payload[:8].cast("Q")[0]
        self.bytes_used = 8 + 16 * count
        words = payload[8 : self.bytes_used].cast("Q")
        self.numbers = words[:count]
        self.offsets = words[count:]


def column(values: Iterable[int]) -> bytes:
    return array("Q", values).tobytes()


def encode_stream(stream: Stream) -> bytes:
    return _ENCODER.encode(_stream_record(stream))


def decode_stream(payload: memoryview) -> Stream:
    return _stream(_STREAM_DECODER.decode(payload))


def _stream_record(stream: Stream) -> _StreamRecord:
    return _StreamRecord(
        stream.number,
        stream.id.bytes,
        (stream.topic.tenant, stream.topic.dataset, stream.topic.name),
        stream.partition,
        stream.first_offset,
    )


def _stream(record: _StreamRecord) -> Stream:
    return Stream(
        record.number,
        UUID(bytes=record.id),
        TableName(*record.topic),
        record.partition,
        record.first_offset,
    )
