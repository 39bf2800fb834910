"""The routes of questions in SQL."""

from __future__ import annotations

from typing import Final

from calve.ingest.formats.arrow_rows import ARROW
from calve.ingest.formats.csv_rows import CSV
from calve.ingest.formats.json_rows import JSON, NDJSON
from calve.ingest.http import queries
from calve.ingest.http.operation import Answer, Content, Operation, Parameter
from calve.ingest.http.parameters import json_of, query
from calve.protocol.queries import QueryList, QueryOrder, QueryView

_ID: Final = Parameter(
    name="id",
    place="path",
    meaning="the query's id, as the header Calve-Query tells it",
    schema={"type": "string", "minLength": 1, "maxLength": 64},
    is_required=True,
)
_BYTES: Final = {"type": "string", "format": "binary"}

QUERIES: Final = (
    Operation(
        method="POST",
        path="/v1/query",
        scope="query",
        handler=queries.run_query,
        summary="Ask in SQL",
        tells="One SELECT over all tables and topics, which changes nothing. With `fresh`, the "
        "default, a topic has every row that was acknowledged before, each once; else those that "
        "are in its table. Calve-As-Of has the snapshot and the offsets that the answer is of. An "
        "answer that fails on its way is cut off: its last chunk is missing.",
        parameters=(
            query(
                "format",
                "how rows are written; without it, as Accept says",
                type="string",
                enum=list(queries.TYPES),
            ),
        ),
        body=json_of(QueryOrder),
        answers=(
            Answer(
                200,
                "the rows",
                (
                    Content(JSON, {"type": "array", "items": {"type": "object"}}),
                    Content(NDJSON, {"type": "string"}),
                    Content(CSV, {"type": "string"}),
                    Content(queries.PARQUET, _BYTES),
                    Content(ARROW, _BYTES),
                    Content(queries.TEXT, {"type": "string"}),
                ),
            ),
        ),
        problems=(400, 403, 404, 406, 408, 409, 413, 422, 429, 501),
    ),
    Operation(
        method="GET",
        path="/v1/queries",
        scope="query",
        handler=queries.list_queries,
        summary="List the queries that are under way",
        answers=(Answer(200, "the queries", json_of(QueryList)),),
    ),
    Operation(
        method="GET",
        path="/v1/queries/{id}",
        scope="query",
        handler=queries.show_query,
        summary="Show a query that is under way",
        parameters=(_ID,),
        answers=(Answer(200, "the query", json_of(QueryView)),),
        problems=(404,),
    ),
    Operation(
        method="DELETE",
        path="/v1/queries/{id}",
        scope="query",
        handler=queries.cancel_query,
        summary="Cancel a query",
        parameters=(_ID,),
        answers=(Answer(200, "the query as it was", json_of(QueryView)),),
        problems=(404,),
    ),
)
