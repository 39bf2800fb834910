"""How a reader waits for rows: until the log of this process rings, or for a short while.

Of a log that another process writes nobody tells: a reader looks at it, the less often the longer
nothing came.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from calve.model import TableName
    from calve.wal.bells import Bells

_PAUSE_SECONDS_MIN: Final = 0.0005
_PAUSE_SECONDS_MAX: Final = 0.02
# A reader that has waited for a second looks every 20 ms: nobody waits a tenth longer than he did.
_PAUSE_SHARE: Final = 0.05


class Waiting:
    """For the thread that reads; another one may close it."""

    def __init__(self, topic: TableName, bells: Bells | None, *, has_other_logs: bool) -> None:
        """`has_other_logs` says that rows of the topic may come by a log without bells too."""
        self._topic = topic
        self._bells = bells
        self._is_told = bells is not None and not has_other_logs
        self._is_closed = False
        self._woken = threading.Event()
        if bells is not None:
            bells.listen(topic, self._woken)

    def begin(self) -> None:
        """Before a look for rows: what comes after it will end the next wait."""
        self._woken.clear()

    def wait(self, waited_seconds: float, seconds_max: float) -> None:
        """After a look that found nothing; `waited_seconds` is for how long that has been so."""
        if self._is_closed or seconds_max <= 0:
            return
        pause = seconds_max
        if not self._is_told:
            share = max(waited_seconds * _PAUSE_SHARE, _PAUSE_SECONDS_MIN)
            pause = min(share, _PAUSE_SECONDS_MAX, seconds_max)
        self._woken.wait(pause)

    def wake(self) -> None:
        """Have it look again."""
        self._woken.set()

    def close(self) -> None:
        """End a wait that is under way, and have none again."""
        self._is_closed = True
        if self._bells is not None:
            self._bells.leave(self._topic, self._woken)
        self._woken.set()
