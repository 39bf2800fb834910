"""Topics, leases, orders and progress as records.

Each function runs inside of a transaction of its caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

import msgspec

from calve.model import TableName
from calve.state.recorded_offsets import partition_of, requests
from calve.state.records import (
    CHANGES,
    ENDED,
    LEASES,
    OF_TOPICS,
    ONLY,
    PAUSED,
    PROGRESS,
    PUBLISHED,
    RESETS,
    SKIPS,
    TOPICS,
    Key,
    Records,
    content,
    counted,
    from_us,
    number,
    text,
    to_us,
)
from calve.state.store import TopicRecord
from calve.state.work import Lease, PipelineOrders, Progress, ProgressReport

_ALL: Final = ""
_DECODER: Final = msgspec.json.Decoder(Progress)


def topic(records: Records, name: TableName) -> TopicRecord | None:
    row = records.find(TOPICS, _key(name))
    return None if row is None else TopicRecord(name, content(row[0]), number(row[1]))


def topics(records: Records, tenant: str | None) -> list[TopicRecord]:
    return [
        TopicRecord(
            TableName(text(row[0]), text(row[1]), text(row[2])), content(row[3]), number(row[4])
        )
        for row in records.scan(TOPICS)
        if tenant in {None, row[0]}
    ]


def create_topic(records: Records, name: TableName, made: bytes) -> TopicRecord | None:
    return None if topic(records, name) else _put_topic(records, name, made)


def replace_topic(records: Records, expected: TopicRecord, after: bytes) -> TopicRecord | None:
    return _put_topic(records, expected.name, after) if _is_at(records, expected) else None


def delete_topic(
    records: Records, expected: TopicRecord, topic_id: UUID, ended_streams: Sequence[UUID]
) -> bool:
    if not _is_at(records, expected):
        return False
    _next_version(records)
    records.drop(TOPICS, _key(expected.name))
    for table in OF_TOPICS:
        records.drop_under(table, (str(topic_id),))
    for stream in ended_streams:
        records.put(ENDED, (str(stream),))
    return True


def change_count(records: Records) -> int:
    return counted(records, CHANGES)


def take_lease(records: Records, name: str, owner: str, *, seconds: float) -> bool:
    row = records.find(LEASES, (name,))
    if row is not None and row[0] != owner:
        return False
    records.put_lasting(LEASES, (name,), owner, seconds=seconds)
    return True


def release_lease(records: Records, name: str, owner: str) -> None:
    row = records.find(LEASES, (name,))
    if row is not None and row[0] == owner:
        records.drop(LEASES, (name,))


def lease(records: Records, name: str) -> Lease | None:
    row = records.find(LEASES, (name,))
    if row is None:
        return None
    owner, taken_us, length_us = row
    return Lease(text(owner), from_us(taken_us) + timedelta(microseconds=number(length_us)))


def pause(records: Records, topic_id: UUID | None) -> None:
    records.put(PAUSED, (_ALL if topic_id is None else str(topic_id),))


def resume(records: Records, topic_id: UUID | None) -> None:
    if topic_id is None:
        records.drop_under(PAUSED, ())
    else:
        records.drop(PAUSED, (str(topic_id),))


def orders(records: Records) -> PipelineOrders:
    paused = {text(topic_id) for (topic_id,) in records.scan(PAUSED)}
    return PipelineOrders(
        is_paused=_ALL in paused,
        paused_topics=frozenset(UUID(topic_id) for topic_id in paused - {_ALL}),
        skips=requests(records, SKIPS),
        resets={partition_of(row): number(row[2]) for row in records.scan(RESETS)},
    )


def publish_progress(records: Records, changed: Sequence[Progress]) -> None:
    for each in changed:
        key = (str(each.topic_id), each.partition)
        records.put(PROGRESS, key, msgspec.json.encode(each))
    records.put(PUBLISHED, ONLY, to_us(records.now))


def progress(records: Records) -> ProgressReport:
    published = records.find(PUBLISHED, ONLY)
    known = [_DECODER.decode(content(row[2])) for row in records.scan(PROGRESS)]
    return ProgressReport(
        at=None if published is None else from_us(published[0]),
        partitions={each.at: each for each in known},
    )


def _key(name: TableName) -> Key:
    return (name.tenant, name.dataset, name.name)


def _put_topic(records: Records, name: TableName, kept: bytes) -> TopicRecord:
    version = _next_version(records)
    records.put(TOPICS, _key(name), kept, version)
    return TopicRecord(name, kept, version)


def _next_version(records: Records) -> int:
    version = change_count(records) + 1
    records.put(CHANGES, ONLY, version)
    return version


def _is_at(records: Records, expected: TopicRecord) -> bool:
    found = topic(records, expected.name)
    return found is not None and found.version == expected.version
