"""Questions in SQL to a service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from calve.client.interrupts import interruptibly
from calve.errors import InvalidRequest
from calve.protocol.flight_errors import Translating
from calve.protocol.queries import FACTS, AnswerFacts, QueryTicket
from calve.query.parameters import Parameters, checked_parameters
from calve.query.rows import AsOf, Rows, Shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from calve.client.link import Link


def ask(
    link: Link, sql: str, parameters: Parameters | None, *, fresh: bool, tenant: str | None
) -> Rows:
    """The rows of an answer, which come as they are read: once, unless all are asked for."""
    values: Any = None if parameters is None else checked_parameters(parameters)
    reader = link.stream(QueryTicket(sql=sql, parameters=values, fresh=fresh, tenant=tenant))
    schema: pa.Schema = reader.schema
    metadata = schema.metadata or {}
    facts = msgspec.json.decode(metadata.get(FACTS, b'{"id":"","as_of":[]}'), type=AnswerFacts)
    as_of = tuple(
        AsOf(each.table, each.snapshot_id, each.committed, each.durable) for each in facts.as_of
    )
    opened = iter(
        [pa.RecordBatchReader.from_batches(schema.remove_metadata(), _taken(reader, link.url))]
    )

    def open_once() -> pa.RecordBatchReader:
        stream = next(opened, None)
        if stream is None:
            raise InvalidRequest(
                "the rows were read already", hint="ask again, or keep them with to_arrow()"
            )
        return stream

    return Rows(open_once, shown=Shown(times=tuple(facts.times), as_of=as_of), is_once=True)


def _taken(reader: Any, url: str) -> Iterator[pa.RecordBatch]:
    schema: pa.Schema = reader.schema.remove_metadata()

    def cancel(_: object) -> None:
        reader.cancel()

    try:
        with Translating(url):
            chunks = iter(reader)
            while (chunk := interruptibly(lambda: next(chunks, None), cancel)) is not None:
                yield chunk.data.cast(schema)
    finally:
        reader.cancel()
