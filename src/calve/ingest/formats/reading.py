"""A body as parts of one append: all of its rows, or, if bad ones are set aside, those too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import pyarrow as pa

from calve.errors import InvalidRequest
from calve.ingest.formats.arrow_rows import ARROW, arrow_batches
from calve.ingest.formats.compression import too_large
from calve.ingest.formats.csv_rows import CSV, CsvReader
from calve.ingest.formats.json_rows import JSON, NDJSON, JsonReader
from calve.ingest.formats.types import KnownTypes
from calve.wal import Rejected
from calve.wal.payload import Part

MEDIA_TYPES: Final = (NDJSON, JSON, CSV, ARROW)
# Each costs a few attempts; a body with more of them is wrong as a whole.
REJECTED_MAX: Final = 10_000
_GROWTH_MAX: Final = 4  # times the bytes of a request that its rows may take


class RecordReader(Protocol):
    """Reads text that consists of records, a block of them at a time."""

    content_type: str

    def blocks(self, body: bytes) -> Iterator[bytes]: ...
    def read(self, block: bytes, before: int) -> pa.RecordBatch | None: ...
    def records(self, block: bytes) -> list[bytes]: ...
    def joined(self, records: list[bytes]) -> bytes: ...
    def original(self, record: bytes) -> bytes: ...


@dataclass(slots=True)
class Decoded:
    """The rows of a body, and those that were set aside, in the order in which they came.

    `grow` is told of the memory that they take, of which there is a bound: a few bytes of text can
    make a row with thousands of empty columns.
    """

    bytes_max: int
    grow: Callable[[int], object]
    before: int = 0
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    _bytes: int = 0

    @property
    def parts(self) -> list[Part]:
        return [*self.batches, self.rejected] if self.rejected else list(self.batches)

    @property
    def row_count(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    @property
    def reached(self) -> int:
        """The number of the last row that was read, counted on from those `before` the body."""
        return self.before + self.row_count + len(self.rejected)

    def add(self, batch: pa.RecordBatch | None, rejected: Sequence[Rejected] = ()) -> None:
        if batch is not None:
            self._bytes += batch.nbytes
            if self._bytes > _GROWTH_MAX * self.bytes_max:
                raise too_large(self.bytes_max, _GROWTH_MAX)
            self.grow(batch.nbytes)
            self.batches.append(batch)
        self.rejected += rejected
        if len(self.rejected) > REJECTED_MAX:
            raise InvalidRequest(
                f"more than {REJECTED_MAX:,} rows of the request are bad; the first: "
                f"{self.rejected[0].reason}",
                hint="look at these first, or send smaller requests",
            )


def decode(  # noqa: PLR0913
    body: bytes,
    media_type: str,
    types: KnownTypes,
    *,
    sets_aside: bool,
    bytes_max: int,
    grow: Callable[[int], object] = lambda _: None,
    before: int = 0,
) -> Decoded:
    """The rows of a body; InvalidRequest names the first bad one, unless these are set aside.

    Rows are numbered from 1, after those that came `before`.
    """
    decoded = Decoded(bytes_max, grow, before)
    try:
        if media_type == ARROW:
            for batch in arrow_batches(body, bytes_max=bytes_max):
                decoded.add(*types.split(batch, sets_aside=sets_aside, before=decoded.reached))
        else:
            _read_text(body, _reader(media_type, types), types, decoded, sets_aside=sets_aside)
    except RecursionError as error:
        raise InvalidRequest(
            "values lie too deeply inside each other",
            hint="send what is nested so deeply as text, such as JSON",
        ) from error
    if not decoded.batches and not decoded.rejected:
        raise InvalidRequest("the request has no rows", hint="send at least one")
    return decoded


def _reader(media_type: str, types: KnownTypes) -> RecordReader:
    if media_type == CSV:
        return CsvReader(types)
    return JsonReader.of_array(types) if media_type == JSON else JsonReader.of_lines(types)


def _read_text(
    body: bytes, reader: RecordReader, types: KnownTypes, decoded: Decoded, *, sets_aside: bool
) -> None:
    for block in reader.blocks(body):
        before = decoded.reached
        if sets_aside:
            _SortingOut(reader, types, decoded).block(block, before)
        elif (batch := reader.read(block, before)) is not None:
            decoded.add(*types.split(batch, sets_aside=False, before=before))


class _SortingOut:
    """Halves what cannot be read, until the records that are to blame stand alone."""

    def __init__(self, reader: RecordReader, types: KnownTypes, decoded: Decoded) -> None:
        self._reader = reader
        self._types = types
        self._decoded = decoded

    def block(self, block: bytes, before: int) -> None:
        try:
            batch = self._read(block, before)
        except InvalidRequest:
            good: list[bytes] = []
            self._halve(self._reader.records(block), before, good)
            batch = self._reader.read(self._reader.joined(good), before) if good else None
        self._decoded.add(batch)

    def _read(self, block: bytes, before: int) -> pa.RecordBatch | None:
        batch = self._reader.read(block, before)
        if batch is not None:
            self._types.check(batch, before)
        return batch

    def _halve(self, records: list[bytes], before: int, good: list[bytes]) -> None:
        try:
            self._read(self._reader.joined(records), before)
        except InvalidRequest as error:
            if len(records) == 1:
                original = self._reader.original(records[0])
                bad = Rejected(original, self._reader.content_type, error.message)
                self._decoded.add(None, [bad])
                return
            half = len(records) // 2
            self._halve(records[:half], before, good)
            self._halve(records[half:], before + half, good)
        else:
            good += records
