"""How far a topic's table has come by what the pipeline published, for when there is no table."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from calve.errors import NotFound
from calve.state import open_state
from calve.topics.registry import TopicRegistry

if TYPE_CHECKING:
    from calve.model import TableName
    from calve.settings import Settings
    from calve.state import CommittedOffset


def published_offsets(settings: Settings, name: TableName) -> dict[int, CommittedOffset]:
    """By partition; without those of which nothing was ever committed, as far as the state knows.

    Where a replay has set an offset back to 0 there were rows too.
    """
    try:
        state = open_state(settings, create=False)
    except NotFound:
        return {}
    with closing(state):
        topic = TopicRegistry(state).find(name)
        if topic is None:
            return {}
        found = {each: state.committed(topic.id, each) for each in topic.partitions}
    return {each: at for each, at in found.items() if at and (at.offset or at.resets)}
