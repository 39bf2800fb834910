"""Who can reach the doors of a service, and what must guard them before they open.

On loopback that is this machine alone. Anywhere else a service asks for tokens and speaks TLS, or
somebody has said that it may do without.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

from calve.errors import InvalidSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from calve.settings import Settings

_TOKENS: Final = "tokens: whoever reaches a port may read, write and delete everything"
_TLS: Final = "TLS: whoever is on the way may read and change everything"


def is_loopback(host: str) -> bool:
    """Whether an address or a name is this machine's own, which no other machine can reach."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def exposure(settings: Settings) -> list[str]:
    """What a service that listens elsewhere than on loopback does without, with what follows."""
    return [] if is_loopback(settings.ingest.host) else list(_missing(settings))


def require_guards(settings: Settings) -> list[str]:
    """The same, for a start: InvalidSettings unless `auth.allow_insecure` says that it may be."""
    found = exposure(settings)
    if found and not settings.auth.allow_insecure:
        raise InvalidSettings(
            "\n".join(
                [f"{_place(settings)} is not loopback, and the service has no", *_listed(found)]
            ),
            hint="set auth.required = true, and ingest.tls_cert with ingest.tls_key, which "
            "`calve tls init` makes; or listen on 127.0.0.1. auth.allow_insecure = true opens it "
            "as it is, for networks in which everybody is trusted",
        )
    return found


def insecure_words(settings: Settings, found: list[str]) -> str:
    """One line of a service that somebody has opened as it is."""
    lacks = " and no ".join(each.partition(":")[0] for each in found)
    return (
        f"INSECURE: {_place(settings)} is open to other machines with no {lacks} "
        "(auth.allow_insecure)"
    )


def _place(settings: Settings) -> str:
    return f"ingest.host {settings.ingest.host!r}"


def _listed(found: list[str]) -> list[str]:
    return [f"  {each}" for each in found]


def _missing(settings: Settings) -> Iterator[str]:
    if not settings.auth.required:
        yield _TOKENS
    if settings.ingest.tls_cert is None:
        yield _TLS
