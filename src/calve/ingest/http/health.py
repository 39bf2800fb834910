"""How the service is: `/v1/status`, `/health/live`, `/health/ready`."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from calve.errors import Unavailable
from calve.ingest.http.callers import caller_of
from calve.ingest.http.service import Service, answer
from calve.ingest.http.views import Health, Status, TopicProblem
from calve.ingest.refusals import RETRY_AFTER_MS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from calve.access import Caller


async def show_status(service: Service, request: Request) -> Response:
    return answer(await service.in_thread(_status, service, caller_of(request)))


def _status(service: Service, caller: Caller) -> Status:
    intake = service.intake
    return Status(
        version=version("calve"),
        partition=intake.partition,
        log_id=intake.log.log_id,
        topics=len(caller.among(intake.topics.list(caller.only_tenant))),
        problems=[
            TopicProblem(topic=str(name), detail=error.message, hint=error.hint)
            for name, error in intake.problems.items()
            if caller.sees(name)
        ],
        stopped=intake.stopped.message if intake.stopped else None,
        requests=service.gate.inside_count,
        memory_bytes=intake.admission.held_bytes,
        memory_bytes_max=intake.admission.bytes_max,
    )


async def show_live(service: Service, request: Request) -> Response:  # noqa: ARG001
    return answer(Health(status="live"))


async def show_ready(service: Service, request: Request) -> Response:  # noqa: ARG001
    """Whether rows are taken in: not while stopping, nor after the log's disk failed.

    Why it failed names files of this host, and anybody may ask here: `/v1/status` tells.
    """
    if service.intake.stopped is not None:
        raise Unavailable(
            "no rows are taken in: the log has stopped",
            hint="/v1/status says why; the service tries to open its log again",
            context={"retry_after_ms": str(RETRY_AFTER_MS)},
        )
    return answer(Health(status="ready"))
