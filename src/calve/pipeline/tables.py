"""The tables that topics feed, as the pipeline meets them: made when they are missing, or refused.

A table that was there and is gone is never made anew: somebody dropped or renamed it, and an empty
one in its place would hide that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calve.errors import Conflict
from calve.pipeline.shapes import shape_of
from calve.tables.dead_letters import (
    are_let_go,
    ensure_dead_letter_table,
    find_dead_letter_table,
    is_going,
    require_dead_letters_kept,
    require_earlier,
    require_not_set_back,
)
from calve.tables.feeding import table_gone
from calve.tables.positions import committed_positions
from calve.tables.topic_tables import create_topic_table, require_topic_table
from calve.topics.rewound import had_rows
from calve.topics.topic import decode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.table import Table

    from calve.pipeline.feed import TopicFeed
    from calve.state import State
    from calve.tables.catalog import LakeCatalog
    from calve.topics.topic import Topic


class TopicTables:
    """Safe to share between threads."""

    def __init__(self, catalog: LakeCatalog, state: State) -> None:
        self.catalog = catalog
        self._state = state

    def table(self, feed: TopicFeed, topic: Topic, *, makes: bool) -> Table | None:
        """The topic's table as it is now; None if there is none, and none is to be made."""
        table = self.catalog.find_table(topic.name)
        if table is None:
            self._require_new(feed, topic)
            if not makes:
                return None
            self.require_bound(topic)
            table = create_topic_table(
                self.catalog,
                topic.name,
                topic.schema,
                partition_by=topic.partition_by,
                sort_by=topic.sort_by,
                properties=topic.properties,
            )
        require_topic_table(table, topic.name, is_bound=topic.is_bound)
        return table

    def require_bound(self, topic: Topic, *partitions: int) -> None:
        """Conflict if the topic, or one of its partitions, is another one's by now."""
        record = self._state.topic(topic.name)
        now = decode(record) if record else None
        if now is None or now.id != topic.id or _differ(now, topic, partitions):
            raise Conflict(
                f"topic {topic.name} was deleted, made again or given another log meanwhile",
                hint=f"`calve topic describe {topic.name}` shows what it is now",
            )

    def look_for_dead_letters(self, feed: TopicFeed, topic: Topic, fed: Table) -> None:
        """Find the table for what is set aside, once; Conflict if it is an earlier topic's.

        NotFound if the topic's table, `fed`, says that there was one, Corruption if that had more.
        One that is about to be dropped is none: rows that need no other go on.
        """
        if feed.knows_dead_letters and not are_let_go(fed.properties):
            return
        table = find_dead_letter_table(self.catalog, topic.name)
        if table is not None and is_going(table, fed):
            table = None
        elif table is None:
            require_dead_letters_kept(topic.name, fed)
        else:
            for number in topic.partitions:
                require_not_set_back(table, fed, number)
        self._take_dead_letters(feed, topic, table)

    def make_dead_letters(self, feed: TopicFeed, topic: Topic, fed: Table) -> None:
        table = ensure_dead_letter_table(self.catalog, topic.name, fed)
        self._take_dead_letters(feed, topic, table)

    @staticmethod
    def _take_dead_letters(feed: TopicFeed, topic: Topic, table: Table | None) -> None:
        for number, position in (committed_positions(table) if table else {}).items():
            bound = topic.partitions.get(number)
            if table is not None and bound is not None and bound.stream_id != position.log:
                begins_at = topic.first_offsets.get(number, 0)
                require_earlier(table, number, position, begins_at=begins_at)
        feed.dead_letters = shape_of(table) if table else None
        feed.knows_dead_letters = True

    def _require_new(self, feed: TopicFeed, topic: Topic) -> None:
        if topic.is_bound or self._had_rows(feed, topic):
            raise table_gone(topic.name)

    def _had_rows(self, feed: TopicFeed, topic: Topic) -> bool:
        if any(each.last_seen is not None for each in feed.partitions.values()):
            return True
        return any(
            had_rows(topic, number, self._state.committed(topic.id, number))
            for number in topic.partitions
        )


def _differ(now: Topic, topic: Topic, partitions: Iterable[int]) -> bool:
    """Whether any of the partitions is in another stream."""
    return any(now.partitions.get(each) != topic.partitions.get(each) for each in partitions)
