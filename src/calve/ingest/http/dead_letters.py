"""Dead letters: `/v1/topics/{topic}/dead-letters`, and their replay and discard.

A replay or a discard does as much as one commit holds, and says whether there is more to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from calve.errors import InvalidRequest
from calve.ingest.dead_letters.views import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    OFFSET_MAX,
    PARTITION_MAX,
    Filters,
    Wish,
)
from calve.ingest.formats.json_rows import JSON
from calve.ingest.http.headers import wanted_type
from calve.ingest.http.service import Service, answer, number, topic_name

if TYPE_CHECKING:
    from starlette.requests import Request

    from calve.ingest.dead_letters.box import DeadLetters

BYTES: Final = "application/octet-stream"


async def list_dead_letters(service: Service, request: Request) -> Response:
    box = _box(service, request)
    limit = number(request, "limit", default=LIMIT_DEFAULT, least=1, most=LIMIT_MAX)
    query = request.query_params
    filters: Filters = {
        "reason": query.get("reason"),
        "offsets": query.get("offsets"),
        "partition": _partition(request),
        "since": query.get("since"),
        "until": query.get("until"),
    }
    assert limit is not None
    return answer(await service.in_thread(box.list, limit=limit, **filters))


async def show_dead_letter(service: Service, request: Request) -> Response:
    box = _box(service, request)
    offset, partition = _offset(request), _partition(request)
    if wanted_type(request.headers, (JSON, BYTES)) == BYTES:
        original = await service.in_thread(box.original, offset, partition)
        return Response(original, media_type=BYTES)
    return answer(await service.in_thread(box.show, offset, partition))


async def replay_dead_letters(service: Service, request: Request) -> Response:
    box = _box(service, request)
    wish = await service.document(request, Wish)
    # One at a time, so that however many wish for it, other requests have threads left.
    async with service.replaying:
        done = await service.in_thread(
            box.replay_some,
            wish.selection,
            ends=wish.ends,
            dry_run=wish.dry_run,
            give_up=wish.give_up,
        )
    return answer(done)


async def discard_dead_letters(service: Service, request: Request) -> Response:
    box = _box(service, request)
    wish = await service.document(request, Wish)
    async with service.replaying:
        done = await service.in_thread(
            box.discard_some, wish.selection, ends=wish.ends, dry_run=wish.dry_run
        )
    return answer(done)


def _box(service: Service, request: Request) -> DeadLetters:
    # Whoever only takes rows in need not load what reads tables.
    from calve.ingest.dead_letters.box import DeadLetters

    return DeadLetters.of(service.intake, topic_name(request))


def _partition(request: Request) -> int | None:
    return number(request, "partition", default=None, least=0, most=PARTITION_MAX)


def _offset(request: Request) -> int:
    text = request.path_params["offset"]
    offset = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else OFFSET_MAX
    if offset >= OFFSET_MAX:
        raise InvalidRequest(f"{text[:40]!r} is no offset", hint="give a whole number from 0 on")
    return offset
