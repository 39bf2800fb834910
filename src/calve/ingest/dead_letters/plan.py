"""Which dead letters make the next round of a replay: bounded in rows, bytes and ranges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from calve.ingest.dead_letters.rounds import Chunk
from calve.tables.columns import OFFSET, PARTITION
from calve.tables.ranges import RANGES_MAX, Ranges

if TYPE_CHECKING:
    from calve.ingest.dead_letters.letters import LetterScan

# As many as a request may set aside, which all of them might be once more.
CHUNK_ROWS_MAX: Final = 10_000
CHUNK_BYTES_MAX: Final = 16 * 1024 * 1024
ROUND_ROWS_MAX: Final = 40_000
ROUND_BYTES_MAX: Final = 4 * CHUNK_BYTES_MAX
_ROUND_RANGES_MAX: Final = 4 * RANGES_MAX
_COLUMNS: Final = (PARTITION, OFFSET, "content_type", "original")


def next_chunks(scan: LetterScan) -> tuple[Chunk, ...]:
    """Some that are meant, about the first by offset, as chunks; none if there are none.

    Each is of one content type: rows that are read as one body agree about new columns.
    """
    gathering = _Gathering()
    for partition, offset, kind, size in _first_rows(scan):
        if not gathering.takes(partition, kind, offset, size):
            break
    return tuple(gathering.chunks())


def _first_rows(scan: LetterScan) -> list[tuple[int, int, str, int]]:
    """Place, type and size of rows as they come, until there are enough; sorted by their place."""
    found: list[tuple[int, int, str, int]] = []
    size = 0
    for batch in scan.batches(_COLUMNS):
        sizes = pc.binary_length(batch.column("original")).to_pylist()
        places = (batch.column(name).to_pylist() for name in (PARTITION, OFFSET, "content_type"))
        found += zip(*places, sizes, strict=True)
        size += sum(sizes)
        if len(found) >= ROUND_ROWS_MAX or size >= ROUND_BYTES_MAX:
            break
    return sorted(found)[:ROUND_ROWS_MAX]


class _Open:
    """A chunk that may still grow."""

    def __init__(self) -> None:
        self.ranges: list[list[int]] = []
        self.rows = 0
        self.bytes = 0

    def has_room(self, size: int) -> bool:
        return (
            self.rows < CHUNK_ROWS_MAX
            and len(self.ranges) < RANGES_MAX
            and (self.rows == 0 or self.bytes + size <= CHUNK_BYTES_MAX)
        )

    def add(self, offset: int, size: int) -> int:
        """Take an offset, which is above all others; how many ranges that made more."""
        self.rows += 1
        self.bytes += size
        if self.ranges and self.ranges[-1][1] == offset:
            self.ranges[-1][1] = offset + 1
            return 0
        self.ranges.append([offset, offset + 1])
        return 1


class _Gathering:
    def __init__(self) -> None:
        self._open: dict[tuple[int, str], list[_Open]] = {}
        self._bytes = 0
        self._ranges = 0

    def takes(self, partition: int, content_type: str, offset: int, size: int) -> bool:
        """Take one more, unless the round has enough."""
        is_full = self._bytes and self._bytes + size > ROUND_BYTES_MAX
        if is_full or self._ranges >= _ROUND_RANGES_MAX:
            return False
        chunks = self._open.setdefault((partition, content_type), [_Open()])
        if not chunks[-1].has_room(size):
            chunks.append(_Open())
        self._ranges += chunks[-1].add(offset, size)
        self._bytes += size
        return True

    def chunks(self) -> Iterator[Chunk]:
        for (partition, _), chunks in self._open.items():
            for each in chunks:
                pairs = ((first, end) for first, end in each.ranges)
                yield Chunk(partition, str(Ranges.exact(*pairs)))
