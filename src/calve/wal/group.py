"""Turning pending appends into the frames of one write and one sync.

A group decides offsets, finds repeats and refuses gaps against the state plus what is already in
the group. It changes neither state nor disk: if the write fails, the group is dropped and nothing
happened. An append that cannot be placed is refused alone, and leaves no frame behind.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

from calve.errors import CalveError, InvalidRequest, NotFound, Overloaded
from calve.wal.frame import COPIES, MAGIC, VERSION, Flag, Header, Kind, checksum, pack, padding
from calve.wal.pending import Acknowledgement, PendingAppend
from calve.wal.producers import OffsetPair, ProducerKey, refuse_gap
from calve.wal.retention import RETRY_AFTER_MS

if TYPE_CHECKING:
    from calve.wal.files import Bytes
    from calve.wal.frame import Previous
    from calve.wal.payload import EncodedPart, EncodedSchema
    from calve.wal.pending import Outcome, Producer
    from calve.wal.state import LogState, Stream

OFFSET_MAX: Final = (1 << 63) - 1
NEW_SCHEMA_BYTES_MAX: Final = 1 << 24


class Place(NamedTuple):
    """Where in which segment the group begins."""

    position: int
    salt: int
    durable: int
    previous: Previous


class StreamRows:
    """The frames of one stream in the group: for the index, and for the state, once written."""

    __slots__ = ("end", "offsets", "positions", "stream")

    def __init__(self, stream: Stream, end: int) -> None:
        self.stream = stream
        self.offsets: list[int] = []
        self.positions: list[int] = []
        self.end = end

    def take_back(self) -> None:
        """Drop the frames of an append that was not placed to its end."""
        kept = bisect_left(self.offsets, self.end)
        del self.offsets[kept:], self.positions[kept:]


class Group:
    def __init__(self, state: LogState, place: Place, known_schemas: set[int], now_us: int) -> None:
        self._state = state
        self._known_schemas = known_schemas
        self._salt = place.salt
        self._durable = place.durable
        self._sequences: dict[ProducerKey, dict[int, OffsetPair]] = {}
        self._new_schema_bytes = 0
        self.time_us = max(now_us, state.last_time_us)  # so that times can be searched
        self.position = place.position
        self.previous: tuple[int, int, int] = place.previous  # as in `Previous`
        self.buffers: list[Bytes] = []
        self.rows: dict[int, StreamRows] = {}
        self.controls: list[tuple[Header, bytes]] = []
        self.produced: list[tuple[ProducerKey, int, OffsetPair]] = []
        self.new_schemas: dict[int, int] = {}  # with the position of the first copy
        self.outcomes: list[Outcome] = []  # of each that was added, in order

    def add(self, append: PendingAppend) -> None:
        before = (self.position, self.previous, self._new_schema_bytes)
        buffers_before = len(self.buffers)
        try:
            rows = self._rows(append.stream)
            outcome = append.producer and self._find_repeat(append, append.producer)
            outcome = outcome or self._place(append, rows)
        except Exception as error:  # noqa: BLE001  the others in the group are not to blame
            self.position, self.previous, self._new_schema_bytes = before
            del self.buffers[buffers_before:]
            self._take_back(append.stream.number)
            self.outcomes.append(_refusal(error))
        else:
            self.outcomes.append(outcome)

    def _take_back(self, stream: int) -> None:
        """Forget what lies behind the group's end again."""
        if stream in self.rows:
            self.rows[stream].take_back()
        for schema, position in list(self.new_schemas.items()):
            if position >= self.position:
                del self.new_schemas[schema]

    def add_control(self, kind: Kind, stream: int, payload: bytes) -> None:
        for _ in range(COPIES):
            header = self._header(kind, stream, payload)
            self._emit(pack(header), payload)
            self.controls.append((header, payload))

    def add_hole(self, stream: Stream, first: int, end: int) -> None:
        rows = self._rows(stream)
        rows.offsets.append(first)
        rows.positions.append(self.position)
        rows.end = end
        previous = (stream.number, end, self.position)
        self._emit(pack(self._header(Kind.HOLE, stream.number, b"").covering(first, end)))
        self.previous = previous

    def _rows(self, stream: Stream) -> StreamRows:
        rows = self.rows.get(stream.number)
        if rows is None:
            if self._state.stream(stream.number) != stream:
                raise NotFound(f"{stream.name} was deleted")
            end = self._state.next_offsets[stream.number]
            rows = self.rows[stream.number] = StreamRows(stream, end)
        elif rows.stream is not stream and rows.stream != stream:
            raise NotFound(f"{stream.name} was deleted")
        return rows

    def _find_repeat(self, append: PendingAppend, sender: Producer) -> Acknowledgement | None:
        producer, sequence, _ = sender
        key = ProducerKey(append.stream.number, producer)
        here = self._sequences.get(key)
        last = next(reversed(here)) if here else self._state.producers.last_sequence(key)
        if sequence == last + 1:
            return None
        if sequence > last:
            raise refuse_gap(key, last=last, sequence=sequence)
        found = here.get(sequence) if here else None
        found = found or self._state.producers.find(key, sequence)
        first, end = found or (None, None)
        return Acknowledgement(first, end, is_repeat=True)

    def _place(self, append: PendingAppend, rows: StreamRows) -> Acknowledgement:
        first = offset = rows.end
        parts = append.encode()
        for part in parts:
            if part.schema.id not in self._known_schemas:
                self._add_schema(part.schema)
        more = len(parts)
        for part in parts:
            more -= 1
            rows.offsets.append(offset)
            rows.positions.append(self.position)
            self._add_part(append, part, offset, Flag.MORE if more else 0)
            offset += part.row_count
        if offset > OFFSET_MAX:
            raise InvalidRequest(f"{append.stream.name} has no offsets left: it ends at {first}")
        rows.end = offset
        if append.producer is not None:
            key = ProducerKey(append.stream.number, append.producer.id)
            self._remember(key, append.producer.sequence, OffsetPair(first, offset))
        return Acknowledgement(first, offset)

    def _remember(self, key: ProducerKey, sequence: int, offsets: OffsetPair) -> None:
        self._sequences.setdefault(key, {})[sequence] = offsets
        self.produced.append((key, sequence, offsets))

    def _add_schema(self, schema: EncodedSchema) -> None:
        if schema.id in self.new_schemas:
            return
        if self._new_schema_bytes + len(schema.payload) > NEW_SCHEMA_BYTES_MAX:
            # Whether there is room on the disk was asked for the rows, not for these.
            raise Overloaded(
                "too many large schemas came at once for the first time",
                hint=f"retry in {RETRY_AFTER_MS} ms",
                context={"retry_after_ms": str(RETRY_AFTER_MS)},
            )
        self._new_schema_bytes += len(schema.payload)
        self.new_schemas[schema.id] = self.position
        for _ in range(COPIES):
            header = self._header(Kind.SCHEMA, 0, schema.payload)._replace(schema=schema.id)
            self._emit(pack(header), schema.payload)

    def _add_part(self, append: PendingAppend, part: EncodedPart, offset: int, more: int) -> None:
        stream, flags, sequence, name = append.stream.number, part.flags | more, 0, b""
        if append.producer is not None:
            _, sequence, name = append.producer
            flags |= Flag.PRODUCED
        previous_stream, previous_end, previous_position = self.previous
        self.previous = (stream, offset + part.row_count, self.position)
        # A plain tuple in the order of `Header`: an object per append is a tenth of its time.
        head = pack(
            (
                MAGIC, VERSION, part.kind, flags, self.position, self._salt, self._durable,
                stream, offset, self.time_us, part.schema.id, sequence,
                previous_stream, previous_end,
                part.payload_sum, part.payload_bytes, part.row_count, len(name), 0,
                previous_position,
            ),
            name,
        )  # fmt: skip
        tail = padding(part.payload_bytes)
        self.buffers += (head, *part.payload, tail)
        self.position += len(head) + part.payload_bytes + len(tail)

    def _header(self, kind: Kind, stream: int, payload: Bytes) -> Header:
        previous_stream, previous_end, previous_position = self.previous
        return Header(
            MAGIC, VERSION, kind, 0, self.position, self._salt, self._durable,
            stream, 0, self.time_us, 0, 0, previous_stream, previous_end,
            checksum(payload), len(payload), 0, 0, 0, previous_position,
        )  # fmt: skip

    def _emit(self, head: bytes, payload: Bytes = b"") -> None:
        tail = padding(len(payload))
        self.buffers += (head, payload, tail)
        self.position += len(head) + len(payload) + len(tail)


def _refusal(error: Exception) -> CalveError:
    if isinstance(error, CalveError):
        return error
    refusal = InvalidRequest(f"the rows cannot be written: {type(error).__name__}: {error}")
    refusal.__cause__ = error
    return refusal
