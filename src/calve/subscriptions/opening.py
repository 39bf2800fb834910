"""Readers of an open lake."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from calve.sources.logs import Logs
from calve.state import open_state
from calve.subscriptions.reader import TopicReader
from calve.subscriptions.waiting import Waiting
from calve.tables.offset_plan import OffsetPlanner

if TYPE_CHECKING:
    from calve.model import TableName
    from calve.settings import Settings
    from calve.subscriptions.memory import HistoryMemory
    from calve.subscriptions.start import Start
    from calve.tables.catalog import LakeCatalog
    from calve.wal.bells import Bells


class Readers:
    """Makes readers, which share what they remember of tables. Safe to share between threads."""

    def __init__(
        self,
        settings: Settings,
        *,
        bells: Bells | None = None,
        memory: HistoryMemory | None = None,
    ) -> None:
        """`bells` are those of the log in `wal.path`, if this process writes it; `memory` bounds
        what all of them hold of history."""
        self._settings = settings
        self._bells = bells
        self._memory = memory
        self._planner = OffsetPlanner()

    def read(
        self, catalog: LakeCatalog, topic: TableName, start: Start, **options: Any
    ) -> TopicReader:
        """A reader with a state and logs of its own; `options` are those of `TopicReader`."""
        settings = self._settings
        with ExitStack() as opened:
            state = open_state(settings)
            opened.callback(state.close)
            logs = Logs(settings)
            opened.pop_all()  # the reader's from here on
        return TopicReader(
            topic,
            start,
            catalog=catalog,
            state=state,
            logs=logs,
            planner=self._planner,
            settings=settings.reader,
            waiting=Waiting(topic, self._bells, has_other_logs=bool(settings.pipeline.logs)),
            memory=self._memory,
            **options,
        )
