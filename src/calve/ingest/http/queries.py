"""Questions in SQL: `/v1/query`, and those that are under way: `/v1/queries`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from calve.errors import CalveError, NotFound
from calve.ingest.formats.arrow_rows import ARROW
from calve.ingest.formats.csv_rows import CSV
from calve.ingest.formats.json_rows import JSON, NDJSON
from calve.ingest.http.callers import caller_of
from calve.ingest.http.headers import wanted_type
from calve.ingest.http.service import Service, answer, choice
from calve.protocol.queries import QueryList, QueryOrder, QueryView

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from calve.access import Caller
    from calve.ingest.intake import Intake
    from calve.query.queries import QueryStatus

PARQUET: Final = "application/vnd.apache.parquet"
TEXT: Final = "text/plain"
TYPES: Final = {
    "json": JSON,
    "ndjson": NDJSON,
    "csv": CSV,
    "parquet": PARQUET,
    "arrow": ARROW,
    "table": TEXT,
}


async def run_query(service: Service, request: Request) -> Response:
    # Whoever only takes rows in need not load what reads tables.
    from calve.ingest.http.answers import AnswerResponse, AnswerWriter, disconnected, either
    from calve.query.queries import Question

    kind = choice(request, "format", tuple(TYPES))
    media_type = TYPES[kind] if kind else wanted_type(request.headers, tuple(TYPES.values()))
    kind = kind or next(name for name, each in TYPES.items() if each == media_type)
    order = await service.document(request, QueryOrder)
    queries = await service.in_thread(lambda: service.intake.queries)
    caller = caller_of(request)
    client = caller.share(request.client.host if request.client else "")
    question = Question(order.sql, order.parameters, order.fresh, client, order.tenant, caller)
    gone = asyncio.ensure_future(disconnected(request.scope["calve.upload"].receive))
    recheck = service.intake.doorkeeper.recheck
    writer = AnswerWriter(queries, question, kind, recheck=recheck)
    try:
        first = await either(writer.next(), gone)
    except BaseException:
        writer.give_up()
        raise
    finally:
        gone.cancel()
    if isinstance(first, CalveError):
        raise first
    return AnswerResponse(writer, first, media_type)


async def list_queries(service: Service, request: Request) -> Response:
    found = await service.in_thread(_listed, service.intake, caller_of(request))
    return answer(QueryList(queries=[_view(each) for each in found]))


async def show_query(service: Service, request: Request) -> Response:
    wanted = request.path_params["id"]
    found = await service.in_thread(_listed, service.intake, caller_of(request))
    for each in found:
        if each.id == wanted:
            return answer(_view(each))
    raise NotFound(f"no query {wanted!r} is under way", hint="it may have ended")


async def cancel_query(service: Service, request: Request) -> Response:
    wanted = request.path_params["id"]
    tenant = caller_of(request).only_tenant
    found = await service.in_thread(lambda: service.intake.queries.cancel(wanted, tenant))
    return answer(_view(found))


def _listed(intake: Intake, caller: Caller) -> list[QueryStatus]:
    return intake.queries.list(caller.only_tenant)


def _view(status: QueryStatus) -> QueryView:
    return QueryView(
        id=status.id,
        sql=status.sql,
        client=status.client,
        asked_at=status.asked_at.isoformat(),
        is_waiting=status.is_waiting,
    )
