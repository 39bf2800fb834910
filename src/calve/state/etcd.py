"""The state in etcd, for services on several machines.

A transaction reads records and writes what it changes, provided that those it read are as they
were; if not, it is run again on what is there. Records that last for a while are etcd's leases.
Other times are this machine's. A server that is away is waited for as `[retry]` says, then it is
Unavailable; whoever asks again later is answered as soon as it is back.
"""

from __future__ import annotations

import base64
import math
import random
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, cast
from urllib.parse import quote, unquote

import msgspec

from calve.clock import Clock
from calve.errors import CalveError, Conflict, Corruption, Unavailable, UnknownOutcome
from calve.retry import retried
from calve.settings import RetrySettings
from calve.state.etcd_client import EtcdAddress, EtcdClient, Lost, decoded, encoded
from calve.state.recorded import RecordedState, not_made
from calve.state.records import COUNTERS, ONLY, Damaged, Key, Records, Row, Table, Value
from calve.state.transactions import RETRY_SECONDS_MAX

_T = TypeVar("_T")
_IsPassing: TypeAlias = Callable[[BaseException], bool]

FORMAT_VERSION: Final = 1
_APPLICATION: Final = "calve"
_ROOT: Final = "/persistent_storage/iceberg"
_RACE_SECONDS_MAX: Final = 20.0
_RACE_WAIT_SECONDS_MAX: Final = 0.02


