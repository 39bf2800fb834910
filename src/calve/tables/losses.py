"""Which offsets a log had lost before they could come to a table: holes, told with their range.

A table has them in its properties, `calve.lost.<partition>`, in the words of `ranges`: the log lets
go of its holes with the rows around them, and somebody will ask later why the offsets are missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from calve.errors import Corruption
from calve.tables.ranges import Ranges

_LOST: Final = "calve.lost."


def known_losses(properties: Mapping[str, str], partition: int) -> Ranges:
    """The lost offsets of a partition that a table was told of."""
    name = f"{_LOST}{partition}"
    try:
        return Ranges.parse(properties.get(name, ""))
    except ValueError as error:
        raise Corruption(
            f"{name}, which says what the log has lost, is unreadable: {error}",
            hint="set the table's property to what an older metadata file says, such as '0-100'",
            context={"property": name},
        ) from error


def with_losses(properties: Mapping[str, str], partition: int, lost: Ranges) -> dict[str, str]:
    """The property, with more of them; nothing if there are no more."""
    if not lost:
        return {}
    return {f"{_LOST}{partition}": str(known_losses(properties, partition).merged(lost))}
