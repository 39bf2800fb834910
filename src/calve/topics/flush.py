"""When a topic's rows go to its table, where the topic differs from the pipeline's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from calve.errors import InvalidRequest
from calve.tables.nearest import meant

_MOST: Final = 2**53  # which every reader of JSON takes for the same number


class FlushBounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows go to the table when one of these is reached; None is what `[pipeline]` says.

    A topic with little to write waits longer each time, up to `freshness_ms`.
    """

    rows_max: int | None = None
    bytes_max: int | None = None
    interval_ms: int | None = None
    freshness_ms: int | None = None


_KEYS: Final = FlushBounds.__struct_fields__


def bounds_of(given: Mapping[str, int | None], before: FlushBounds | None = None) -> FlushBounds:
    """The bounds with those that were given; InvalidRequest if one cannot be."""
    for name, value in given.items():
        if name not in _KEYS:
            raise InvalidRequest(
                f"flush has no {name!r}{meant(name, _KEYS)}", hint=f"it has {', '.join(_KEYS)}"
            )
        is_count = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST
        if value is not None and not is_count:
            raise InvalidRequest(
                f"flush.{name} is {value!r}",
                hint="give a number above 0, or null for what the pipeline's settings say",
            )
    return msgspec.structs.replace(before or FlushBounds(), **given)
