"""The end of a log at one moment, looked at beside a writer that goes on and is not asked.

The segments that a writer may still change are read, not mapped: it may cut them short meanwhile,
which would end a process that reads a mapping. Takes no lock.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from calve.errors import Unavailable
from calve.wal.durable import DurableEnd, read_durable
from calve.wal.layout import segment_numbers

if TYPE_CHECKING:
    from calve.wal.files import Files
    from calve.wal.layout import LogLayout

_LOOKS_MAX: Final = 100


class Moment(NamedTuple):
    """The durable end, and the bytes of its segment and of later ones; none for a missing file."""

    durable: DurableEnd
    views: dict[int, memoryview]

    @property
    def newest(self) -> int:
        return max((self.durable.segment, *self.views))


def look(files: Files, layout: LogLayout) -> Moment:
    """What was there while the durable end did not move; beside a writer that syncs all the time,
    only what lies before it."""
    for _ in range(_LOOKS_MAX):
        durable = read_durable(files, layout.durable)
        views = _views(files, layout, durable.segment)
        if read_durable(files, layout.durable).generation == durable.generation:
            return Moment(durable, views)
        found = views.get(durable.segment, memoryview(b""))[: durable.position]
        if found:
            return Moment(durable, {durable.segment: found})
        # Retention took that segment meanwhile, or a writer has just begun to say how far it is.
    raise Unavailable(
        f"the log in {layout.root} changes faster than it can be looked at",
        hint="try again, or look when less is written",
    )


def _views(files: Files, layout: LogLayout, first: int) -> dict[int, memoryview]:
    views: dict[int, memoryview] = {}
    for number in segment_numbers(files, layout):
        if number >= first:
            with suppress(FileNotFoundError):
                views[number] = memoryview(files.read_start(layout.segment(number)))
    return views
