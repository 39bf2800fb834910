"""What a state keeps, as tables of records by key, and how one transaction sees and changes them.

Every backend keeps these tables; what the records mean is written once, in the modules beside
this one, so that all backends do the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol, TypeAlias

from calve.errors import InvalidRequest

Value: TypeAlias = str | int | bytes
Key: TypeAlias = tuple[Value, ...]
Row: TypeAlias = tuple[Value, ...]

ONLY: Final = (1,)  # the key of a table that has one record
_INTEGER_MAX: Final = 2**63 - 1
_TEXT_MAX: Final = 1000
_UNWRITABLE: Final = frozenset({"\0", *map(chr, range(0xD800, 0xE000))})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, eq=False, slots=True)
class Table:
    """Columns by name, with their types. `place` is where a store of plain keys has it.

    A record of a lasting table is gone when its time is over; its last two values say when.
    """

    name: str
    key: Mapping[str, type]
    values: Mapping[str, type]
    place: str | None = None

    @property
    def is_lasting(self) -> bool:
        return "length_us" in self.values

    @property
    def columns(self) -> dict[str, type]:
        return {**self.key, **self.values}


_TOPIC: Final = {"tenant": str, "dataset": str, "name": str}
_PARTITION: Final = {"topic_id": str, "partition": int}
_LASTING: Final = {"taken_us": int, "length_us": int}
_SUBSCRIPTION: Final = {"subscription": str, "namespace": str, "topic": str}
_FOLLOWER: Final = {"table_name": str, "follower": str}

TOPICS: Final = Table("topics", _TOPIC, {"content": bytes, "version": int})
CHANGES: Final = Table("changes", {"only": int}, {"count": int})
ENDED: Final = Table("ended_streams", {"stream_id": str}, {})
COMMITTED: Final = Table("committed", _PARTITION, {"log_id": str, "log_offset": int, "at_us": int})
RESETS: Final = Table("resets", _PARTITION, {"count": int, "held_until_us": int})
REWOUND: Final = Table("rewound", _PARTITION, {"log_offset": int})
KEEPERS: Final = Table("keepers", {"partition": int}, {"keeper": str})
APPENDED: Final = Table("appended", _PARTITION, {"bytes": int})
LEASES: Final = Table("leases", {"name": str}, {"owner": str, **_LASTING})
FLUSHES: Final = Table("flush_requests", _PARTITION, {"log_offset": int})
SKIPS: Final = Table("skips", _PARTITION, {"log_offset": int})
PAUSED: Final = Table("paused", {"topic_id": str}, {})
PROGRESS: Final = Table("progress", _PARTITION, {"content": bytes})
PUBLISHED: Final = Table("published", {"only": int}, {"at_us": int})
SUBSCRIPTIONS: Final = Table(
    "subscriptions",
    _SUBSCRIPTION,
    {"topic_id": str, "generation": int, "token": int, "created_us": int},
    place="subscriptions",
)
POSITIONS: Final = Table(
    "positions",
    {**_SUBSCRIPTION, "partition": int},
    {"log_offset": int},
    place="subscriptions",
)
SUBSCRIBERS: Final = Table("subscribers", _SUBSCRIPTION, {"owner": str, **_LASTING})
GENERATIONS: Final = Table("generations", {"only": int}, {"count": int})
FOLLOWERS: Final = Table("followers", _FOLLOWER, {"snapshot_id": int, "at_us": int})
FOLLOWING: Final = Table("following", _FOLLOWER, _LASTING)
TOKENS: Final = Table("tokens", {"id": str}, {"content": bytes})
KEYS: Final = Table("signing_keys", {"name": str}, {"content": bytes})

TABLES: Final = (
    *(TOPICS, CHANGES, ENDED, COMMITTED, RESETS, KEEPERS, APPENDED),
    *(LEASES, FLUSHES, SKIPS, PAUSED, PROGRESS, PUBLISHED),
    *(SUBSCRIPTIONS, POSITIONS, SUBSCRIBERS, GENERATIONS, FOLLOWERS, FOLLOWING),
    *(TOKENS, KEYS, REWOUND),
)
# Those whose one record is there from the beginning, and counts from 0.
COUNTERS: Final = (CHANGES, GENERATIONS)
# Those that are about a topic, and go with it.
OF_TOPICS: Final = (COMMITTED, RESETS, REWOUND, APPENDED, FLUSHES, SKIPS, PAUSED, PROGRESS)


class Damaged(ValueError):
    """A record that is not what Calve writes."""


class Source(Protocol):
    """Where one transaction reads records from."""

    def find(self, table: Table, key: Key) -> Row | None:
        """The values of one record."""
        ...

    def scan(self, table: Table, prefix: Key) -> list[Row]:
        """Whole records whose keys begin so, keys first, in the order of their keys."""
        ...

    def now(self) -> datetime:
        """The time that everybody who uses this state goes by."""
        ...


class Records:
    """The records as one transaction sees them. Nothing is written before it ends.

    Reading all of a table and writing are not mixed in one transaction: what a store compares
    before it writes are single records.
    """

    def __init__(self, source: Source, *, judges_time: bool = True) -> None:
        """Without `judges_time` the store itself takes records away whose time is over."""
        self._source = source
        self._judges_time = judges_time
        self._now: datetime | None = None
        self.written: dict[tuple[Table, Key], Row | None] = {}  # None: the record is to go
        self.dropped: list[tuple[Table, Key]] = []

    @property
    def now(self) -> datetime:
        if self._now is None:
            self._now = self._source.now()
        return self._now

    def find(self, table: Table, key: Key) -> Row | None:
        if (table, key) in self.written:
            return self.written[table, key]
        _require_writable(table.key, key)
        row = self._source.find(table, key)
        if row is None:
            return None
        _require(table, table.values, row)
        return None if self._is_over(table, row) else row

    def scan(self, table: Table, prefix: Key = ()) -> list[Row]:
        assert not self.written
        rows = self._source.scan(table, prefix)
        for row in rows:
            _require(table, table.columns, row)
        return [row for row in rows if not self._is_over(table, row)]

    def put(self, table: Table, key: Key, *values: Value) -> None:
        _require_writable(table.columns, (*key, *values))
        self.written[table, key] = values

    def put_lasting(self, table: Table, key: Key, *values: Value, seconds: float) -> None:
        """Keep a record for so long from now on."""
        self.put(table, key, *values, to_us(self.now), int(seconds * 1_000_000))

    def drop(self, table: Table, key: Key) -> None:
        self.written[table, key] = None

    def drop_under(self, table: Table, prefix: Key) -> None:
        """Have no record whose key begins so."""
        self.dropped.append((table, prefix))

    def _is_over(self, table: Table, row: Row) -> bool:
        if not table.is_lasting or not self._judges_time:
            return False
        taken_us, length_us = row[-2:]
        assert isinstance(taken_us, int)
        assert isinstance(length_us, int)
        # By as much before as after: a clock that was set back must not keep a record for ever.
        return abs(to_us(self.now) - taken_us) >= length_us


def counted(records: Records, table: Table) -> int:
    """What a table counts. It begins to when the state is made, so that it can be relied upon."""
    row = records.find(table, ONLY)
    if row is None:
        raise Damaged(f"the record of {table.name} is missing")
    return number(row[0])


def text(value: Value) -> str:
    assert isinstance(value, str)
    return value


def number(value: Value) -> int:
    assert isinstance(value, int)
    return value


def content(value: Value) -> bytes:
    assert isinstance(value, bytes)
    return value


def to_us(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def from_us(at_us: Value) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=number(at_us))
    except OverflowError as error:
        raise Damaged(f"{at_us!r} is no time") from error


def _require(table: Table, columns: Mapping[str, type], row: Row) -> None:
    if len(row) != len(columns):
        raise Damaged(f"a record of {table.name} has {len(row)} values instead of {len(columns)}")
    for (name, kind), value in zip(columns.items(), row, strict=True):
        if type(value) is not kind:
            raise Damaged(f"{name} of a record of {table.name} is {value!r}")


def _require_writable(columns: Iterable[str], row: Row) -> None:
    """Refuse what not every store can keep."""
    for name, value in zip(columns, row, strict=True):
        if isinstance(value, int) and abs(value) > _INTEGER_MAX:
            raise InvalidRequest(f"{name} is out of range: {value}")
        if isinstance(value, str) and not (
            _UNWRITABLE.isdisjoint(value) and len(value) <= _TEXT_MAX
        ):
            raise InvalidRequest(
                f"{name} cannot be kept: {value[:100]!r}",
                hint=f"write at most {_TEXT_MAX} characters, none of them NUL or half of a pair",
            )
