"""How a lake's service is doing, read from its files: beside a running service, or without one.

Nothing is opened for writing, and nothing is asked over the network. What needs somebody's
attention comes with the words that help, the worst first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from calve.errors import CalveError, Corruption, NotFound
from calve.ingest.status import IngestStatus, LogStatus
from calve.service.announcement import Announced, running_service
from calve.service.directing import pipeline_of, require_lake
from calve.state import open_state
from calve.topics.document import document_of
from calve.topics.registry import TopicRegistry
from calve.wal.files import OsFiles
from calve.wal.inspect import LogDescription, describe_log
from calve.wal.layout import LogLayout

if TYPE_CHECKING:
    from calve.settings import Settings
    from calve.topics.lag import PartitionLag, PipelineStatus
    from calve.topics.topic import Topic

_NEARLY_FULL: Final = 0.9


class Gravity(StrEnum):
    """How bad something is, the worst first."""

    FAILED = "failed"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    gravity: Gravity
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """A topic's partition here: what the log holds, what is durable, and what is in the table."""

    topic: str
    kind: str
    partition: int
    first: int | None  # None is what cannot be told
    durable: int | None
    committed: int

    @property
    def lag(self) -> int:
        """Rows that are durable and not in the table yet."""
        return max(0, (self.durable or 0) - self.committed)


@dataclass(frozen=True, slots=True)
class LakeStatus:
    findings: list[Finding]
    service: Announced | None
    log: LogStatus | None
    topics: list[TopicStatus]
    pipeline: PipelineStatus | None  # None if the log cannot be read
    server: str | None = None  # that was asked, if one was

    @property
    def is_sound(self) -> bool:
        return all(each.gravity is not Gravity.FAILED for each in self.findings)


def survey(settings: Settings) -> LakeStatus:
    """The status of the lake; NotFound if there is none."""
    require_lake(settings)
    service = running_service(settings)
    log, damage = _look_at_log(settings)
    found = _topics(settings, log)
    topics = sorted((each for _, each in found), key=lambda each: (-each.lag, each.topic))
    status = None if log is None else _log_status(settings, log)
    pipeline = None if damage else _pipeline(settings)
    findings = [
        *damage,
        *(_bounds(status) if status else ()),
        *(
            _homeless(settings, topic)
            for topic, _ in found
            if not damage and _is_homeless(topic, settings.ingest.partition, log)
        ),
        *_service(topics, pipeline, is_up=service is not None),
    ]
    return LakeStatus(_worst_first(findings), service, status, topics, pipeline)


def status_from(told: IngestStatus, server: str) -> LakeStatus:
    """The status of a service elsewhere, from what it tells."""
    topics = [_told(each, told.partition) for each in told.topics]
    topics.sort(key=lambda each: (-each.lag, each.topic))
    stopped = told.stopped
    findings = [
        *([Finding(Gravity.FAILED, stopped.detail, stopped.hint)] if stopped else ()),
        *_bounds(told.log),
        *(
            Finding(Gravity.FAILED, f"topic {each['name']}: {found['detail']}", found["hint"])
            for each in told.topics
            if (found := each["problem"])
        ),
        *_service(topics, told.pipeline, is_up=True),
    ]
    return LakeStatus(_worst_first(findings), None, told.log, topics, told.pipeline, server)


def _told(topic: dict[str, Any], partition: int) -> TopicStatus:
    at = topic["offsets"] or {"first": None, "durable": None, "committed": 0}
    return TopicStatus(
        topic["name"], topic["kind"], partition, at["first"], at["durable"], at["committed"]
    )


def _worst_first(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda each: list(Gravity).index(each.gravity))


def topics_on_disk(settings: Settings) -> list[dict[str, Any]]:
    """Every topic with its offsets, as a service would describe it."""
    require_lake(settings)
    log, damage = _look_at_log(settings)
    return [_listed(settings, topic, at, log, damage) for topic, at in _topics(settings, log)]


def _listed(
    settings: Settings,
    topic: Topic,
    at: TopicStatus,
    log: LogDescription | None,
    damage: list[Finding],
) -> dict[str, Any]:
    shown = document_of(topic)
    if not _is_homeless(topic, settings.ingest.partition, log):
        offsets = {"first": at.first, "durable": at.durable, "committed": at.committed}
        return {**shown, "offsets": offsets, "problem": None}
    found = damage[0] if damage else _homeless(settings, topic)
    problem = {"detail": found.message, "hint": found.hint}
    return {**shown, "offsets": None, "problem": problem}


