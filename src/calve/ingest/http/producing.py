"""Rows in: `POST /v1/topics/{topic}/rows`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from calve.ingest.formats import Decoded, decode
from calve.ingest.http.headers import rows_before_of, rows_type_of
from calve.ingest.http.service import Grow, Service, answer, choice, row_count, topic_name
from calve.ingest.http.views import Appended

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

ON_ERROR: Final = ("dead_letter",)
_REASONS_MAX: Final = 5


async def produce_rows(service: Service, request: Request) -> Response:
    name = topic_name(request)
    media_type = rows_type_of(request.headers)
    before = rows_before_of(request.headers)
    asks_to_set_aside = choice(request, "on_error", ON_ERROR) is not None

    def read(body: bytes, grow: Grow) -> Decoded:
        types = service.types.of(service.intake.topic(name))
        return decode(
            body,
            media_type,
            types,
            sets_aside=asks_to_set_aside or types.sets_aside,
            bytes_max=service.settings.request_bytes_max,
            grow=grow,
            before=before,
        )

    done, decoded = await service.append(request, name, read)
    rejected = decoded.rejected if decoded else []
    return answer(
        Appended(
            topic=str(name),
            partition=service.intake.partition,
            first=done.first,
            end=done.end,
            rows=decoded.row_count if decoded else row_count(done),
            repeat=done.is_repeat,
            rejected=len(rejected),
            reasons=[each.reason for each in rejected[:_REASONS_MAX]],
        )
    )
