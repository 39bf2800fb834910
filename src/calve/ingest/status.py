"""How an ingest process is doing, for whoever asks it from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec

from calve.errors import Corruption
from calve.ingest.directing import pipeline_status
from calve.ingest.listing import listed
from calve.topics.lag import PipelineStatus
from calve.wal import OsFiles

if TYPE_CHECKING:
    from calve.access import Caller
    from calve.errors import CalveError
    from calve.ingest.intake import Intake


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatus:
    """How full a log and its disk are."""

    path: str
    log_id: str | None
    bytes: int
    bytes_max: int
    free_bytes: int
    free_bytes_min: int


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, and what helps."""

    detail: str
    hint: str | None = None

    @classmethod
    def of(cls, error: CalveError) -> Trouble:
        return cls(detail=error.message, hint=error.hint)


class IngestStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`stopped` says why no rows are taken in, if none are; `topics` are as they are listed."""

    version: str
    partition: int
    log: LogStatus
    stopped: Trouble | None
    topics: list[dict[str, Any]]
    pipeline: PipelineStatus | None  # None if the log cannot be read


def status_of(intake: Intake, caller: Caller) -> IngestStatus:
    """As far as the caller may know: where the log lies is the operators' business."""
    log, wal = intake.log, intake.settings.wal
    stopped = intake.stopped
    return IngestStatus(
        version=version("calve"),
        partition=intake.partition,
        log=LogStatus(
            path=str(log.directory) if caller.sees_everything else "",
            log_id=str(log.log_id),
            bytes=log.bytes_used,
            bytes_max=wal.disk_bytes_max,
            free_bytes=OsFiles().free_bytes(log.directory),
            free_bytes_min=wal.free_bytes_min,
        ),
        stopped=Trouble.of(stopped) if stopped else None,
        topics=listed(intake, caller),
        pipeline=_pipeline(intake, caller),
    )


def _pipeline(intake: Intake, caller: Caller) -> PipelineStatus | None:
    try:
        return pipeline_status(intake, caller, None)
    except Corruption:
        return None  # which each topic tells of
