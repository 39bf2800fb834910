"""Tells the state how far tables have come: for flush, for trimming the log, and for lag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calve.errors import Corruption, Unavailable
from calve.tables.positions import committed_position
from calve.topics.rewound import find_rewound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.table import Table

    from calve.pipeline.feed import PartitionFeed, TopicFeed
    from calve.state import State
    from calve.tables.catalog import LakeCatalog
    from calve.topics.topic import Topic


class Publishing:
    def __init__(self, state: State, catalog: LakeCatalog) -> None:
        self._state = state
        self._catalog = catalog

    def require_not_rewound(self, topic: Topic, feed: TopicFeed, table: Table) -> None:
        """Corruption if the table has less of any partition than the state knows."""
        errors = []
        for partition in topic.partitions:
            position = committed_position(table, partition)
            error = self._noted_rewound(topic, partition, position.offset if position else 0)
            if error is not None:
                # It has to be told when the table is back, of a partition without new rows too.
                feed.partitions[partition].forget_told()
                errors.append(error)
        for error in errors:
            raise error

    def tell(
        self, topic: Topic, feed: PartitionFeed, offset: int, *, is_commit: bool = False
    ) -> None:
        """The table has come to an offset, maybe with a commit of ours.

        `feed.published` says afterwards whether the state has taken it over. It does not while
        somebody sets the table back, nor before the table was read again after that.
        """
        if feed.published == offset:
            return
        feed.published = None
        log_id = topic.partitions[feed.number].log_id
        told = self._state.publish_committed(
            topic.id,
            feed.number,
            log_id=log_id,
            offset=offset,
            resets=feed.resets,
            is_commit=is_commit,
        )
        if told.resets != feed.resets:
            return
        if told.offset > offset:
            error = self._noted_rewound(topic, feed.number, offset)
            if error is not None:
                raise error
        feed.published = offset if told.offset >= offset else None

    def _noted_rewound(self, topic: Topic, partition: int, reached: int) -> Corruption | None:
        """Why to stop, where the state says more than the table; but that may have moved on."""
        found = find_rewound(
            self._state,
            topic,
            partition,
            reached=reached,
            look_again=lambda: self._catalog.load_table(topic.name),
        )
        if found is None:
            return None
        is_so = self._state.note_rewound(
            topic.id,
            partition,
            log_id=found.log_id,
            offset=found.reached or 0,
            resets=found.known.resets,
        )
        return found.error if is_so else None


def forget_untold(feeds: Iterable[PartitionFeed]) -> Unavailable | None:
    """Have tables asked again of which the state was not told; the reason, if there are any."""
    untold = [each for each in feeds if each.last_seen and each.published != each.committed]
    for each in untold:
        each.committed = None
    if not untold:
        return None
    return Unavailable(
        "the table is being rolled back, so that rows come again: how far it is, is not known yet",
        hint="wait for `calve table rollback --replay` to end. If it was killed, do it again; ten "
        "minutes later, or with the next rows, what the table says holds",
    )
