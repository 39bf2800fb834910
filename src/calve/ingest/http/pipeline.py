"""The pipeline, watched and directed: `/v1/pipeline` and its `pause`, `resume` and `skip`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calve.ingest.http.service import Service, answer
from calve.ingest.http.views import PauseOrder, SkipOrder

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def show_pipeline(service: Service, request: Request) -> Response:
    topic = request.query_params.get("topic")
    return answer(await service.in_thread(service.intake.pipeline.status, topic))


async def pause_pipeline(service: Service, request: Request) -> Response:
    order = await service.document(request, PauseOrder)
    return answer(await service.in_thread(service.intake.pipeline.pause, order.topic))


async def resume_pipeline(service: Service, request: Request) -> Response:
    order = await service.document(request, PauseOrder)
    return answer(await service.in_thread(service.intake.pipeline.resume, order.topic))


async def skip_rows(service: Service, request: Request) -> Response:
    order = await service.document(request, SkipOrder)
    control = service.intake.pipeline
    return answer(await service.in_thread(control.skip, order.topic, order.to, order.partition))
