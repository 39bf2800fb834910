"""Values for the parameters of a statement: bound by DuckDB, never pasted into the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

from calve.errors import InvalidRequest

Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]
_COUNT_MAX: Final = 1_000
_PLAIN: Final = (
    *(bool, int, float, str, bytes, Decimal, UUID),
    *(date, datetime, time, timedelta),
)


def checked_parameters(given: Parameters) -> Parameters:
    """Values in order, for `?` and `$1`, or by name, for `$name`."""
    if isinstance(given, str | bytes) or not isinstance(given, Mapping | Sequence):
        raise InvalidRequest("parameters are neither a list nor a mapping", hint="write [value]")
    values = list(given.values() if isinstance(given, Mapping) else given)
    if len(values) > _COUNT_MAX:
        raise InvalidRequest(f"there are more than {_COUNT_MAX:,} parameters")
    for value in values:
        _require_value(value)
    if isinstance(given, Mapping):
        return {str(name): value for name, value in given.items()}
    return values


def _require_value(value: object) -> None:
    if isinstance(value, list | tuple):
        for each in value:
            _require_value(each)
    elif value is not None and not isinstance(value, _PLAIN):
        raise InvalidRequest(
            f"a parameter is {type(value).__name__}",
            hint="give texts, numbers, booleans, bytes, times, None, or lists of these",
        )
