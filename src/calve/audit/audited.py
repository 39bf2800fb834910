"""Has the methods of a class recorded, by a table of which of them are administrative.

The first argument is what the action is about; the others are its details. What an action made is
told by its result, if that has `audit_details`. A dry run is not recorded, nor what one recorded
action does inside of another.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from calve.errors import masked
from calve.model import TableName
from calve.settings.secret import MASK, looks_secret, mask_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from calve.audit.trail import Trail

_C = TypeVar("_C", bound=type)
_ROWS: Final = ("data", "from_data")  # what a record says nothing of
_TEXT_MAX: Final = 500
_ITEMS_MAX: Final = 50

_is_inside: ContextVar[bool] = ContextVar("calve_audit_inside", default=False)


class HasTrail(Protocol):
    @property
    def _trail(self) -> Trail: ...


def audited(actions: Mapping[str, str]) -> Callable[[_C], _C]:
    """Decorate a class whose `_trail` says where: the names of methods, and of their actions."""

    def decorate(kind: _C) -> _C:
        for name, action in actions.items():
            setattr(kind, name, recorded(action, getattr(kind, name)))
        return kind

    return decorate


def recorded(action: str, method: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def record(self: HasTrail, *given: Any, **named: Any) -> Any:
        if _is_inside.get():
            return method(self, *given, **named)
        # What does not fit the signature is told by the method itself.
        arguments = dict(signature.bind_partial(self, *given, **named).arguments)
        for left_out in ("self", *_ROWS):
            arguments.pop(left_out, None)
        if arguments.get("dry_run") is True:
            return method(self, *given, **named)
        about, details = _split(arguments)
        token = _is_inside.set(True)
        try:
            with self._trail.recording(action, about or _subject_of(self), details) as more:
                result = method(self, *given, **named)
                more.update(getattr(result, "audit_details", {}))
                return result
        finally:
            _is_inside.reset(token)

    return record


def _split(arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """What it is about, and the rest."""
    for extra in ("kwargs", "filters", "options"):  # what a method takes by any name
        arguments |= arguments.pop(extra, {})
    if not arguments:
        return "", {}
    first, *_ = arguments
    about = arguments.pop(first)
    if not isinstance(about, str | TableName):
        details = {name: told(value) for name, value in {first: about, **arguments}.items()}
        return _subject_of(about), details
    return str(about)[:_TEXT_MAX], {name: told(value) for name, value in arguments.items()}


def _subject_of(holder: object) -> str:
    """Of a method that names nothing: what its object, or what it was given, is about."""
    return str(getattr(holder, "audit_subject", "") or "")[:_TEXT_MAX]


def told(value: Any) -> Any:
    """A value as a record may hold it: plain, short, and without secrets."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        few = list(value.items())[:_ITEMS_MAX]
        return {str(k): MASK if looks_secret(str(k)) else told(v) for k, v in few}
    if isinstance(value, Sequence | AbstractSet) and not isinstance(value, str | bytes):
        return [told(each) for each in list(value)[:_ITEMS_MAX]]
    if isinstance(value, msgspec.Struct):
        return told(msgspec.structs.asdict(value))
    if is_dataclass(value) and not isinstance(value, type | TableName):
        return told({field.name: getattr(value, field.name) for field in fields(value)})
    if isinstance(value, str | date | TableName):
        return mask_url(masked(str(value)))[:_TEXT_MAX]
    return type(value).__name__
