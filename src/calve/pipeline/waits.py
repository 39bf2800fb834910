"""How long a table is waited for, and its commit tried, where others wait too."""

from __future__ import annotations

from typing import Final

from calve.settings import RetrySettings
from calve.tables.retry import CommitRetry

# A catalog that fails is tried again in the topic's own time; a race that was lost, at once.
BRIEF_RETRY: Final = CommitRetry(
    RetrySettings(max_attempts=2, initial_delay_ms=50, max_delay_ms=50), bounds_races=False
)
PATIENCE_SECONDS: Final = 3.0
# What was looked at longer ago is looked at again, rather than written and committed.
LATE_SECONDS_MAX: Final = 60.0
