"""What outlives a process besides log and tables: the registry of topics, committed offsets."""

from calve.state.connect import open_state
from calve.state.store import CommittedOffset, State, TopicRecord

__all__ = ["CommittedOffset", "State", "TopicRecord", "open_state"]
