"""Turning pending appends into the frames of one write and one sync.

A group decides offsets, finds repeats and refuses gaps against the state plus what is already in
the group. It changes neither state nor disk: if the write fails, the group is dropped and nothing
happened. An append that cannot be placed is refused alone, and leaves no frame behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from calve.errors import CalveError, InvalidRequest, NotFound, Unavailable
from calve.wal.frame import COPIES, MAGIC, VERSION, Flag, Header, Kind, checksum, pack, padding
from calve.wal.pending import Acknowledgement, PendingAppend
from calve.wal.producers import OffsetPair, ProducerKey, refuse_gap
from calve.wal.retention import RETRY_AFTER_MS

if TYPE_CHECKING:
    from calve.wal.files import Bytes
    from calve.wal.payload import EncodedPart, EncodedSchema
    from calve.wal.state import LogState

OFFSET_MAX: Final = (1 << 63) - 1
NEW_SCHEMA_BYTES_MAX: Final = 1 << 24

_NOTHING: Final = memoryview(b"")
_BUFFERS_PER_FRAME: Final = 3  # what comes before the payload, the payload, padding


class Planned(NamedTuple):
    """A frame of the group, for the state and the index once it is written."""

    header: Header
    producer: str | None
    payload: memoryview


class Place(NamedTuple):
    """Where in which segment the group begins."""

    position: int
    salt: int
    durable: int
    previous_stream: int
    previous_end: int


class Group:
    def __init__(self, state: LogState, place: Place, known_schemas: set[int], now_us: int) -> None:
        self._state = state
        self._known_schemas = known_schemas
        self._salt = place.salt
        self._durable = place.durable
        self._time_us = max(now_us, state.last_time_us)  # so that times can be searched
        self._next_offsets: dict[int, int] = {}
        self._sequences: dict[ProducerKey, dict[int, OffsetPair]] = {}
        self.position = place.position
        self.previous_stream = place.previous_stream
        self.previous_end = place.previous_end
        self.frames: list[Planned] = []
        self.buffers: list[Bytes] = []
        self.new_schemas: set[int] = set()
        self._new_schema_bytes = 0
        self.acknowledged: list[tuple[PendingAppend, Acknowledgement]] = []
        self.refused: list[tuple[PendingAppend, CalveError]] = []

    def add(self, append: PendingAppend) -> None:
        frames_before = len(self.frames)
        try:
            result = self._find_repeat(append) or self._place(append)
        except Exception as error:  # noqa: BLE001  the others in the group are not to blame
            self._take_back(frames_before)
            self.refused.append((append, _refusal(error)))
        else:
            self.acknowledged.append((append, result))

    def _take_back(self, frames_before: int) -> None:
        """Drop the newest frames, as if they had never been placed."""
        dropped = self.frames[frames_before:]
        if dropped:
            header = dropped[0].header
            self.position = header.position
            self.previous_stream = header.previous_stream
            self.previous_end = header.previous_end
            for planned in dropped:
                if planned.header.schema in self.new_schemas and planned.header.kind == Kind.SCHEMA:
                    self.new_schemas.remove(planned.header.schema)
                    self._new_schema_bytes -= len(planned.payload)
            del self.frames[frames_before:]
            del self.buffers[_BUFFERS_PER_FRAME * frames_before :]

    def add_control(self, kind: Kind, stream: int, payload: bytes) -> None:
        for _ in range(COPIES):
            header = self._header(kind, stream, payload)
            self._emit(header, None, b"", memoryview(payload))

    def add_hole(self, stream: int, first: int, end: int) -> None:
        header = self._header(Kind.HOLE, stream, b"")
        self._emit(header.covering(first, end), None, b"", _NOTHING)
        self.previous_stream, self.previous_end = stream, end

    def _find_repeat(self, append: PendingAppend) -> Acknowledgement | None:
        found_stream = self._state.stream(append.stream.number)
        if found_stream is not append.stream and found_stream != append.stream:
            raise NotFound(f"{append.stream.name} was deleted")
        if append.producer is None:
            return None
        key = ProducerKey(append.stream.number, append.producer)
        here = self._sequences.get(key)
        last = next(reversed(here)) if here else self._state.producers.last_sequence(key)
        if append.sequence == last + 1:
            return None
        if append.sequence > last:
            raise refuse_gap(key, last=last, sequence=append.sequence)
        found = here.get(append.sequence) if here else None
        found = found or self._state.producers.find(key, append.sequence)
        first, end = found or (None, None)
        return Acknowledgement(first, end, is_repeat=True)

    def _place(self, append: PendingAppend) -> Acknowledgement:
        number = append.stream.number
        first = self._next_offsets.get(number)
        if first is None:
            first = self._state.next_offsets[number]
        parts = append.encode()
        for part in parts:
            if part.schema.id not in self._known_schemas:
                self._add_schema(part.schema)
        offset = first
        more = len(parts)
        for part in parts:
            more -= 1
            self._add_part(append, part, offset, Flag.MORE if more else 0)
            offset += part.row_count
        if offset > OFFSET_MAX:
            raise InvalidRequest(f"{append.stream.name} has no offsets left: it ends at {first}")
        if append.producer is not None:
            key = ProducerKey(number, append.producer)
            self._sequences.setdefault(key, {})[append.sequence] = OffsetPair(first, offset)
        self._next_offsets[number] = offset
        return Acknowledgement(first, offset)

    def _add_schema(self, schema: EncodedSchema) -> None:
        if schema.id in self.new_schemas:
            return
        if self._new_schema_bytes + len(schema.payload) > NEW_SCHEMA_BYTES_MAX:
            # Whether there is room on the disk was asked for the rows, not for these.
            raise Unavailable(
                "too many large schemas came at once for the first time",
                hint=f"retry in {RETRY_AFTER_MS} ms",
                context={"retry_after_ms": str(RETRY_AFTER_MS)},
            )
        for _ in range(COPIES):
            header = self._header(Kind.SCHEMA, 0, schema.payload)._replace(schema=schema.id)
            self._emit(header, None, b"", schema.payload)
        self._new_schema_bytes += len(schema.payload)
        self.new_schemas.add(schema.id)

    def _add_part(self, append: PendingAppend, part: EncodedPart, offset: int, more: int) -> None:
        produced = 0 if append.producer is None else Flag.PRODUCED
        stream, payload = append.stream.number, part.payload
        header = Header(
            MAGIC, VERSION, part.kind, part.flags | more | produced,
            self.position, self._salt, self._durable,
            stream, offset, self._time_us, part.schema.id, append.sequence,
            self.previous_stream, self.previous_end,
            part.payload_sum, len(payload), part.row_count, len(append.producer_bytes), 0,
        )  # fmt: skip
        self._emit(header, append.producer, append.producer_bytes, payload)
        self.previous_stream, self.previous_end = stream, offset + part.row_count

    def _header(self, kind: Kind, stream: int, payload: Bytes) -> Header:
        return Header(
            MAGIC, VERSION, kind, 0, self.position, self._salt, self._durable,
            stream, 0, self._time_us, 0, 0, self.previous_stream, self.previous_end,
            checksum(payload), len(payload), 0, 0, 0,
        )  # fmt: skip

    def _emit(
        self, header: Header, producer: str | None, producer_bytes: bytes, payload: memoryview
    ) -> None:
        head, tail = pack(header, producer_bytes), padding(len(payload))
        self.buffers += (head, payload, tail)
        self.frames.append(Planned(header, producer, payload))
        self.position += len(head) + len(payload) + len(tail)


def _refusal(error: Exception) -> CalveError:
    if isinstance(error, CalveError):
        return error
    refusal = InvalidRequest(f"the rows cannot be written: {type(error).__name__}: {error}")
    refusal.__cause__ = error
    return refusal
