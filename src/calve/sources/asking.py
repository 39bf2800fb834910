"""Connections to services that have logs of others, over TLS where their address says so."""

from __future__ import annotations

from typing import Any, Final

from calve.protocol.trust import trusted_beside

FLIGHT: Final = ("grpc://", "grpc+tls://", "grpc+tcp://")
_TLS: Final = "grpc+tls://"
_MESSAGE_BYTES_MAX: Final = -1  # whatever a frame may hold
_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
)


def is_tls(url: str) -> bool:
    return url.startswith(_TLS)


def connect(url: str, authorities: bytes | None) -> Any:
    """A Flight client that trusts `authorities` too, whichever machine this is."""
    from pyarrow import flight

    roots = trusted_beside(authorities) if is_tls(url) else None
    tls = {"tls_root_certs": roots} if roots else {}
    return flight.FlightClient(url, generic_options=list(_OPTIONS), **tls)
