"""Tells the state how far tables have come: for flush, for trimming the log, and for lag."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from calve.errors import Unavailable
from calve.tables.positions import committed_position

if TYPE_CHECKING:
    from collections.abc import Iterable

    from calve.pipeline.feed import PartitionFeed
    from calve.state import State
    from calve.tables.catalog import LakeCatalog
    from calve.topics.topic import Topic

_LOG: Final = logging.getLogger(__name__)


class Publishing:
    def __init__(self, state: State, catalog: LakeCatalog) -> None:
        self._state = state
        self._catalog = catalog

    def tell(
        self, topic: Topic, feed: PartitionFeed, offset: int, *, is_commit: bool = False
    ) -> None:
        """The table has come to an offset, maybe with a commit of ours.

        `feed.published` says afterwards whether the state has taken it over. It does not while
        somebody sets the table back, nor before the table was read again after that.
        """
        if feed.published == offset:
            return
        log_id = topic.partitions[feed.number].log_id
        told = self._state.publish_committed(
            topic.id,
            feed.number,
            log_id=log_id,
            offset=offset,
            resets=feed.resets,
            is_commit=is_commit,
        )
        feed.published = offset if told.resets == feed.resets and told.offset >= offset else None
        if told.resets == feed.resets and told.offset > offset:
            self._compare(topic, feed, told.offset)

    def _compare(self, topic: Topic, feed: PartitionFeed, told: int) -> None:
        """The table decides, also where the state says more; but it may have moved on since."""
        position = committed_position(self._catalog.load_table(topic.name), feed.number)
        if position is None or position.offset >= told:
            return
        _LOG.warning(
            "%s/%s: the state says %s, its table %s: rows were taken out of it to come again",
            topic.name, feed.number, told, position.offset,
        )  # fmt: skip
        log_id = topic.partitions[feed.number].log_id
        self._state.reset_committed(topic.id, feed.number, log_id=log_id, offset=position.offset)


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
