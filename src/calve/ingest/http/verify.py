"""The audit of a topic: `/v1/topics/{topic}/verify`."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Final

from starlette.requests import ClientDisconnect

from calve.ingest.http.callers import caller_of
from calve.ingest.http.parameters import asked, query
from calve.ingest.http.service import Service, answer, choice, topic_name
from calve.ingest.verifying import verified
from calve.maintenance.verification import Verification

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_YES, _NO = "true", "false"


async def verify_topic(service: Service, request: Request) -> Response:
    from calve.ingest.http.answers import disconnected

    name = topic_name(request)
    with_orphans = choice(request, "orphans", (_YES, _NO)) == _YES
    is_over = threading.Event()
    gone = asyncio.ensure_future(disconnected(request.scope["calve.upload"].receive))
    found = asyncio.ensure_future(
        service.in_thread(
            verified,
            service.intake,
            caller_of(request),
            name,
            with_orphans=with_orphans,
            is_over=lambda: is_over.is_set() or service.gate.is_closing,
        )
    )
    try:
        await asyncio.wait((found, gone), return_when=asyncio.FIRST_COMPLETED)
        if not found.done():
            raise ClientDisconnect
        return answer(found.result())
    finally:
        is_over.set()
        gone.cancel()
        found.cancel()


VERIFY: Final = (
    asked(
        "GET /v1/topics/{topic}/verify",
        verify_topic,
        "Prove that each offset of a topic is in its table once, or among its dead letters",
        scope="admin",
        gives=("what was found; `is_sound` is the verdict", Verification),
        tells="What `calve topic verify --json` prints, held against the log of this service; also "
        "if there is a defect. One audit at a time: a second one is told 429. Where files lie is "
        "told to operators alone: for others `…` stands for the directory.",
        parameters=(
            query(
                "orphans",
                "`true` lists the data files that no snapshot refers to",
                type="string",
                enum=[_YES, _NO],
            ),
        ),
        problems=(400, 404, 409, 429),
    ),
)
