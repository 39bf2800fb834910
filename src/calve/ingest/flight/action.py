"""What one action over Flight takes and does: the words of the table of actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from calve.ingest.intake import Intake


class Named(msgspec.Struct, frozen=True):
    """What every body has; the rest of it is the action's."""

    topic: str


class Action(NamedTuple):
    """`act` gets the topic, parsed; of an action that need not name one, None."""

    body: type[Any]
    act: Callable[[Intake, Any, Any], Any]
    description: str
    is_named: bool = True
