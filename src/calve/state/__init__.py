"""What outlives a process besides log and tables.

The registry of topics, committed offsets, what the pipeline is told and tells, and subscriptions.
"""

from calve.state.connect import found_state, open_state, state_kind
from calve.state.store import CommittedOffset, State, TopicRecord
from calve.state.subscriptions import (
    Follower,
    Subscription,
    SubscriptionClaim,
    SubscriptionName,
)
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
    "Follower",
    "Lease",
    "PipelineOrders",
    "Progress",
    "ProgressReport",
    "State",
    "Subscription",
    "SubscriptionClaim",
    "SubscriptionName",
    "TopicPartition",
    "TopicRecord",
    "found_state",
    "open_state",
    "state_kind",
]
