"""Tells the state how far tables have come: for flush, for trimming the log, and for lag."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from calve.pipeline.feed import PartitionFeed
    from calve.state import State
    from calve.topics.topic import Topic

_LOG: Final = logging.getLogger(__name__)


class Publishing:
    def __init__(self, state: State) -> None:
        self._state = state

    def tell(self, topic: Topic, feed: PartitionFeed, offset: int) -> None:
        """The table has come to an offset. It decides, also where the state says more."""
        if feed.published == offset:
            return
        log_id = topic.partitions[feed.number].log_id
        told = self._state.publish_committed(topic.id, feed.number, log_id=log_id, offset=offset)
        if told.offset > offset:
            _LOG.warning(
                "%s/%s: the state says %s, its table %s: rows were taken out of it to come again",
                topic.name, feed.number, told.offset, offset,
            )  # fmt: skip
            self._state.reset_committed(topic.id, feed.number, log_id=log_id, offset=offset)
        feed.published = offset
