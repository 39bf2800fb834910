"""DoGet: a range of a topic's log, as rows of its columns or as the frames that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from calve.errors import Conflict, InvalidRequest, NotFound
from calve.protocol import Frames, LogRange
from calve.topics.fit import arrow_stream
from calve.topics.log_rows import PLACE_FIELDS, LogRows, placed
from calve.wal import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from calve.access import Caller
    from calve.ingest.intake import Intake
    from calve.model import TableName
    from calve.topics.topic import Topic
    from calve.wal import Entry

_GATHERED_BYTES: Final = 1 << 20
_GATHERED_FRAMES: Final = 1_024


class Range:
    """What a ticket asks for, checked: its schema, and its batches when they are asked for."""

    def __init__(self, intake: Intake, wanted: LogRange, caller: Caller) -> None:
        self._intake = intake
        self._name = caller.topic(wanted.topic)
        if wanted.partition not in {None, intake.partition}:
            raise NotFound(
                f"partition {wanted.partition} of {self._name} is not here: this service has "
                f"partition {intake.partition}",
                hint="ask the service that owns it",
            )
        offsets = intake.offsets(self._name)
        if wanted.stream is not None:
            self._require_stream(wanted.stream)
        self._start = offsets.first if wanted.from_ is None else wanted.from_
        self._end = offsets.durable if wanted.to is None else min(wanted.to, offsets.durable)
        if self._start < 0 or (wanted.to is not None and wanted.to < self._start):
            raise InvalidRequest(
                f"there are no offsets from {self._start} to {wanted.to}",
                hint="`from` is the first offset that is wanted, `to` the first that is not",
            )
        if self._start < offsets.first:
            raise _too_old(self._name, self._start, offsets.first)
        if wanted.form == "frames":
            self.schema, self.batches = Frames.SCHEMA, self._frames()
        else:
            rows = RowShape(intake.topics.topic(self._name), intake.partition)
            self.schema, self.batches = rows.schema, self._rows(rows)

    def _require_stream(self, wanted: UUID) -> None:
        binding = self._intake.topics.topic(self._name).partitions.get(self._intake.partition)
        if binding is None or binding.stream_id != wanted:
            raise Conflict(
                f"{self._name} is not stream {wanted} here",
                hint="the topic was deleted and made again, or this is another lake's service",
                context={"found": str(binding and binding.stream_id), "expected": str(wanted)},
            )

    def _rows(self, shape: RowShape) -> Iterator[pa.RecordBatch]:
        for entry in self._intake.read(self._name, self._start, self._end):
            if entry.kind == Kind.ROWS:
                yield shape.batch(entry)

    def _frames(self) -> Iterator[pa.RecordBatch]:
        gathered: list[dict[str, object]] = []
        gathered_bytes = 0
        for entry in self._intake.read(self._name, self._start, self._end):
            row = _frame(entry)
            gathered.append(row)
            gathered_bytes += len(row["payload"] or b"")  # type: ignore[arg-type]
            if gathered_bytes >= _GATHERED_BYTES or len(gathered) >= _GATHERED_FRAMES:
                yield pa.RecordBatch.from_pylist(gathered, schema=Frames.SCHEMA)
                gathered, gathered_bytes = [], 0
        if gathered:
            yield pa.RecordBatch.from_pylist(gathered, schema=Frames.SCHEMA)


class RowShape:
    """Rows of any age as the topic's columns are now, with where and when each came."""

    def __init__(self, topic: Topic, partition: int) -> None:
        # Rows are older than what the topic requires now.
        own = [pa.field(field.name, field.type) for field in topic.arrow_schema]
        self.schema = pa.schema([*own, *PLACE_FIELDS])
        self._rows = LogRows(self.schema, topic.memory.place)
        self._partition = partition

    def batch(self, entry: Entry) -> pa.RecordBatch:
        (rows,) = placed([entry], self._partition).to_batches()
        return self._rows.plan(rows.schema).rows(rows)


def _frame(entry: Entry) -> dict[str, object]:
    return {
        "kind": entry.kind.name.lower(),
        "first_offset": entry.first_offset,
        "end_offset": entry.end_offset,
        "ingested_at_us": entry.ingested_at_us,
        "content_sum": entry.content_sum,
        "payload": None if entry.batch is None else arrow_stream(entry.batch),
    }


def _too_old(name: TableName, start: int, first: int) -> NotFound:
    return NotFound(
        f"offset {start} of {name} is no longer in the log, which begins at {first}",
        hint="its rows are in the table",
        context={"first": str(first)},
    )
