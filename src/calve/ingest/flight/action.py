"""What one action over Flight takes and does: the words of the table of actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from calve.access import Caller, Need
    from calve.ingest.intake import Intake


class Named(msgspec.Struct, frozen=True):
    """What every body has; the rest of it is the action's."""

    topic: str


class Asked(NamedTuple):
    """What an action works on: `name` is the topic, in the caller's reach; None without one.

    It `is_over` when nobody waits for the answer any more, or the service stops.
    """

    intake: Intake
    caller: Caller
    name: Any
    is_over: Callable[[], bool]


class Action(NamedTuple):
    """`scope` is that of the token that it takes; `is_named`, unless its body names no topic."""

    scope: Need
    body: type[Any]
    act: Callable[[Asked, Any], Any]
    description: str
    is_named: bool = True
