"""Topics: `/v1/topics`, `/v1/topics/{topic}` and its flush."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response

from calve.ingest.http.callers import caller_of
from calve.ingest.http.service import Service, answer, number, plain, topic_name
from calve.ingest.http.views import (
    NewTopic,
    Offsets,
    TopicDetails,
    TopicList,
    TopicPatch,
    TopicView,
)
from calve.sources.flushing import behind, not_flushed
from calve.topics.document import change_of, document_of, spec_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from calve.ingest.intake import TopicOffsets
    from calve.model import TableName
    from calve.topics.topic import Topic, TopicSpec

FLUSH_MS_DEFAULT: Final = 60_000
FLUSH_MS_MAX: Final = 600_000
_POLL_SECONDS_MIN: Final = 0.01
_POLL_SECONDS_MAX: Final = 0.25


async def list_topics(service: Service, request: Request) -> Response:
    caller = caller_of(request)
    tenant = request.query_params.get("tenant")

    def show() -> TopicList:
        problems = service.intake.problems
        topics = caller.among(service.intake.topics.list(tenant))
        found = [(_view(topic), problems.get(topic.name)) for topic in topics]
        return TopicList(
            topics=[
                msgspec.structs.replace(view, problem=error.message if error else None)
                for view, error in found
            ]
        )

    return answer(await service.in_thread(show))


async def create_topic(service: Service, request: Request) -> Response:
    wanted = await service.document(request, NewTopic)
    name = caller_of(request).topic(wanted.name)
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
    change = change_of({**_plain(patch), "add_columns": _plain(patch)["add_columns"] or None})
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
    caller = caller_of(request)
    awaited = await service.in_thread(intake.request_flush, name)

    def still_behind() -> dict[int, int]:
        intake.doorkeeper.recheck(caller)
        return behind(intake.state, awaited)

    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    pause = _POLL_SECONDS_MIN
    while late := await service.in_thread(still_behind):
        remaining = deadline - loop.time()
        if remaining <= 0:
            seconds = timeout_ms / 1000
            raise await service.in_thread(not_flushed, intake.state, awaited, late, seconds)
        await asyncio.sleep(min(pause, remaining))
        pause = min(2 * pause, _POLL_SECONDS_MAX)
    now = await service.in_thread(intake.offsets, name)
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
    document = {key: value for key, value in _plain(wanted).items() if value is not None}
    del document["name"]
    return spec_of(document)


def _plain(body: NewTopic | TopicPatch) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(body)
    return values


def _view(topic: Topic) -> TopicView:
    return plain(document_of(topic), TopicView)
