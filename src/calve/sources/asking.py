"""Connections to services that have logs of others, over TLS where their address says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from calve.protocol.trust import flight_arguments, identity_in, trusted_beside

if TYPE_CHECKING:
    from calve.settings import Secret
    from calve.sources.place import TlsWay

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


def connect(url: str, way: TlsWay | None) -> Any:
    """A Flight client that goes this way, whichever machine this is."""
    from pyarrow import flight

    tls: dict[str, Any] = {}
    if way is not None and is_tls(url):
        roots = trusted_beside(way.authorities)
        tls = flight_arguments(roots, identity_in(way.cert_file, way.key_file))
    return flight.FlightClient(url, generic_options=list(_OPTIONS), **tls)


def call_options(token: Secret | None, timeout_seconds: float | None = None) -> Any:
    """For one call, which shows the token if there is one."""
    from pyarrow import flight

    headers = [(b"authorization", f"Bearer {token.reveal()}".encode())] if token else []
    return flight.FlightCallOptions(timeout=timeout_seconds, headers=headers)
