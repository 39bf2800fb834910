"""Rows out of the log: `GET /v1/topics/{topic}/rows`, a page at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import pyarrow as pa
from starlette.responses import Response

from calve.ingest.formats.arrow_rows import ARROW
from calve.ingest.formats.json_rows import JSON, NDJSON
from calve.ingest.http.headers import wanted_type
from calve.ingest.http.service import Service, number, topic_name
from calve.ingest.http.views import RowsPage, RowView
from calve.query.cells import json_rows
from calve.wal import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

    from calve.ingest.intake import Intake
    from calve.model import TableName
    from calve.wal import Entry

TYPES: Final = (JSON, NDJSON, ARROW)
LIMIT_DEFAULT: Final = 100
LIMIT_MAX: Final = 10_000
OFFSET_MAX: Final = (1 << 63) - 1
_PAGE_BYTES_MAX: Final = 4 << 20


class _Page(NamedTuple):
    entries: list[Entry]
    next: int
    first: int
    end: int


async def read_rows(service: Service, request: Request) -> Response:
    name = topic_name(request)
    kind = wanted_type(request.headers, TYPES)
    start = number(request, "from", default=None, least=0, most=OFFSET_MAX)
    limit = number(request, "limit", default=LIMIT_DEFAULT, least=1, most=LIMIT_MAX)
    assert limit is not None

    def read() -> Response:
        page = _page(service.intake, name, start, limit)
        content = _encoded(page, kind, name, service.intake.partition)
        headers = {"Calve-Next": str(page.next), "Calve-End": str(page.end)}
        return Response(content, headers=headers, media_type=kind)

    return await service.in_thread(read)


def _page(intake: Intake, name: TableName, start: int | None, limit: int) -> _Page:
    """Rows from an offset on; what was rejected, and holes, are passed over."""
    intake.topics.topic(name)
    offsets = intake.offsets(name)
    at = offsets.first if start is None else start
    entries: list[Entry] = []
    rows = size = 0
    for entry in intake.read(name, at, offsets.durable) if at < offsets.durable else ():
        at = entry.end_offset
        if entry.kind != Kind.ROWS or entry.batch is None:
            continue
        part = entry.between(entry.first_offset, entry.first_offset + limit - rows)
        assert part.batch is not None
        entries.append(part)
        at = part.end_offset
        rows += part.batch.num_rows
        size += part.batch.nbytes
        if rows >= limit or size >= _PAGE_BYTES_MAX:
            break
    return _Page(entries, at, offsets.first, offsets.durable)


def _encoded(page: _Page, kind: str, name: TableName, partition: int) -> bytes:
    if kind == ARROW:
        return _arrow(page, partition)
    rows = list(_rows(page, partition))
    if kind == NDJSON:
        return msgspec.json.Encoder().encode_lines(rows)
    return msgspec.json.encode(
        RowsPage(topic=str(name), rows=rows, next=page.next, first=page.first, end=page.end)
    )


def _rows(page: _Page, partition: int) -> Iterator[RowView]:
    for entry in page.entries:
        assert entry.batch is not None
        for offset, value in enumerate(json_rows(entry.batch), entry.first_offset):
            yield RowView(
                partition=partition, offset=offset, ingested_at=entry.ingested_at, value=value
            )


def _arrow(page: _Page, partition: int) -> bytes:
    tables = [pa.Table.from_batches([_with_place(entry, partition)]) for entry in page.entries]
    sink = pa.BufferOutputStream()
    # Batches of one topic differ in columns that it got later, and in widths.
    table = pa.concat_tables(tables, promote_options="permissive") if tables else _NOTHING
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


_PLACE: Final = pa.schema(
    [
        pa.field("_calve_partition", pa.int32()),
        pa.field("_calve_offset", pa.int64()),
        pa.field("_calve_ingested_at", pa.timestamp("us", "UTC")),
    ]
)
_NOTHING: Final = _PLACE.empty_table()


def _with_place(entry: Entry, partition: int) -> pa.RecordBatch:
    batch = entry.batch
    assert batch is not None
    count = batch.num_rows
    place = [
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.array(range(entry.first_offset, entry.end_offset), pa.int64()),
        pa.repeat(pa.scalar(entry.ingested_at_us, _PLACE.field(2).type), count),
    ]
    fields = [*_PLACE, *batch.schema]
    return pa.RecordBatch.from_arrays([*place, *batch.columns], schema=pa.schema(fields))
