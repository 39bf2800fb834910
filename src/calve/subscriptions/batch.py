"""What a reader hands out: rows of one partition that follow each other, by offset."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from calve.errors import InvalidRequest
from calve.topics.log_rows import OFFSET
from calve.topics.messages import MESSAGE_SCHEMA, message_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from calve.topics.messages import StreamMessage

PIECE_BYTES: Final = 1 << 18


@dataclass(frozen=True, slots=True, repr=False)
class Batch:
    """Every row of a partition from `first_offset` up to `next_offset`, as the reader wants them.

    Whoever has worked on it goes on at `next_offset`. Offsets in between that have no row were
    removed, set aside, lost, or not meant by the reader's filter.
    """

    topic: str
    partition: int
    first_offset: int
    next_offset: int
    rows: pa.Table
    delivery: int = 0  # counts what one subscription handed out

    @property
    def last_offset(self) -> int:
        """That of the last row."""
        last: int = self.rows.column(OFFSET)[-1].as_py()
        return last

    def offset_at(self, index: int) -> int:
        """That of the row with this number, from 0."""
        offset: int = self.rows.column(OFFSET)[index].as_py()
        return offset

    def pieces(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The rows in pieces that are small enough to be copied on their way to a client, and the
        offset to go on from behind each piece."""
        pieces = list(self._small())
        for number, rows in enumerate(pieces, 1):
            is_last = number == len(pieces)
            last = rows.column(OFFSET)[-1].as_py()
            yield rows, self.next_offset if is_last else last + 1

    def _small(self) -> Iterator[pa.RecordBatch]:
        for rows in self.rows.to_batches():
            step = max(1, rows.num_rows * PIECE_BYTES // max(1, rows.nbytes))
            for start in range(0, rows.num_rows, step):
                yield rows.slice(start, step)

    def since(self, offset: int) -> Batch:
        """What it has from an offset on, which is in it."""
        if offset <= self.first_offset:
            return self
        passed = bisect_left(range(len(self)), offset, key=self.offset_at)
        return replace(self, first_offset=offset, rows=self.rows.slice(passed))

    def to_arrow(self) -> pa.Table:
        """The rows, with `_calve_partition`, `_calve_offset` and `_calve_ingested_at`."""
        return self.rows

    def messages(self) -> Iterator[StreamMessage]:
        """The rows of a topic of messages."""
        if "payload" not in self.rows.schema.names:
            raise InvalidRequest(
                f"the rows of {self.topic} that were read have no payload",
                hint="messages come from a topic of messages, with all of its columns; "
                "`to_arrow()` gives any rows",
            )
        names = [name for name in MESSAGE_SCHEMA.names if name in self.rows.schema.names]
        for row in self.rows.select([*names, OFFSET]).to_pylist():
            yield message_at(row, self.topic, row[OFFSET])

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def __repr__(self) -> str:
        place = f"{self.first_offset}-{self.next_offset}"
        return f"Batch({self.topic!r}, partition={self.partition}, {place}, {len(self)} rows)"
