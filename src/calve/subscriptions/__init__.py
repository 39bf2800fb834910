"""Rows of topics for those who want all of them: from the first row ever to the newest.

History is read from the table, what is newer from the log, in one order and once each.
"""

from calve.subscriptions.batch import Batch
from calve.subscriptions.follower import Appended, TableFollower
from calve.subscriptions.reader import OnRollback, TopicReader
from calve.subscriptions.start import Start
from calve.subscriptions.stats import ReaderStats
from calve.subscriptions.status import SubscriptionStatus
from calve.subscriptions.subscription import Subscription

__all__ = [
    "Appended",
    "Batch",
    "OnRollback",
    "ReaderStats",
    "Start",
    "Subscription",
    "SubscriptionStatus",
    "TableFollower",
    "TopicReader",
]
