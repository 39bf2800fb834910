"""The pipeline as a caller may watch and direct it: its own topics, or all for an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from calve.model import TableName

if TYPE_CHECKING:
    from calve.access import Caller
    from calve.ingest.intake import Intake
    from calve.topics.control import Skip
    from calve.topics.lag import PipelineStatus

_ALL: Final = "directing the pipeline without naming a topic"


def pipeline_status(intake: Intake, caller: Caller, topic: str | None) -> PipelineStatus:
    return _seen(intake.pipeline.status(_name(caller, topic)), caller)


def pause_pipeline(intake: Intake, caller: Caller, topic: str | None) -> PipelineStatus:
    return _seen(intake.pipeline.pause(_directed(caller, topic)), caller)


def resume_pipeline(intake: Intake, caller: Caller, topic: str | None) -> PipelineStatus:
    return _seen(intake.pipeline.resume(_directed(caller, topic)), caller)


def skip_rows(intake: Intake, caller: Caller, topic: str, to: int, partition: int | None) -> Skip:
    return intake.pipeline.skip(str(caller.topic(topic)), to, partition)


def _name(caller: Caller, topic: str | None) -> str | None:
    return None if topic is None else str(caller.topic(topic))


def _directed(caller: Caller, topic: str | None) -> str | None:
    if topic is None:
        caller.require_every_tenant(_ALL)
    return _name(caller, topic)


def _seen(status: PipelineStatus, caller: Caller) -> PipelineStatus:
    if caller.sees_everything:
        return status
    seen = [each for each in status.partitions if caller.sees(TableName.parse(each.topic))]
    return msgspec.structs.replace(status, owner=None, partitions=seen)
