"""What was sent to a log and what it acknowledged, kept apart from it, to hold it to its word."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from calve.errors import CalveError, UnknownOutcome
from calve.model import TableName
from calve.wal import Acknowledgement, Log, LogReader, PendingAppend, Rejected
from calve.wal.files import Files
from calve.wal.frame import Kind
from calve.wal.payload import Part

TOPIC = TableName.parse("orders")
StreamKey = tuple[TableName, int]


def rows(first: int, count: int = 1) -> pa.RecordBatch:
    """Rows that can be told from each other."""
    numbers = range(first, first + count)
    return pa.record_batch(
        {"id": pa.array(numbers, pa.int64()), "text": [f"row {number}" for number in numbers]}
    )


@dataclass(slots=True)
class Sent:
    """One append: the values of its rows, in order, and what became of it."""

    values: list[object]
    producer: str | None
    sequence: int | None
    offsets: tuple[int, int] | None = None  # once acknowledged
    refused: bool = False  # told that it is not there: then it must never be


@dataclass(slots=True)
class Oracle:
    """Everything sent, per stream, in order. `lost` are offsets given up on purpose."""

    sent: dict[StreamKey, list[Sent]] = field(default_factory=dict)
    committed: dict[StreamKey, int] = field(default_factory=dict)
    next_value: int = 0

    def append(
        self,
        log: Log,
        partition: int = 0,
        count: int = 1,
        *,
        producer: str | None = None,
        sequence: int | None = None,
        rejected: int = 0,
    ) -> Acknowledgement | None:
        parts, sent = self._prepare(partition, count, rejected, producer, sequence)
        try:
            result = log.append(
                log.stream(TOPIC, partition), parts, producer=producer, sequence=sequence
            )
        except UnknownOutcome:
            return None
        except CalveError:
            sent.refused = True
            raise
        assert result.first is not None
        assert result.end is not None
        sent.offsets = (result.first, result.end)
        return result

    def submit(self, log: Log, partition: int = 0, count: int = 1) -> tuple[PendingAppend, Sent]:
        parts, sent = self._prepare(partition, count, 0, None, None)
        return log.submit(log.stream(TOPIC, partition), parts), sent

    def _prepare(
        self,
        partition: int,
        count: int,
        rejected: int,
        producer: str | None,
        sequence: int | None,
    ) -> tuple[list[Part], Sent]:
        first = self.next_value
        self.next_value += count + rejected
        parts: list[Part] = [rows(first, count)]
        values: list[object] = list(range(first, first + count))
        if rejected:
            bad = [str(number) for number in range(first + count, self.next_value)]
            parts.append([Rejected(text.encode(), "text/plain", "bad") for text in bad])
            values += [f"rejected {text}" for text in bad]
        sent = Sent(values, producer, sequence)
        self.sent.setdefault((TOPIC, partition), []).append(sent)
        return parts, sent

    def check(self, directory: Path, files: Files) -> None:
        """Raise AssertionError unless the log holds a prefix of what was sent, whole appends
        only, with everything that was acknowledged at its offsets."""
        with LogReader(directory, files=files) as reader:
            for key, sent in self.sent.items():
                stream = reader.stream(*key)
                offsets = reader.offsets(stream)
                assert offsets.first <= self.committed.get(key, 0) or offsets.first == 0
                found = read_values(reader, *key, start=offsets.first)
                assert len(found) == offsets.durable - offsets.first
                self._check_stream(sent, offsets.first, found)

    def _check_stream(self, sent: list[Sent], first: int, found: list[object]) -> None:
        expected: list[object] = []
        end = first + len(found)
        for one in sent:
            if one.refused:
                continue
            at = len(expected)
            if one.offsets is not None:
                assert one.offsets == (at, at + len(one.values)), "acknowledged at other offsets"
                assert at + len(one.values) <= end, "an acknowledged row is lost"
            elif at >= end:
                continue  # never acknowledged, and not there
            expected += one.values
        assert expected[first:] == found
        assert len(expected) == end

    def settle(self, directory: Path, files: Files) -> None:
        """After a crash: forget the appends that are not there and were never acknowledged."""
        with LogReader(directory, files=files) as reader:
            for key, sent in self.sent.items():
                end = reader.offsets(reader.stream(*key)).durable
                at = 0
                for one in sent:
                    if one.refused:
                        continue
                    if one.offsets is None:
                        one.refused = at >= end
                        if not one.refused:
                            one.offsets = (at, at + len(one.values))
                    at += 0 if one.refused else len(one.values)


def read_values(
    reader: LogReader, topic: TableName, partition: int = 0, start: int = 0
) -> list[object]:
    """One value per offset, in order."""
    stream = reader.stream(topic, partition)
    values: list[object] = []
    for entry in reader.read(stream, start):
        assert entry.first_offset == start + len(values)
        if entry.kind == Kind.HOLE:
            values += ["hole"] * (entry.end_offset - entry.first_offset)
        elif entry.kind == Kind.REJECTED:
            values += [f"rejected {row.original.decode()}" for row in entry.rejected]
        else:
            assert entry.batch is not None
            entry.batch.validate(full=True)
            values += entry.batch["id"].to_pylist()
        assert entry.end_offset == start + len(values)
    return values
