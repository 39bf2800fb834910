"""What outlives a process besides log and tables.

The registry of topics, committed offsets, and what the pipeline is told and tells.
"""

from calve.state.connect import open_state, state_kind
from calve.state.store import CommittedOffset, State, TopicRecord
from calve.state.work import (
    PIPELINE_LEASE,
    Lease,
    PipelineOrders,
    Progress,
    ProgressReport,
    TopicPartition,
)

__all__ = [
    "PIPELINE_LEASE",
    "CommittedOffset",
    "Lease",
    "PipelineOrders",
    "Progress",
    "ProgressReport",
    "State",
    "TopicPartition",
    "TopicRecord",
    "open_state",
    "state_kind",
]
