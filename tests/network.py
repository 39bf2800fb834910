"""Runs a command where the network is refused: in a namespace that has the loopback device only.

    python tests/network.py COMMAND ARGUMENT...

Needs Linux; works for root and, where the kernel lets users make namespaces, for anybody. Exits
with 77 and one line when the kernel refuses; the command has not run then.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Final

KERNEL_REFUSES: Final = 77

_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 0x1


def main() -> None:
    try:
        leave_network()
        raise_loopback()
    except OSError as error:
        print(f"network.py: the kernel refuses a network namespace: {error}", file=sys.stderr)
        sys.exit(KERNEL_REFUSES)
    os.execvp(sys.argv[1], sys.argv[1:])


def leave_network() -> None:
    try:
        unshare(_CLONE_NEWNET)
    except PermissionError:
        user, group = os.getuid(), os.getgid()
        unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
        keep_identity(user=user, group=group)


def unshare(namespaces: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        failed = libc.unshare(namespaces)
    except AttributeError:
        raise OSError("it is not Linux") from None
    if failed:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def keep_identity(*, user: int, group: int) -> None:
    """In a user namespace everybody is nobody until mapped; map us to ourselves."""
    process = Path("/proc/self")
    (process / "setgroups").write_text("deny")
    (process / "uid_map").write_text(f"{user} {user} 1")
    (process / "gid_map").write_text(f"{group} {group} 1")


def raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


if __name__ == "__main__":
    main()
