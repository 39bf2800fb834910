"""Subscriptions, their progress and owners, and followers, as records.

Each function runs inside of a transaction of its caller's. Everything that changes a
subscription reads its one record, so that whoever is late finds that it is another.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from calve.errors import Conflict, Fenced, InvalidRequest, NotFound
from calve.model import TableName
from calve.state.records import (
    FOLLOWERS,
    FOLLOWING,
    GENERATIONS,
    ONLY,
    POSITIONS,
    SUBSCRIBERS,
    SUBSCRIPTIONS,
    Key,
    Records,
    Row,
    counted,
    from_us,
    number,
    text,
    to_us,
)
from calve.state.subscriptions import Follower, Subscription, SubscriptionClaim, SubscriptionName

_NO_SNAPSHOT: Final = -1  # as Iceberg writes it


def create(
    records: Records, name: SubscriptionName, topic_id: UUID, positions: Mapping[int, int]
) -> Subscription | None:
    if records.find(SUBSCRIPTIONS, _key(name)) is not None:
        return None
    row = (str(topic_id), _next(records), 0, to_us(records.now))
    records.put(SUBSCRIPTIONS, _key(name), *row)
    _put_positions(records, name, positions)
    return _subscription(name, row, None)


def find(records: Records, name: SubscriptionName) -> Subscription | None:
    row = records.find(SUBSCRIPTIONS, _key(name))
    if row is None:
        return None
    return _subscription(name, row, records.find(SUBSCRIBERS, _key(name)))


def all_of(records: Records, topic: TableName | None) -> list[Subscription]:
    owners = {row[:3]: row[3:] for row in records.scan(SUBSCRIBERS)}
    found = [
        _subscription(_name(row), row[3:], owners.get(row[:3]))
        for row in records.scan(SUBSCRIPTIONS)
    ]
    return [each for each in found if topic is None or each.name.topic == topic]


def positions(records: Records, name: SubscriptionName) -> dict[int, int]:
    return {number(row[3]): number(row[4]) for row in records.scan(POSITIONS, _key(name))}


def delete(records: Records, name: SubscriptionName) -> bool:
    if records.find(SUBSCRIPTIONS, _key(name)) is None:
        return False
    records.drop(SUBSCRIPTIONS, _key(name))
    records.drop(SUBSCRIBERS, _key(name))
    records.drop_under(POSITIONS, _key(name))
    return True


def claim(
    records: Records,
    name: SubscriptionName,
    owner: str,
    *,
    seconds: float,
    succeeds: int | None,
) -> SubscriptionClaim | None:
    topic_id, generation, token, created_us = _require(records, name)
    held = records.find(SUBSCRIBERS, _key(name))
    is_own = held is not None and held[0] == owner
    is_successor = not is_own and succeeds is not None and token == succeeds
    if held is not None and not is_own and not is_successor:
        return None
    if not is_own:
        # Nobody's any more, so whoever had it before must not go on under the old token.
        token = _next(records)
        records.put(SUBSCRIPTIONS, _key(name), topic_id, generation, token, created_us)
    records.put_lasting(SUBSCRIBERS, _key(name), owner, seconds=seconds)
    succeeded = succeeds if is_successor else None
    return SubscriptionClaim(name, owner, number(token), number(generation), succeeded)


def renew(records: Records, claimed: SubscriptionClaim, *, seconds: float) -> SubscriptionClaim:
    row = _require(records, claimed.name)
    _require_token(claimed, row)
    # Also where its time is over: nobody else had it since.
    records.put_lasting(SUBSCRIBERS, _key(claimed.name), claimed.owner, seconds=seconds)
    return claimed._replace(generation=number(row[1]))


def release(records: Records, claimed: SubscriptionClaim) -> None:
    row = records.find(SUBSCRIPTIONS, _key(claimed.name))
    held = records.find(SUBSCRIBERS, _key(claimed.name))
    if row is not None and row[2] == claimed.token and held is not None:
        records.drop(SUBSCRIBERS, _key(claimed.name))


def acknowledge(records: Records, claimed: SubscriptionClaim, partition: int, offset: int) -> int:
    """What is acknowledged now; never less than before."""
    _require_offset(offset)
    row = _require(records, claimed.name)
    _require_token(claimed, row)
    if row[1] != claimed.generation:
        raise Conflict(
            f"subscription {claimed.name} was moved since these rows were read",
            hint="read again from where it is now",
            context={"found": str(row[1]), "expected": str(claimed.generation)},
        )
    key = (*_key(claimed.name), partition)
    known = records.find(POSITIONS, key)
    if known is not None and number(known[0]) >= offset:
        return number(known[0])
    records.put(POSITIONS, key, offset)
    return offset


def move(records: Records, name: SubscriptionName, to: Mapping[int, int]) -> Subscription:
    """Set partitions of it to offsets, also back; what was read before does not count."""
    topic_id, _, token, created_us = _require(records, name)
    row = (topic_id, _next(records), token, created_us)
    records.put(SUBSCRIPTIONS, _key(name), *row)
    _put_positions(records, name, to)
    return _subscription(name, row, records.find(SUBSCRIBERS, _key(name)))


def follow(
    records: Records, table: TableName, follower: str, *, snapshot_id: int | None, seconds: float
) -> None:
    key = (_full(table), follower)
    kept = _NO_SNAPSHOT if snapshot_id is None else snapshot_id
    records.put(FOLLOWERS, key, kept, to_us(records.now))
    records.put_lasting(FOLLOWING, key, seconds=seconds)


def unfollow(records: Records, table: TableName, follower: str) -> None:
    for kept in (FOLLOWERS, FOLLOWING):
        records.drop(kept, (_full(table), follower))


def follower(records: Records, table: TableName, name: str) -> Follower | None:
    key = (_full(table), name)
    row = records.find(FOLLOWERS, key)
    return None if row is None else _follower(table, (*key, *row), records.find(FOLLOWING, key))


def followers(records: Records, table: TableName) -> list[Follower]:
    live = {row[1]: row[2:] for row in records.scan(FOLLOWING, (_full(table),))}
    return [
        _follower(table, row, live.get(row[1])) for row in records.scan(FOLLOWERS, (_full(table),))
    ]


def _require(records: Records, name: SubscriptionName) -> Row:
    row = records.find(SUBSCRIPTIONS, _key(name))
    if row is None:
        raise NotFound(
            f"there is no subscription {name}",
            hint="it was deleted, or never made; subscribe again to make it",
        )
    return row


def _require_token(claimed: SubscriptionClaim, row: Row) -> None:
    if row[2] != claimed.token:
        raise Fenced(
            f"subscription {claimed.name} has another owner by now",
            hint="stop, and subscribe again: what was not acknowledged comes again",
            context={
                "subscription": claimed.name.name,
                "found": str(row[2]),
                "expected": str(claimed.token),
            },
        )


def _require_offset(offset: int) -> None:
    if offset < 0:
        raise InvalidRequest(f"{offset} is not an offset", hint="offsets begin at 0")


def _put_positions(records: Records, name: SubscriptionName, to: Mapping[int, int]) -> None:
    for partition, offset in to.items():
        _require_offset(offset)
        records.put(POSITIONS, (*_key(name), partition), offset)


def _next(records: Records) -> int:
    """A number for a generation or an owner that none had before, in any subscription."""
    count = counted(records, GENERATIONS) + 1
    records.put(GENERATIONS, ONLY, count)
    return count


def _key(name: SubscriptionName) -> Key:
    return (name.name, ".".join(name.topic.namespace), name.topic.name)


def _full(table: TableName) -> str:
    return f"{table.tenant}.{table.dataset}.{table.name}"


def _name(row: Row) -> SubscriptionName:
    topic = TableName.parse(f"{text(row[1])}.{text(row[2])}")
    return SubscriptionName(topic, text(row[0]))


def _follower(table: TableName, row: Row, lasting: Row | None) -> Follower:
    _, name, snapshot_id, at_us = row
    return Follower(
        table,
        text(name),
        None if snapshot_id == _NO_SNAPSHOT else number(snapshot_id),
        from_us(at_us),
        None if lasting is None else _end(lasting),
    )


def _subscription(name: SubscriptionName, row: Row, held: Row | None) -> Subscription:
    topic_id, generation, _, created_us = row
    found = Subscription(name, UUID(text(topic_id)), number(generation), from_us(created_us))
    if held is None:
        return found
    return found._replace(owner=text(held[0]), until=_end(held[1:]))


def _end(lasting: Row) -> datetime:
    taken_us, length_us = lasting
    return from_us(taken_us) + timedelta(microseconds=number(length_us))
