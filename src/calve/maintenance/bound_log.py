"""Which streams of a topic the lake's own log must have, as the registry says.

A registry that several machines share does not say on which of them a log is: where there is no log
at all, it is taken to be on another one.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calve.errors import NotFound
from calve.state import open_state, state_kind
from calve.topics.registry import TopicRegistry
from calve.wal import OsFiles
from calve.wal.layout import LogLayout, is_log

if TYPE_CHECKING:
    from uuid import UUID

    from calve.model import TableName
    from calve.settings import Settings


@dataclass(frozen=True, slots=True)
class BoundStream:
    """The stream of a partition. `begins_at` where it takes over from another one, if it does."""

    log_id: UUID
    stream_id: UUID
    begins_at: int | None


def streams_bound_here(settings: Settings | None, topic: TableName) -> dict[int, BoundStream]:
    """By partition: what this lake's ingest process has taken in, if it ever took in anything."""
    if settings is None:
        return {}
    assert settings.wal.path is not None
    is_own = state_kind(settings) == "sqlite" or is_log(OsFiles(), LogLayout(settings.wal.path))
    if not is_own:
        return {}
    try:
        with closing(open_state(settings, create=False)) as state:
            found = TopicRegistry(state).find(topic)
    except NotFound:
        return {}
    partition = settings.ingest.partition
    bound = found.partitions.get(partition) if found else None
    if found is None or bound is None:
        return {}
    begins_at = found.first_offsets.get(partition)
    return {partition: BoundStream(bound.log_id, bound.stream_id, begins_at)}
