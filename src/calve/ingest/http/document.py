"""The two ways to read what the service offers: `/openapi.json` and `/docs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.requests import Request

    from calve.ingest.http.service import Service

_PAGE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


async def show_openapi(service: Service, request: Request) -> Response:  # noqa: ARG001
    content: bytes = request.app.openapi
    return Response(content, media_type="application/json")


async def show_docs(service: Service, request: Request) -> Response:  # noqa: ARG001
    page: str = request.app.docs
    return Response(page, headers=_PAGE_HEADERS, media_type="text/html")
