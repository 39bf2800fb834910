"""Messages in: `POST /v1/topics/{topic}/messages`, one as it is, or several as JSON."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from calve.errors import InvalidRequest
from calve.ingest.http.headers import identity_of, media_type_of, text_of
from calve.ingest.http.service import Grow, Service, answer, parsed, row_count, topic_name
from calve.ingest.http.views import Appended, NewMessage
from calve.ingest.messages import ensure_message_topic
from calve.topics.messages import StreamMessage, message_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from starlette.datastructures import Headers
    from starlette.requests import Request
    from starlette.responses import Response

SEVERAL: Final = "application/vnd.calve.messages+json"
KEY: Final = "Calve-Key"
ATTRIBUTES: Final = "Calve-Attributes"
SCHEMA: Final = "Calve-Schema"
PUBLISH_TIME: Final = "Calve-Publish-Time"


class _Messages(NamedTuple):
    batch: pa.RecordBatch

    @property
    def parts(self) -> Sequence[pa.RecordBatch]:
        return [self.batch]


async def produce_messages(service: Service, request: Request) -> Response:
    name = topic_name(request)
    headers = request.headers
    producer, sequence = identity_of(headers)
    one = None if media_type_of(headers) == SEVERAL else _one(headers)

    def read(body: bytes, grow: Grow) -> _Messages:
        grow(len(body))
        ensure_message_topic(service.intake, name)
        found = _several(body) if one is None else [msgspec.structs.replace(one, payload=body)]
        messages = [_stored(each, producer, sequence) for each in found]
        return _Messages(message_batch(messages, now=service.intake.clock.now()))

    done, found = await service.append(request, name, read)
    return answer(
        Appended(
            topic=str(name),
            partition=service.intake.partition,
            first=done.first,
            end=done.end,
            rows=found.batch.num_rows if found else row_count(done),
            repeat=done.is_repeat,
        )
    )


def _several(body: bytes) -> list[NewMessage]:
    messages = parsed(body, list[NewMessage])
    if not messages:
        raise InvalidRequest("the request has no messages", hint="send at least one")
    return messages


def _one(headers: Headers) -> NewMessage:
    attributes = text_of(headers, ATTRIBUTES)
    return NewMessage(
        payload=b"",
        key=text_of(headers, KEY),
        attributes=_attributes(attributes) if attributes else {},
        content_type=headers.get("content-type"),
        schema=text_of(headers, SCHEMA),
        publish_time=_moment(headers.get(PUBLISH_TIME)),
    )


def _attributes(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidRequest(
            f"{ATTRIBUTES} is not an object of texts: {error}", hint='write {"name": "value"}'
        ) from error


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return msgspec.convert(text, datetime)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(
            f"{PUBLISH_TIME} is {text!r}", hint="write 2026-01-31T10:00:00Z"
        ) from error


def _stored(message: NewMessage, producer: str | None, sequence: int | None) -> StreamMessage:
    return StreamMessage(
        payload=message.payload,
        key=message.key,
        attributes=message.attributes,
        publish_time=message.publish_time,
        producer=producer,
        sequence=sequence,
        content_type=message.content_type,
        schema=message.schema,
    )
