"""The bounds and habits of a log, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from calve.settings.tree import WalSettings

MIB: Final = 1 << 20

SyncMode = Literal["always", "periodic", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    segment_bytes_max: int = 64 * MIB
    sync_mode: SyncMode = "always"
    sync_interval_seconds: float = 0.1
    hot_window_seconds: float = 600
    disk_bytes_max: int = 64 << 30
    free_bytes_min: int = 1 << 30
    pending_bytes_max: int = 256 * MIB
    group_bytes_max: int = 8 * MIB
    producers_max: int = 10_000

    @classmethod
    def of(cls, settings: WalSettings) -> LogOptions:
        return cls(
            segment_bytes_max=settings.segment_bytes_max,
            sync_mode=settings.sync_mode,
            sync_interval_seconds=settings.sync_interval_ms / 1000,
            hot_window_seconds=settings.hot_window_seconds,
            disk_bytes_max=settings.disk_bytes_max,
            free_bytes_min=settings.free_bytes_min,
        )