def _look_at_log(settings: Settings) -> tuple[LogDescription | None, list[Finding]]:
    assert settings.wal.path is not None
    try:
        log = describe_log(OsFiles(), LogLayout(settings.wal.path))
    except NotFound:
        return None, []  # made by the first rows
    except CalveError as error:
        return None, [Finding(Gravity.FAILED, error.message, error.hint)]
    if log.problem is None:
        return log, []
    hint = "`calve wal verify` says what is damaged"
    return log, [Finding(Gravity.FAILED, log.problem, hint)]


def _topics(settings: Settings, log: LogDescription | None) -> list[tuple[Topic, TopicStatus]]:
    partition = settings.ingest.partition
    streams = {each.stream_id: each for each in log.streams} if log else {}
    with closing(open_state(settings)) as state:
        found = []
        for topic in TopicRegistry(state).list():
            bound = topic.partitions.get(partition)
            stream = streams.get(bound.stream_id) if bound else None
            known = state.committed(topic.id, partition)
            first = stream.first_offset if stream else topic.first_offsets.get(partition, 0)
            status = TopicStatus(
                topic=str(topic.name),
                kind=topic.kind,
                partition=partition,
                first=None if bound and not stream else first,
                durable=stream.durable_offset if stream else None if bound else first,
                committed=known.offset if known else first,
            )
            found.append((topic, status))
        return found


def _pipeline(settings: Settings) -> PipelineStatus | None:
    try:
        with pipeline_of(settings) as pipeline:
            return pipeline.status()
    except Corruption:
        return None  # which the look at the log tells of


def _log_status(settings: Settings, log: LogDescription) -> LogStatus:
    wal = settings.wal
    return LogStatus(
        path=str(log.path),
        log_id=str(log.log_id),
        bytes=log.bytes,
        bytes_max=wal.disk_bytes_max,
        free_bytes=OsFiles().free_bytes(log.path),
        free_bytes_min=wal.free_bytes_min,
    )


def _bounds(log: LogStatus) -> Iterator[Finding]:
    if log.free_bytes < log.free_bytes_min:
        yield Finding(
            Gravity.FAILED,
            f"rows are refused: the disk of the log has {log.free_bytes:,} bytes free, and "
            f"{log.free_bytes_min:,} are to stay so",
            "free some space, or lower wal.free_bytes_min",
        )
    if log.bytes >= log.bytes_max * _NEARLY_FULL:
        is_full = log.bytes >= log.bytes_max
        yield Finding(
            Gravity.FAILED if is_full else Gravity.WARNING,
            f"the log has {log.bytes:,} of {log.bytes_max:,} bytes",
            "it shrinks once its rows are in the tables; or raise wal.disk_bytes_max",
        )


def _is_homeless(topic: Topic, partition: int, log: LogDescription | None) -> bool:
    """Whether a topic has its rows in a log that is not the one which lies here."""
    bound = topic.partitions.get(partition)
    held = {each.stream_id for each in log.streams} if log else set()
    return bound is not None and bound.stream_id not in held


def _homeless(settings: Settings, topic: Topic) -> Finding:
    expected = topic.partitions[settings.ingest.partition]
    return Finding(
        Gravity.FAILED,
        f"topic {topic.name} stops: its rows are in stream {expected.stream_id} of log "
        f"{expected.log_id}, which is not in {settings.wal.path}",
        "bring that directory back; if it is lost for good, "
        f"`calve topic alter {topic.name} --new-log` goes on where the table ends",
    )


def _service(
    topics: list[TopicStatus], pipeline: PipelineStatus | None, *, is_up: bool
) -> Iterator[Finding]:
    if not is_up:
        yield Finding(Gravity.NOTE, "no service is running", "`calve up` starts it")
    if pipeline is None:
        return
    for each in pipeline.partitions:
        if each.last_error is not None:
            paused = ", which is paused," if each.is_paused else ""
            yield Finding(
                Gravity.WARNING,
                f"{each.lag_rows:,} rows of topic {each.topic}{paused} do not get into its table: "
                f"{each.last_error}",
                each.hint or _next_try(pipeline, each),
            )
    behind = sum(each.lag for each in topics)
    if pipeline.is_paused:
        hint = "`calve pipeline resume` has it go on"
        yield Finding(Gravity.WARNING, "the pipeline is paused: rows stay in the log", hint)
    elif behind and not pipeline.is_running:
        yield Finding(
            Gravity.WARNING if is_up else Gravity.NOTE,
            f"{behind:,} rows are in the log and not in their tables yet: no pipeline is running",
            f"they are safe there; `{'calve up --only pipeline' if is_up else 'calve up'}` runs it",
        )


def _next_try(pipeline: PipelineStatus, each: PartitionLag) -> str:
    if each.is_paused:
        which = "" if pipeline.is_paused else f" {each.topic}"
        return f"`calve pipeline resume{which}` has it tried again"
    if not pipeline.is_running:
        return "the pipeline tries it again when it runs"
    return "`calve pipeline status` shows when it is tried again"