class EtcdState(RecordedState):
    """A `State` under one prefix of keys."""

    changes_max: ClassVar[int] = 50  # etcd takes 128 operations in one transaction

    def __init__(
        self, dsn: str, *, retry: RetrySettings, clock: Clock, create: bool = True
    ) -> None:
        address = EtcdAddress.parse(dsn)
        self._shown = address.shown
        self._keys = _Keys(address.prefix + _ROOT)
        self._client = EtcdClient(address)
        self._retry = retry
        self._clock = clock
        self._is_closed = False
        try:
            is_passing = self._passing(is_repeatable=True)
            self._retried(lambda: self._make_or_check(create=create), is_passing)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._is_closed = True
        self._client.close()

    def _read(self, work: Callable[[Records], _T]) -> _T:
        def attempt() -> _T:
            return work(Records(self._source(), judges_time=False))

        is_passing = self._passing(is_repeatable=True)
        return self._retried(attempt, is_passing)

    def _change(
        self, scopes: Sequence[str], work: Callable[[Records], _T], *, is_repeatable: bool = True
    ) -> _T:
        """Who changes the same finds out; no scope is needed."""

        def attempt() -> _T:
            deadline = time.monotonic() + _RACE_SECONDS_MAX
            while time.monotonic() < deadline:
                source = self._source()
                records = Records(source, judges_time=False)
                result = work(records)
                if self._write(records, source.seen):
                    return result
                time.sleep(random.uniform(0, _RACE_WAIT_SECONDS_MAX))  # noqa: S311
            raise Unavailable(
                f"too many change the state in etcd at {self._shown} at once",
                hint="try again in a moment",
            )

        is_passing = self._passing(is_repeatable=is_repeatable)
        return self._retried(attempt, is_passing)

    def _source(self) -> _Source:
        if self._is_closed:
            raise Unavailable("the state is closed", hint="open it again")
        return _Source(self._client, self._keys, self._clock.now)

    def _write(self, records: Records, seen: dict[str, int]) -> bool:
        """Whether it was: nothing is, if a record that was read is not as it was."""
        actions = [_deletion(*self._keys.range_of(*each)) for each in records.dropped]
        for (table, key), row in records.written.items():
            name = self._keys.of(table, key)
            actions.append(_deletion(name) if row is None else self._putting(table, name, row))
        if not actions:
            return True
        compared = [_unchanged(name, revision) for name, revision in seen.items()]
        return bool(_transact(self._client, compared, actions).get("succeeded"))

    def _putting(self, table: Table, name: str, row: Row) -> dict[str, Any]:
        action = _put(name, _content(table, row))
        if table.is_lasting:
            length_us = row[-1]
            assert isinstance(length_us, int)
            # Never shorter than it was asked for; etcd has whole seconds.
            seconds = max(1, math.ceil(length_us / 1_000_000))
            granted = self._client.call("lease/grant", {"TTL": seconds})
            action["request_put"]["lease"] = granted["ID"]
        return action

    def _make_or_check(self, *, create: bool) -> None:
        first, end = self._keys.everything()
        kept, others = _transact(
            self._client,
            [],
            [_ranging(self._keys.format), _ranging(first, end, limit=1)],
        )["responses"]
        found = kept["response_range"].get("kvs")
        if found:
            self._require_format(decoded(found[0].get("value", "")))
            return
        if others["response_range"].get("kvs"):
            raise Damaged(f"there are keys below {first}, but not {self._keys.format}")
        if not create:
            raise not_made(first)
        made = msgspec.json.encode({"application": _APPLICATION, "version": FORMAT_VERSION})
        counters = [_put(self._keys.of(each, ONLY), _content(each, (0,))) for each in COUNTERS]
        _transact(
            self._client,
            [_unchanged(self._keys.format, 0)],  # else somebody else has made it
            [_put(self._keys.format, made), *counters],
        )

    def _require_format(self, kept: bytes) -> None:
        value = msgspec.json.decode(kept)
        if not isinstance(value, dict) or value.get("application") != _APPLICATION:
            raise Damaged(f"{self._keys.format} is {kept[:100]!r}")
        if value.get("version") != FORMAT_VERSION:
            raise Conflict(
                f"the state in etcd at {self._shown} has format {value.get('version')}, this Calve "
                f"knows {FORMAT_VERSION}",
                hint="a newer Calve wrote it: install that one or a later one",
            )

    def _retried(self, attempt: Callable[[], _T], is_passing: _IsPassing) -> _T:
        return self._translated(
            lambda: retried(attempt, self._retry, is_passing, seconds_max=RETRY_SECONDS_MAX)
        )

    def _passing(self, *, is_repeatable: bool) -> _IsPassing:
        def is_passing(error: BaseException) -> bool:
            if isinstance(error, _LostChange):
                return is_repeatable
            return not self._is_closed and isinstance(error, Lost | Unavailable)

        return is_passing

    def _translated(self, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except CalveError:
            raise
        except _LostChange as lost:
            raise UnknownOutcome(
                f"etcd at {self._shown} did not say whether a change of the state happened: {lost}",
                hint="look whether it did before you try again",
            ) from lost
        except Lost as lost:
            raise Unavailable(
                f"the state in etcd at {self._shown} cannot be used for now: {lost}",
                hint="see that most of its members run and reach each other, then try again",
            ) from lost
        except (ValueError, msgspec.DecodeError) as error:
            raise Corruption(
                f"the state in etcd at {self._shown} cannot be read: {error}",
                hint="bring the keys back from a snapshot of etcd. If there is none, give "
                "state.dsn another prefix and create the topics again: each then takes over its "
                "rows in the log with `calve topic create --adopt`",
            ) from error


class _LostChange(Lost):
    """The same, of a request that changes something and must not be repeated."""


class _Keys:
    """Where records lie: `<root>/state/<table>/<key>`, or a place of a table's own."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.format = f"{root}/state/format"

    def of(self, table: Table, key: Key) -> str:
        return "/".join([self._place(table), *(quote(str(part), safe="") for part in key)])

    def range_of(self, table: Table, prefix: Key) -> tuple[str, str | None]:
        """The first key, and the one after the last, of those that begin so; None for one key."""
        name = self.of(table, prefix)
        return (name, None) if len(prefix) == len(table.key) else _under(name)

    def everything(self) -> tuple[str, str]:
        return _under(self._root)

    def parse(self, table: Table, name: str) -> Key | None:
        """The key of a record; None if it is of another table in the same place."""
        parts = name.removeprefix(self._place(table) + "/").split("/")
        if len(parts) != len(table.key):
            return None
        kinds = table.key.values()
        return tuple(kind(unquote(part)) for kind, part in zip(kinds, parts, strict=True))

    def _place(self, table: Table) -> str:
        return f"{self._root}/{table.place or f'state/{table.name}'}"


class _Source:
    """Reads records, and remembers which revision of each."""

    def __init__(self, client: EtcdClient, keys: _Keys, now: Callable[[], datetime]) -> None:
        self._client = client
        self._keys = keys
        self.now = now
        self.seen: dict[str, int] = {}

    def find(self, table: Table, key: Key) -> Row | None:
        name = self._keys.of(table, key)
        kept = self._client.call("kv/range", {"key": encoded(name)}).get("kvs")
        self.seen[name] = int(kept[0]["mod_revision"]) if kept else 0
        return _row(table, name, decoded(kept[0].get("value", ""))) if kept else None

    def scan(self, table: Table, prefix: Key) -> list[Row]:
        asked = _ranging(*self._keys.range_of(table, prefix))["request_range"]
        rows = []
        for kept in self._client.call("kv/range", asked).get("kvs", ()):
            name = decoded(kept["key"]).decode()
            key = self._keys.parse(table, name)
            if key is not None:
                rows.append((*key, *_row(table, name, decoded(kept.get("value", "")))))
        return sorted(rows)


def _transact(
    client: EtcdClient, compared: list[dict[str, Any]], actions: list[dict[str, Any]]
) -> dict[str, Any]:
    try:
        return client.call("kv/txn", {"compare": compared, "success": actions})
    except Lost as lost:
        raise _LostChange(str(lost)) from lost


def _unchanged(name: str, revision: int) -> dict[str, Any]:
    """That a key is at a revision; 0 is for one that is not there."""
    return {
        "key": encoded(name),
        "target": "MOD",
        "result": "EQUAL",
        "mod_revision": str(revision),
    }


def _put(name: str, content: bytes) -> dict[str, Any]:
    value = base64.b64encode(content).decode()
    return {"request_put": {"key": encoded(name), "value": value}}


def _ranging(first: str, end: str | None = None, *, limit: int = 0) -> dict[str, Any]:
    asked: dict[str, Any] = {"key": encoded(first), "limit": str(limit)}
    return {"request_range": asked if end is None else {**asked, "range_end": encoded(end)}}


def _deletion(first: str, end: str | None = None) -> dict[str, Any]:
    asked = {"key": encoded(first)}
    return {"request_delete_range": asked if end is None else {**asked, "range_end": encoded(end)}}


def _under(name: str) -> tuple[str, str]:
    """What begins with a name and a slash; `0` comes after it."""
    return f"{name}/", f"{name}0"


def _content(table: Table, row: Row) -> bytes:
    """Readable as it lies there, as far as it is text."""
    return msgspec.json.encode(dict(zip(table.values, row, strict=True)))


def _row(table: Table, name: str, kept: bytes) -> Row:
    try:
        value = msgspec.json.decode(kept, type=dict[str, Any])
        if value.keys() != table.values.keys():
            raise Damaged(f"it has {', '.join(value)}")
        return tuple(_value(value[column], kind) for column, kind in table.values.items())
    except (ValueError, msgspec.DecodeError) as error:
        raise Damaged(f"the value of {name}: {error}") from error


def _value(value: Any, kind: type) -> Value:
    found = base64.b64decode(value, validate=True) if kind is bytes else value
    if type(found) is not kind:
        raise Damaged(f"{value!r} instead of {kind.__name__}")
    return cast("Value", found)
