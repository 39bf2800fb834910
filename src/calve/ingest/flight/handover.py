"""Gives the listening sockets of one gRPC server to another, so that no connection is refused.

gRPC, as Arrow offers it, takes its certificate when it is made and shares its port with nobody. So
a server with a new certificate listens elsewhere first. Then the files behind the descriptors of
the two change places: what gRPC polls and accepts from keeps its number, and is another socket.
Whoever connects meanwhile waits in the kernel's queue, for milliseconds. On Linux alone.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import socket
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from calve.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DESCRIPTORS: Final = Path("/proc/self/fd")
_INFO: Final = Path("/proc/self/fdinfo")
_POLLED: Final = re.compile(r"tfd:\s*(\d+)\s+events:\s*([0-9a-f]+)\s+data:\s*([0-9a-f]+)")
_ADD, _DELETE = 1, 2
_SETTLE_SECONDS: Final = 0.01  # for an accept that is under way
_LOOK_SECONDS: Final = 2.0


class _Event(ctypes.Structure):
    """epoll_event, of linux/eventpoll.h."""

    _pack_ = 1 if platform.machine() == "x86_64" else 8
    _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))


class _Polled(NamedTuple):
    """A descriptor as an epoll set has it."""

    poll: int
    descriptor: int
    events: int
    data: int

    def forget(self) -> None:
        self._control(_DELETE)

    def add(self) -> None:
        self._control(_ADD)

    def _control(self, order: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        event = _Event(self.events, self.data)
        if libc.epoll_ctl(self.poll, order, self.descriptor, ctypes.byref(event)):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


class _Exchange(NamedTuple):
    """The descriptors of an old server and of a new one for the same address."""

    old: _Polled
    new: _Polled

    def swap(self) -> None:
        """From here on nobody accepts; connections wait."""
        self.old.forget()
        self.new.forget()
        spare = os.dup(self.new.descriptor)
        os.dup2(self.old.descriptor, self.new.descriptor, inheritable=False)
        os.dup2(spare, self.old.descriptor, inheritable=False)
        os.close(spare)

    def finish(self) -> None:
        """Have the new server accept, and nobody listen where it did before."""
        with socket.socket(fileno=os.dup(self.old.descriptor)) as spare, suppress(OSError):
            spare.shutdown(socket.SHUT_RDWR)
        self.new.add()


def hand_over(old_port: int, new_port: int, between: Callable[[], None]) -> None:
    """Have the server of `new_port` listen on `old_port` in place of the one that does.

    `between` is called when the old one accepts nothing more, and the new one nothing yet.
    Unavailable, and nothing changed, where that is not possible.
    """
    exchanges = _exchanges(old_port, new_port)
    for each in exchanges:
        each.swap()
    try:
        time.sleep(_SETTLE_SECONDS)
        between()
    finally:
        for each in exchanges:
            each.finish()


def _exchanges(old_port: int, new_port: int) -> list[_Exchange]:
    if sys.platform != "linux":
        raise _impossible("this system does not tell how gRPC waits for connections")
    until = time.monotonic() + _LOOK_SECONDS
    while True:
        # What is polled changes while it is looked at, with every connection that comes or goes.
        try:
            polled = list(_polled())
        except OSError as error:
            raise _impossible(f"how gRPC waits for connections cannot be seen: {error}") from error
        old, new = _listeners(old_port, polled), _listeners(new_port, polled)
        if old and old.keys() == new.keys():
            return [_Exchange(old[host], new[host]) for host in old]
        if time.monotonic() > until:
            reason = f"it is seen to wait at {sorted(old)} and would at {sorted(new)}"
            raise _impossible(f"gRPC waits for connections in another way: {reason}")
        time.sleep(_SETTLE_SECONDS)


def _listeners(port: int, polled: list[_Polled]) -> dict[str, _Polled]:
    """Those that listen on a port, by their address."""
    found = {}
    for one in polled:
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(one.descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(one.descriptor)) as each:
                is_tcp = each.family in {socket.AF_INET, socket.AF_INET6}
                if (
                    is_tcp
                    and each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                    and each.getsockname()[1] == port
                ):
                    found[str(each.getsockname()[0])] = one
    return found


def _polled() -> Iterator[_Polled]:
    for poll in _descriptors():
        with suppress(OSError):
            if "eventpoll" in str((_DESCRIPTORS / str(poll)).readlink()):
                for descriptor, events, data in _POLLED.findall((_INFO / str(poll)).read_text()):
                    yield _Polled(poll, int(descriptor), int(events, 16), int(data, 16))


def _descriptors() -> list[int]:
    return [int(path.name) for path in _DESCRIPTORS.iterdir()]


def _impossible(reason: str) -> Unavailable:
    return Unavailable(
        f"Flight cannot change its certificate while it runs: {reason}",
        hint="start the service again",
    )
