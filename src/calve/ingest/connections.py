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
from typing import TYPE_CHECKING, Final, NamedTuple

from calve.ingest.addresses import spelt
from calve.ingest.tcp_info import copy_of, traffic_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from calve.ingest.tcp_info import Traffic

_DESCRIPTORS: Final = Path("/dev/fd")
_TCP: Final = frozenset({socket.AF_INET, socket.AF_INET6})
_NO_PORT: Final = 0


class Connections:
    def __init__(self, port: int) -> None:
        self._port = port

    def traffic(self) -> dict[str, Traffic]:
        """By the other side's address; empty where the kernel does not tell."""
        found = ((address, traffic_of(connection)) for address, connection in self._each())
        return {address: traffic for address, traffic in found if traffic is not None}

    def addresses(self) -> set[str]:
        """Of all other sides."""
        return {address for address, _ in self._each()}

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
        for found in _sockets():
            with suppress(OSError), copy_of(found.descriptor) as connection:
                if connection.family in _TCP and connection.getsockname()[1] == self._port:
                    yield spelt(*connection.getpeername()[:2]), connection


class Ports:
    """The connections of all ports of this process. Cheap to ask again: what is known of a socket
    stays so."""

    def __init__(self) -> None:
        self._known: dict[_Socket, tuple[int, str]] = {}

    def addresses(self) -> dict[int, set[str]]:
        """Those of the other sides, by the port here."""
        before = self._known
        ends = {each: before.get(each) or _ends_of(each) for each in _sockets()}
        self._known = {each: known for each, known in ends.items() if known is not None}
        found: dict[int, set[str]] = {}
        for port, address in self._known.values():
            found.setdefault(port, set()).add(address)
        return found


class _Socket(NamedTuple):
    descriptor: int
    inode: int  # descriptors are used again


def _sockets() -> Iterator[_Socket]:
    for path in _DESCRIPTORS.iterdir():
        with suppress(OSError):
            status = os.fstat(int(path.name))
            if stat.S_ISSOCK(status.st_mode):
                yield _Socket(int(path.name), status.st_ino)


def _ends_of(found: _Socket) -> tuple[int, str] | None:
    """None where it has no other side, or cannot be looked at for now."""
    with suppress(OSError), copy_of(found.descriptor) as connection:
        if connection.family not in _TCP:
            return _NO_PORT, ""
        return connection.getsockname()[1], spelt(*connection.getpeername()[:2])
    return None
