"""The end of a log at one moment, looked at beside a writer that goes on and is not asked.

The segments that a writer may still change are read, not mapped: it may cut them short meanwhile,
which would end a process that reads a mapping. Takes no lock.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from calve.wal.durable import DurableEnd, read_durable

if TYPE_CHECKING:
    from calve.wal.files import Files
    from calve.wal.layout import LogLayout


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
    durable = read_durable(files, layout.durable)
    views = _views(files, layout, durable.segment)
    if read_durable(files, layout.durable).generation == durable.generation:
        return Moment(durable, views)
    found = views.get(durable.segment, memoryview(b""))[: durable.position]
    if not found:
        return look(files, layout)  # that segment is gone already, or was not read yet by anybody
    return Moment(durable, {durable.segment: found})


def _views(files: Files, layout: LogLayout, first: int) -> dict[int, memoryview]:
    views: dict[int, memoryview] = {}
    for number in count(first):
        try:
            views[number] = memoryview(files.read_start(layout.segment(number)))
        except FileNotFoundError:
            return views
    raise AssertionError
