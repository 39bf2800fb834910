"""Paths are taken apart before they are decoded: a slash that came encoded divides nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_SLASH: Final = re.compile("%2f", re.IGNORECASE)
_KEPT: Final = "%252F"


class WholeSegments:
    """Before an application that sees decoded paths: `x%2Frows` is one name there, a bad one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: str = scope.get("raw_path", b"").decode("latin-1")
        if _SLASH.search(raw):
            scope = {**scope, "path": unquote(_SLASH.sub(_KEPT, raw))}
        await self._app(scope, receive, send)
