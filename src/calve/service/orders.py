"""What a supervisor and its processes say to each other, as lines of JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from calve.protocol import Problem
from calve.service.announcement import Addresses


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Which settings hold: the file, and what was given on the command line.

    Sent through a pipe, where no other user of the machine sees it.
    """

    config: str | None = None
    flags: dict[str, Any] = {}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A process is ready, and says where it listens if it does; or why it cannot go on."""

    addresses: Addresses | None = None
    problem: Problem | None = None
