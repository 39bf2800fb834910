"""The pipeline of a lake, watched and directed from a process that is not part of its service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from calve.audit import Trail
from calve.clock import SystemClock
from calve.errors import NotFound
from calve.paths import DataLayout
from calve.state import open_state
from calve.topics.control import PipelineControl
from calve.wal import LogReader

if TYPE_CHECKING:
    from calve.settings import Settings


@contextmanager
def pipeline_of(settings: Settings) -> Iterator[PipelineControl]:
    """Through the files of the lake; NotFound if there is none."""
    require_lake(settings)

    @contextmanager
    def open_reader() -> Iterator[LogReader | None]:
        assert settings.wal.path is not None
        try:
            reader = LogReader(settings.wal.path)
        except NotFound:
            yield None  # made by the first rows
            return
        with closing(reader):
            yield reader

    with closing(open_state(settings)) as state:
        clock = SystemClock()
        trail = Trail.of(settings, clock=clock)
        yield PipelineControl(state, open_reader, clock=clock, trail=trail)


def require_lake(settings: Settings) -> None:
    """Raise NotFound where there is no lake yet."""
    if not DataLayout(settings.data).own.is_dir():
        raise NotFound(
            f"there is no lake in {settings.data}",
            hint="`calve up` makes it, as does the first table or topic; --data names another",
        )
