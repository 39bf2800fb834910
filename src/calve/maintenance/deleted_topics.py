"""Refusals for the sake of a topic, in the words that hold when that topic is deleted.

A table keeps the name of the topic that has fed it, and does not know whether there still is one.
It is refused all the same: a range of the topic may be under way to it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

from calve.errors import CalveError, InvalidRequest
from calve.model import TableName

if TYPE_CHECKING:
    from collections.abc import Callable

    from calve.settings import Settings

_C = TypeVar("_C", bound=type)


def tells_of_deleted(*methods: str) -> Callable[[_C], _C]:
    """Decorate a class whose `_lake` has the settings: methods that refuse what a topic feeds."""

    def decorate(kind: _C) -> _C:
        for name in methods:
            setattr(kind, name, _telling(getattr(kind, name)))
        return kind

    return decorate


def _telling(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def tell(self: Any, *given: Any, **named: Any) -> Any:
        try:
            return method(self, *given, **named)
        except InvalidRequest as error:
            topic = error.context.get("topic")
            if topic is None or not _is_deleted(self._lake.settings, TableName.parse(topic)):
                raise
            raise InvalidRequest(
                f"the topic {topic}, which is deleted, has fed the table",
                hint="--force (force=True) does it all the same; the last rows of the topic may "
                "still be on their way",
                context=error.context,
            ) from error

    return tell


def _is_deleted(settings: Settings, topic: TableName) -> bool:
    """Whether the state says so; one that is elsewhere, or does not answer, says nothing."""
    from calve.state import found_state
    from calve.topics.registry import TopicRegistry

    try:
        with found_state(settings) as state:
            return state is not None and TopicRegistry(state).find(topic) is None
    except CalveError:
        return False
