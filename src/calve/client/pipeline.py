"""The pipeline of a service, watched and directed through its front door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

_Ask: TypeAlias = Callable[..., dict[str, Any]]


class ClientPipeline:
    """The same as `lake.pipeline`, with answers in plain values."""

    def __init__(self, act: _Ask, ask: _Ask) -> None:
        """`ask` repeats itself until it is answered, for what may as well be done twice."""
        self._act = act
        self._ask = ask

    def status(self, topic: str | None = None) -> dict[str, Any]:
        """How far tables are behind, the worst first: of one topic, or of all."""
        return self._ask("pipeline.status", topic)

    def pause(self, topic: str | None = None) -> dict[str, Any]:
        """Leave a topic alone, or all of them; rows are taken in as before."""
        return self._ask("pipeline.pause", topic)

    def resume(self, topic: str | None = None) -> dict[str, Any]:
        """Go on with a topic; without one with all that were paused."""
        return self._ask("pipeline.resume", topic)

    def skip(self, topic: str, to: int, partition: int | None = None) -> dict[str, Any]:
        """Send the rows before an offset that are in no table yet to the dead letters.

        The answer is what holds now: an earlier order may go further.
        """
        return self._act("pipeline.skip", topic, to=to, partition=partition)
