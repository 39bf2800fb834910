"""Where the frames of each stream lie in one segment, by offset and by time.

`SegmentIndex` grows with the open segment; `SealedIndex` is the same, read where it lies at the
end of a sealed one. Both answer in O(log n) and say nothing about other segments.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from calve.wal.frame import Header, Kind
from calve.wal.state import column


class StreamFrames(NamedTuple):
    """The frames of one stream in one segment, in order."""

    offsets: Sequence[int]
    positions: Sequence[int]
    times_us: Sequence[int]
    end_offset: int

    @property
    def first_offset(self) -> int:
        return self.offsets[0]

    def holding(self, offset: int) -> int:
        """Which frame holds `offset`, or would."""
        return max(bisect_right(self.offsets, offset) - 1, 0)

    def offset_at(self, time_us: int) -> int | None:
        """The first offset that came at `time_us` or later, if it lies in this segment."""
        at = bisect_left(self.times_us, time_us)
        return self.offsets[at] if at < len(self.offsets) else None


class FrameIndex(Protocol):
    def frames(self, stream: int) -> StreamFrames | None: ...

    def schema_position(self, schema: int) -> int | None: ...

    def streams(self) -> Sequence[int]: ...


class _Growing:
    __slots__ = ("end_offset", "offsets", "positions", "times_us")

    def __init__(self) -> None:
        self.offsets = array("Q")
        self.positions = array("Q")
        self.times_us = array("q")
        self.end_offset = 0


class SegmentIndex:
    """Takes frames in as they are written, or as they are found."""

    def __init__(self) -> None:
        self._streams: dict[int, _Growing] = {}
        self._schemas: dict[int, int] = {}

    def add(self, header: Header) -> None:
        if header.takes_offsets:
            frames = [header.first_offset], [header.position], header.end_offset
            self.add_frames(header.stream, *frames, header.ingested_at_us)
        elif header.kind == Kind.SCHEMA:
            self.add_schema(header.schema, header.position)

    def add_frames(
        self, stream: int, offsets: list[int], positions: list[int], end: int, time_us: int
    ) -> None:
        """Frames of one stream that came at one time, in order."""
        found = self._streams.get(stream)
        if found is None:
            found = self._streams[stream] = _Growing()
        found.offsets.extend(offsets)
        found.positions.extend(positions)
        found.times_us.extend([time_us] * len(offsets))
        found.end_offset = end

    def add_schema(self, schema: int, position: int) -> None:
        self._schemas.setdefault(schema, position)

    def frames(self, stream: int) -> StreamFrames | None:
        found = self._streams.get(stream)
        if found is None:
            return None
        return StreamFrames(found.offsets, found.positions, found.times_us, found.end_offset)

    def schema_position(self, schema: int) -> int | None:
        return self._schemas.get(schema)

    def schemas(self) -> set[int]:
        return set(self._schemas)

    def streams(self) -> Sequence[int]:
        return sorted(self._streams)

    def encode(self) -> bytes:
        numbers = sorted(self._streams)
        found = [self._streams[number] for number in numbers]
        schemas = sorted(self._schemas.items())
        starts = [0]
        for one in found:
            starts.append(starts[-1] + len(one.offsets))
        return b"".join(
            (
                column((len(found), starts[-1], len(schemas))),
                column(numbers),
                column(starts),
                column(one.end_offset for one in found),
                column(schema for schema, _ in schemas),
                column(position for _, position in schemas),
                *(one.offsets.tobytes() for one in found),
                *(one.positions.tobytes() for one in found),
                *(one.times_us.tobytes() for one in found),
            )
        )


class SealedIndex:
    """An encoded index, read without unpacking it."""

    _HEAD_BYTES: Final = 24

    def __init__(self, payload: memoryview) -> None:
        streams, frames, schemas = payload[: self._HEAD_BYTES].cast("Q")
        self._rest = payload[self._HEAD_BYTES :]
        self._numbers = self._take("Q", streams)
        self._starts = self._take("Q", streams + 1)
        self._ends = self._take("Q", streams)
        self._schemas = self._take("Q", schemas)
        self._schema_positions = self._take("Q", schemas)
        self._offsets = self._take("Q", frames)
        self._positions = self._take("Q", frames)
        self._times_us = self._take("q", frames)

    def _take(self, code: str, count: int) -> memoryview[int]:
        taken = self._rest[: 8 * count]
        self._rest = self._rest[8 * count :]
        return taken.cast(code)  # type: ignore[call-overload,no-any-return]

    def frames(self, stream: int) -> StreamFrames | None:
        at = bisect_left(self._numbers, stream)
        if at == len(self._numbers) or self._numbers[at] != stream:
            return None
        part = slice(self._starts[at], self._starts[at + 1])
        return StreamFrames(
            self._offsets[part], self._positions[part], self._times_us[part], self._ends[at]
        )

    def schema_position(self, schema: int) -> int | None:
        at = bisect_left(self._schemas, schema)
        if at == len(self._schemas) or self._schemas[at] != schema:
            return None
        return self._schema_positions[at]

    def streams(self) -> Sequence[int]:
        return self._numbers
