"""The connections of a port of this process, found among its descriptors.

gRPC's server, as Arrow offers it, ends no stream and bounds no message. The kernel knows each
connection: how much it has received, since when it is silent, and how to shut it. A handler that
waits on it then comes back.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from calve.ingest.tcp_info import copy_of, traffic_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from calve.ingest.tcp_info import Traffic

_DESCRIPTORS: Final = Path("/dev/fd")


def same_address(address: str) -> str:
    """gRPC's spelling of an address, such as ipv6:%5B::1%5D:80, as it is spelt here."""
    _, _, rest = unquote(address).partition(":")
    host, _, port = rest.rpartition(":")
    return _spelt(host.strip("[]"), port)


def _spelt(host: str, port: object) -> str:
    return f"{host.removeprefix('::ffff:').partition('%')[0]}:{port}"


class Connections:
    def __init__(self, port: int) -> None:
        self._port = port

    def traffic(self) -> dict[str, Traffic]:
        """By the other side's address; empty where the kernel does not tell."""
        found = ((address, traffic_of(connection)) for address, connection in self._each())
        return {address: traffic for address, traffic in found if traffic is not None}

    def shut(self, addresses: set[str] | None = None) -> int:
        """Shut the connections with these addresses, or all; how many there were."""
        count = 0
        for address, connection in self._each():
            if addresses is None or address in addresses:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                    count += 1
        return count

    def _each(self) -> Iterator[tuple[str, socket.socket]]:
        for descriptor in _socket_descriptors():
            with suppress(OSError), copy_of(descriptor) as connection:
                is_tcp = connection.family in {socket.AF_INET, socket.AF_INET6}
                if is_tcp and connection.getsockname()[1] == self._port:
                    yield _spelt(*connection.getpeername()[:2]), connection


def _socket_descriptors() -> list[int]:
    found = []
    for path in _DESCRIPTORS.iterdir():
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(path.name)).st_mode):
                found.append(int(path.name))
    return found
