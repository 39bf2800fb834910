"""What the kernel knows of a connection: what came, and for how long the other side is silent.

On Linux. Elsewhere nothing is known, and a silent side is noticed when TCP gives it up.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from typing import Final, NamedTuple

_TCP_INFO: Final = getattr(socket, "TCP_INFO", None)
_TCP_INFO_BYTES: Final = 136
# Where they are in tcp_info, of linux/tcp.h.
_PROBES: Final = struct.Struct("=3xB")
_UNACKED: Final = struct.Struct("=24xI")
_SINCE_DATA_AND_ACK: Final = struct.Struct("=52xII")
_RECEIVED: Final = struct.Struct("=128xQ")
_PROBES_MIN: Final = 2  # of a side that takes nothing more: one may get lost


class Traffic(NamedTuple):
    """`unanswered_ms` is for how long the other side has not said that it got what was sent.

    It is 0 where it has, also where it takes nothing more for now, and says so.
    """

    received_bytes: int
    silent_ms: int
    unanswered_ms: int


def traffic_of(connection: socket.socket) -> Traffic | None:
    """None where the kernel does not tell."""
    if _TCP_INFO is None:
        return None
    with suppress(OSError):
        info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _TCP_INFO_BYTES)
        since_data_ms, since_ack_ms = _SINCE_DATA_AND_ACK.unpack_from(info)
        (probes,), (unacked,) = _PROBES.unpack_from(info), _UNACKED.unpack_from(info)
        is_waiting = unacked > 0 or probes >= _PROBES_MIN
        (received_bytes,) = _RECEIVED.unpack_from(info)
        return Traffic(received_bytes, since_data_ms, since_ack_ms if is_waiting else 0)
    return None


def copy_of(descriptor: int) -> socket.socket:
    """For descriptors that somebody else owns, who may close them at any moment."""
    return socket.socket(fileno=os.dup(descriptor))
