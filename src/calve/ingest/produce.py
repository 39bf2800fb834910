"""Rows of any kind, from the same process, into a topic: what `lake.produce` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from calve.errors import InvalidRequest
from calve.ingest.refusals import refusing
from calve.tables.inputs.fitting import RowFitter
from calve.tables.inputs.parts import Columns, read_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from calve.ingest.intake import Intake
    from calve.model import TableName
    from calve.wal import Acknowledgement

_PART_ROWS: Final = 50_000


class Produced(NamedTuple):
    """What became of the rows: their offsets, from `first` up to but not including `end`.

    Where others produced meanwhile and the rows needed several appends, some in between may be
    theirs.
    """

    row_count: int
    first: int | None
    end: int | None
    is_repeat: bool = False


def produce(
    intake: Intake,
    name: TableName,
    rows: Any,
    *,
    producer: str | None = None,
    sequence: int | None = None,
) -> Produced:
    """Append rows and return when they are durable: frames, Arrow data, dicts, columns.

    They are one append, all or nothing, up to `ingest.request_bytes_max` bytes; beyond that,
    several, and refused if a producer and a sequence name them as one.
    """
    appends: list[Acknowledgement] = []
    row_count = 0
    for parts in _appends(intake, name, rows, is_one=producer is not None):
        row_count += sum(part.num_rows for part in parts)
        pending = intake.submit(name, parts, producer=producer, sequence=sequence)
        with refusing():
            appends.append(pending.wait())
    if not appends:
        raise InvalidRequest("there are no rows", hint="give at least one")
    first, last = appends[0], appends[-1]
    return Produced(row_count, first.first, last.end, first.is_repeat)


def _appends(
    intake: Intake, name: TableName, rows: Any, *, is_one: bool
) -> Iterator[list[pa.RecordBatch]]:
    bytes_max = intake.settings.ingest.request_bytes_max
    gathered: list[pa.RecordBatch] = []
    gathered_bytes = 0
    for batch in _batches(intake, name, rows):
        if gathered and gathered_bytes + batch.nbytes > bytes_max:
            if is_one:
                raise InvalidRequest(
                    f"more than {bytes_max} bytes in one append (ingest.request_bytes_max)",
                    hint="send fewer rows under each sequence",
                )
            yield gathered
            gathered, gathered_bytes = [], 0
        gathered.append(batch)
        gathered_bytes += batch.nbytes
    if gathered:
        yield gathered


def _batches(intake: Intake, name: TableName, rows: Any) -> Iterator[pa.RecordBatch]:
    """Arrow data as it is; values without types with those of the topic, where it has them."""
    topic = intake.topics.find(name)
    fitter = RowFitter(topic.schema, last_column_id=topic.last_column_id) if topic else RowFitter()
    bytes_max = intake.settings.ingest.request_bytes_max
    before = 0
    for part in read_parts(rows, rows_max=_PART_ROWS, bytes_max=bytes_max):
        if isinstance(part, Columns):
            fitted = fitter.fit(part, before=before)
            given = [each for each in fitted.schema.names if each in part.values]
            yield fitted.select(given)
        else:
            yield part
        before += part.num_rows
