"""The pipeline, watched and directed: `/v1/pipeline` and its `pause`, `resume` and `skip`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calve.ingest import directing
from calve.ingest.http.callers import caller_of
from calve.ingest.http.service import Service, answer
from calve.ingest.http.views import PauseOrder, SkipOrder

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def show_pipeline(service: Service, request: Request) -> Response:
    topic = request.query_params.get("topic")
    caller = caller_of(request)
    return answer(await service.in_thread(directing.pipeline_status, service.intake, caller, topic))


async def pause_pipeline(service: Service, request: Request) -> Response:
    order = await service.document(request, PauseOrder)
    caller = caller_of(request)
    return answer(
        await service.in_thread(directing.pause_pipeline, service.intake, caller, order.topic)
    )


async def resume_pipeline(service: Service, request: Request) -> Response:
    order = await service.document(request, PauseOrder)
    caller = caller_of(request)
    return answer(
        await service.in_thread(directing.resume_pipeline, service.intake, caller, order.topic)
    )


async def skip_rows(service: Service, request: Request) -> Response:
    order = await service.document(request, SkipOrder)
    done = await service.in_thread(
        directing.skip_rows,
        service.intake,
        caller_of(request),
        order.topic,
        order.to,
        order.partition,
    )
    return answer(done)
