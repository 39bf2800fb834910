"""Keeps web pages out: without tokens, whatever a browser can reach, every page in it can.

A page of another site may send requests to this machine's own addresses. It cannot choose the
header Origin, and a name that it points here shows in the header Host. Flight and OTLP over gRPC
need no such guard: a page cannot speak plain HTTP/2 to them, and gRPC-web is not offered.
"""

from __future__ import annotations

import ipaddress
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from calve.ingest.exposure import is_loopback
from calve.ingest.http.problems import Refusal

if TYPE_CHECKING:
    from starlette.datastructures import Headers

    from calve.settings import Settings

_HINT: Final = "requests come from programs, not from web pages; call it by its address"
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104


class Guard:
    """Knows the names under which the server may be called."""

    def __init__(self, settings: Settings) -> None:
        ingest = settings.ingest
        self._host = ingest.host.strip("[]").lower()
        # A page that points a name of its own here has no token, and no certificate for that name.
        is_proof = settings.auth.required or ingest.tls_cert is not None
        self._takes_any_name = is_proof and not is_loopback(self._host)
        self._is_everywhere = self._host in _EVERYWHERE
        self._own_names = {self._host, *(_names_of_machine() if self._is_everywhere else ())}

    def check(self, method: str, headers: Headers) -> None:
        """Refuse a request that a web page may have sent."""
        for name in headers.getlist("host"):  # browsers always send one
            self._check_host(name)
        host = headers.get("host", "")
        origin = headers.get("origin")
        if origin is not None and _place_of(origin) != host.lower():
            raise _denied(f"the request comes from a page of {origin!r}")
        if headers.get("sec-fetch-site") in {"cross-site", "same-site"}:
            is_link = headers.get("sec-fetch-mode") == "navigate" and method in _SAFE_METHODS
            if not is_link:
                raise _denied("the request comes from a page of another site")

    def _check_host(self, host: str) -> None:
        if self._takes_any_name:
            return
        name = _host_name(host)
        if name in self._own_names or is_loopback(name):
            return
        # Nobody can point an address elsewhere.
        if not (self._is_everywhere and _is_address(name)):
            raise _denied(f"the server is not called {name!r}")


def _names_of_machine() -> set[str]:
    name = socket.gethostname().lower()
    return {name, name.partition(".")[0]}


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


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _denied(detail: str) -> Refusal:
    return Refusal(HTTPStatus.FORBIDDEN, detail, _HINT)
