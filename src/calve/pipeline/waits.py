"""How long a commit is tried where others wait for the thread that makes it."""

from __future__ import annotations

from typing import Final

from calve.settings import RetrySettings
from calve.tables.retry import CommitRetry

# A catalog that fails is tried again in the topic's own time; a race that was lost, at once.
BRIEF_RETRY: Final = CommitRetry(
    RetrySettings(max_attempts=2, initial_delay_ms=50, max_delay_ms=50), bounds_races=False
)
PATIENCE_SECONDS: Final = 3.0
