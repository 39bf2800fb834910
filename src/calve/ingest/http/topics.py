"""Topics: `/v1/topics`, `/v1/topics/{topic}` and its flush."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response

from calve.errors import InvalidRequest
from calve.ingest.http.service import Service, answer, number, plain, topic_name
from calve.ingest.http.views import (
    Column,
    NewTopic,
    Offsets,
    TopicDetails,
    TopicList,
    TopicPatch,
    TopicView,
)
from calve.ingest.intake import not_flushed
from calve.model import TableName
from calve.tables.schema_file import parse_schema
from calve.topics.topic import TopicChange, TopicSpec, as_plain

if TYPE_CHECKING:
    from starlette.requests import Request

    from calve.ingest.intake import TopicOffsets
    from calve.topics.topic import Topic

FLUSH_MS_DEFAULT: Final = 60_000
FLUSH_MS_MAX: Final = 600_000
_POLL_SECONDS_MIN: Final = 0.01
_POLL_SECONDS_MAX: Final = 0.25


async def list_topics(service: Service, request: Request) -> Response:
    tenant = request.query_params.get("tenant")
    topics = await service.in_thread(service.intake.topics.list, tenant)
    return answer(TopicList(topics=[_view(topic) for topic in topics]))


async def create_topic(service: Service, request: Request) -> Response:
    wanted = await service.document(request, NewTopic)
    name = TableName.parse(wanted.name)
    spec = _spec(wanted)
    is_there = await service.in_thread(service.intake.topics.find, name) is not None
    topic = await service.in_thread(service.intake.create_topic, name, spec)
    return answer(_view(topic), HTTPStatus.OK if is_there else HTTPStatus.CREATED)


async def describe_topic(service: Service, request: Request) -> Response:
    name = topic_name(request)

    def describe() -> TopicDetails:
        topic = service.intake.topics.topic(name)
        stats = service.intake.stats(name)
        return TopicDetails(
            topic=_view(topic),
            offsets=Offsets(
                topic=str(name),
                partition=stats.partition,
                first=stats.first,
                durable=stats.durable,
                committed=stats.committed,
            ),
            rows=stats.row_count,
            bytes=stats.bytes_appended,
            producers=stats.producer_count,
        )

    return answer(await service.in_thread(describe))


async def alter_topic(service: Service, request: Request) -> Response:
    name = topic_name(request)
    patch = await service.document(request, TopicPatch)
    change = TopicChange(
        on_unknown_column=patch.on_unknown_column,
        on_bad_row=patch.on_bad_row,
        retention_seconds=patch.retention_seconds,
        properties=patch.properties,
        add_columns=_schema(patch.add_columns) if patch.add_columns else None,
        drop_columns=patch.drop_columns,
        rename_columns=patch.rename_columns,
    )
    return answer(_view(await service.in_thread(service.intake.alter_topic, name, change)))


async def delete_topic(service: Service, request: Request) -> Response:
    topic = await service.in_thread(service.intake.delete_topic, topic_name(request))
    return answer(_view(topic))


async def flush_topic(service: Service, request: Request) -> Response:
    """Wait without a thread, however many do."""
    name = topic_name(request)
    timeout_ms = number(request, "timeout_ms", default=FLUSH_MS_DEFAULT, least=0, most=FLUSH_MS_MAX)
    assert timeout_ms is not None
    intake = service.intake
    wanted = await service.in_thread(intake.acknowledged_end, name)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    pause = _POLL_SECONDS_MIN
    while (now := await service.in_thread(intake.offsets, name)).committed < wanted:
        remaining = deadline - loop.time()
        if remaining <= 0:
            raise not_flushed(name, now.committed, wanted, timeout_ms / 1000)
        await asyncio.sleep(min(pause, remaining))
        pause = min(2 * pause, _POLL_SECONDS_MAX)
    return answer(_offsets(name, intake.partition, now))


def _offsets(name: TableName, partition: int, offsets: TopicOffsets) -> Offsets:
    return Offsets(
        topic=str(name),
        partition=partition,
        first=offsets.first,
        durable=offsets.durable,
        committed=offsets.committed,
    )


def _spec(wanted: NewTopic) -> TopicSpec:
    return TopicSpec(
        kind=wanted.kind,
        schema=None if wanted.columns is None else _schema(wanted.columns),
        partition_by=wanted.partition_by,
        sort_by=wanted.sort_by,
        properties=wanted.properties,
        retention_seconds=wanted.retention_seconds,
        on_unknown_column=wanted.on_unknown_column,
        on_bad_row=wanted.on_bad_row,
        bind_table=wanted.bind_table,
    )


def _schema(columns: list[Column]) -> Any:
    if not columns:
        raise InvalidRequest("columns is empty", hint="name at least one, or leave it out")
    return parse_schema({"columns": msgspec.to_builtins(columns)}).schema


def _view(topic: Topic) -> TopicView:
    return plain(as_plain(topic), TopicView)
