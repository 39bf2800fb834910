"""Who acts: a client at one of the service's doors, or a user of this host with a program."""

from __future__ import annotations

import os
import platform
import pwd
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Actor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`kind` is `user` for one of this host, `token` for who showed one, `client` for who did not
    have to."""

    kind: str
    name: str
    address: str = ""
    door: str = ""
    token: str | None = None
    tenant: str | None = None
    program: str | None = None
    pid: int | None = None

    @classmethod
    def of_host(cls) -> Actor:
        """Whoever runs this process."""
        return cls(
            kind="user",
            name=_user(),
            address=platform.node(),
            program=Path(sys.argv[0]).name if sys.argv else "",
            pid=os.getpid(),
        )


def _user() -> str:
    # What the kernel says, not the environment, which anybody sets.
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # nobody gave it a name
        return str(number)


@dataclass(slots=True)
class Door:
    """One request at a door: who sent it, and whether it came so far that it was recorded."""

    actor: Callable[[], Actor]
    is_recorded: bool = False


_door: ContextVar[Door | None] = ContextVar("calve_audit_door", default=None)


@contextmanager
def at_door(actor: Callable[[], Actor]) -> Iterator[Door]:
    """What is done inside, also in threads that are given this context, is done by the actor.

    Who that is need not be known yet.
    """
    door = Door(actor)
    token = _door.set(door)
    try:
        yield door
    finally:
        _door.reset(token)


def actor_now() -> Actor:
    """Who acts here and now."""
    door = _door.get()
    return Actor.of_host() if door is None else door.actor()


def note_recorded() -> None:
    """Tell the door, if there is one, that it need not record what it is doing."""
    door = _door.get()
    if door is not None:
        door.is_recorded = True
