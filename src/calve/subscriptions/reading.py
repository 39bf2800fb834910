"""What a subscription reads from: a `TopicReader`, or one that shares its read with others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from calve.subscriptions.batch import Batch
    from calve.subscriptions.start import Start


class Reading(Protocol):
    """The part of a `TopicReader` that subscriptions use; see there."""

    @property
    def positions(self) -> dict[int, int]: ...

    @property
    def is_done(self) -> bool: ...

    @property
    def schema(self) -> pa.Schema: ...

    def ends(self) -> dict[int, int]: ...

    def poll(self, timeout_seconds: float | None = None) -> Batch | None: ...

    def seek(self, start: Start) -> None: ...

    def go_to(self, positions: Mapping[int, int]) -> None: ...

    def close(self) -> None: ...
