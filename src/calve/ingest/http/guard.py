"""Keeps web pages out: without tokens, whatever a browser can reach, every page in it can.

A page of another site may send requests to this machine's own addresses. It cannot choose the
header Origin, and a name that it points here shows in the header Host.
"""

from __future__ import annotations

import ipaddress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from calve.ingest.http.problems import Refusal

if TYPE_CHECKING:
    from starlette.datastructures import Headers

_HINT: Final = "requests come from programs, not from web pages; call it by its address"
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})


class Guard:
    """Knows the names under which the server may be called."""

    def __init__(self, host: str) -> None:
        self._host = host.strip("[]").lower()
        # Whoever listens on every address has names that nobody here knows.
        self._takes_any_host = self._host in {"", "0.0.0.0", "::"}  # noqa: S104

    def check(self, method: str, headers: Headers) -> None:
        """Refuse a request that a web page may have sent."""
        self._check_host(headers.get("host"))
        host = headers.get("host", "")
        origin = headers.get("origin")
        if origin is not None and _place_of(origin) != host.lower():
            raise _denied(f"the request comes from a page of {origin!r}")
        if headers.get("sec-fetch-site") in {"cross-site", "same-site"}:
            is_link = headers.get("sec-fetch-mode") == "navigate" and method in _SAFE_METHODS
            if not is_link:
                raise _denied("the request comes from a page of another site")

    def _check_host(self, host: str | None) -> None:
        if host is None or self._takes_any_host:
            return  # browsers always send it
        name = _host_name(host)
        if name != self._host and not _is_loopback(name):
            raise _denied(f"the server is not called {name!r}")


def _place_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".").lower()
    except ValueError:
        return ""


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _denied(detail: str) -> Refusal:
    return Refusal(HTTPStatus.FORBIDDEN, detail, _HINT)
