"""What each tenant may send, hold and ask for at once; without any limit in the settings, nothing.

Rows and bytes come out of buckets that are filled at the tenant's rate and hold one second of it.
Whoever finds something in a bucket may take more than there is: the next one waits until that is
made up for, so that a batch larger than a bucket comes in too, and the rate is kept all the same.
What is refused has changed nothing, is told when to come again, and costs other tenants nothing.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final

from calve.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from calve.clock import Clock
    from calve.settings import Settings
    from calve.settings.tree import TenantSettings

_BURST_SECONDS: Final = 1.0
_RETRY_AFTER_MS: Final = 1_000
# Buckets that are full again are as good as none, and are looked for when there are so many more.
_SWEEP_EVERY: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """That of one tenant; 0 is none."""

    rows_per_second_max: int = 0
    bytes_per_second_max: int = 0
    log_bytes_max: int = 0
    queries_max: int = 0
    subscriptions_max: int = 0

    @classmethod
    def of(cls, given: TenantSettings, own: Mapping[str, int]) -> Limit:
        """`own` wins over what is given for all tenants."""
        every = {name: getattr(given, name) for name in cls.__slots__}
        return cls(**{**every, **own})


class _Bucket:
    __slots__ = ("at", "level", "rate")

    def __init__(self, rate: int, at: float) -> None:
        self.rate = rate
        self.level = rate * _BURST_SECONDS
        self.at = at

    def fill(self, now: float) -> None:
        self.level = min(self.rate * _BURST_SECONDS, self.level + (now - self.at) * self.rate)
        self.at = now

    @property
    def is_full(self) -> bool:
        return self.level >= self.rate * _BURST_SECONDS


class TenantLimits:
    """Safe to share between threads; never waits."""

    def __init__(self, settings: TenantSettings, clock: Clock) -> None:
        self._every = Limit.of(settings, {})
        self._own = {
            tenant: Limit.of(settings, own) for tenant, own in settings.own_limits().items()
        }
        self._now = clock.monotonic
        self._lock = threading.Lock()
        self._buckets: dict[tuple[str, str], _Bucket] = {}
        self._sweep_at = _SWEEP_EVERY
        self._open: dict[tuple[str, str], int] = {}
        self._log_bytes: dict[str, int] = {}

    @classmethod
    def of(cls, settings: Settings, clock: Clock) -> TenantLimits | None:
        """None where nobody is limited, which then costs nothing."""
        limits = cls(settings.tenants, clock)
        is_any = any(each != Limit() for each in (limits._every, *limits._own.values()))
        return limits if is_any else None

    def limit(self, tenant: str) -> Limit:
        return self._own.get(tenant, self._every)

    @property
    def bounds_log(self) -> bool:
        """Whether anybody has to tell how much of the log each tenant has."""
        return any(each.log_bytes_max for each in (self._every, *self._own.values()))

    def require_room(self, tenant: str) -> None:
        """Overloaded, with when to come again, for a tenant that has sent too much by now.

        For doors, before they read anything; only `take` counts.
        """
        self._take(tenant, 0, 0)

    def take(self, tenant: str, rows: int, size_bytes: int) -> None:
        """Count rows that are about to be appended, or raise Overloaded."""
        self._take(tenant, rows, size_bytes)

    @contextmanager
    def counted(self, tenant: str, rows: int, size_bytes: int) -> Iterator[None]:
        """Take them, and give them back if what is done inside fails."""
        self.take(tenant, rows, size_bytes)
        try:
            yield
        except BaseException:
            self._give_back(tenant, rows, size_bytes)
            raise

    def _give_back(self, tenant: str, rows: int, size_bytes: int) -> None:
        limit = self.limit(tenant)
        with self._lock:
            for kind, _, amount in _rates(limit, rows, size_bytes):
                if bucket := self._buckets.get((tenant, kind)):
                    bucket.level += amount
            if limit.log_bytes_max:
                self._log_bytes[tenant] = self._log_bytes.get(tenant, 0) - size_bytes

    def _take(self, tenant: str, rows: int, size_bytes: int) -> None:
        limit = self.limit(tenant)
        now = self._now()
        with self._lock:
            self._require_log_room(tenant, limit, size_bytes)
            drawn = [
                (self._filled((tenant, kind), rate, now), kind, rate, amount)
                for kind, rate, amount in _rates(limit, rows, size_bytes)
            ]
            for bucket, kind, rate, _ in drawn:
                if bucket.level <= 0:
                    raise _too_fast(tenant, kind, rate, bucket.level)
            for bucket, _, _, amount in drawn:
                bucket.level -= amount
            if limit.log_bytes_max:
                self._log_bytes[tenant] = self._log_bytes.get(tenant, 0) + size_bytes

    def _filled(self, key: tuple[str, str], rate: int, now: float) -> _Bucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            self._sweep(now)
            bucket = self._buckets[key] = _Bucket(rate, now)
        bucket.fill(now)
        return bucket

    def _sweep(self, now: float) -> None:
        if len(self._buckets) < self._sweep_at:
            return
        for key, bucket in list(self._buckets.items()):
            bucket.fill(now)
            if bucket.is_full:
                del self._buckets[key]
        self._sweep_at = len(self._buckets) + _SWEEP_EVERY

    def _require_log_room(self, tenant: str, limit: Limit, size_bytes: int) -> None:
        held = self._log_bytes.get(tenant, 0)
        if limit.log_bytes_max and held and held + size_bytes > limit.log_bytes_max:
            raise Overloaded(
                f"the rows of tenant {tenant} have {held:,} bytes of the log, and "
                f"{limit.log_bytes_max:,} are the most (tenants.log_bytes_max)",
                hint="try again when the pipeline has brought them to their tables and they are "
                "older than wal.hot_window_seconds",
                context={"retry_after_ms": str(_RETRY_AFTER_MS)},
            )

    def tell_log_bytes(self, held: Mapping[str, int]) -> None:
        """How many bytes of the log the rows of each tenant have."""
        with self._lock:
            self._log_bytes = dict(held)

    @contextmanager
    def query(self, tenant: str | None) -> Iterator[None]:
        """One query of a tenant, for as long as it is under way."""
        self.enter_query(tenant)
        try:
            yield
        finally:
            self.leave_query(tenant)

    def enter_query(self, tenant: str | None) -> None:
        if tenant is not None:
            self._enter(tenant, "queries", self.limit(tenant).queries_max)

    def leave_query(self, tenant: str | None) -> None:
        if tenant is not None:
            self._leave(tenant, "queries")

    def enter_stream(self, tenant: str) -> None:
        """One more stream of rows that a tenant reads."""
        self._enter(tenant, "subscriptions", self.limit(tenant).subscriptions_max)

    def leave_stream(self, tenant: str) -> None:
        self._leave(tenant, "subscriptions")

    def require_subscription(self, tenant: str, count: int) -> None:
        """Overloaded if a tenant that has so many subscriptions may not have one more."""
        most = self.limit(tenant).subscriptions_max
        if most and count >= most:
            raise _too_many(tenant, "subscriptions", most, "delete those that nobody reads")

    def _enter(self, tenant: str, kind: str, most: int) -> None:
        with self._lock:
            count = self._open.get((tenant, kind), 0)
            if most and count >= most:
                raise _too_many(tenant, kind, most, "wait for one of them to end")
            self._open[tenant, kind] = count + 1

    def _leave(self, tenant: str, kind: str) -> None:
        with self._lock:
            left = self._open[tenant, kind] - 1
            if left:
                self._open[tenant, kind] = left
            else:
                del self._open[tenant, kind]


def _rates(limit: Limit, rows: int, size_bytes: int) -> list[tuple[str, int, int]]:
    found = []
    if limit.rows_per_second_max:
        found.append(("rows", limit.rows_per_second_max, rows))
    if limit.bytes_per_second_max:
        found.append(("bytes", limit.bytes_per_second_max, size_bytes))
    return found


def _too_fast(tenant: str, kind: str, rate: int, level: float) -> Overloaded:
    delay_ms = ceil(-level / rate * 1000) + 1
    return Overloaded(
        f"tenant {tenant} sends more than {rate:,} {kind} a second (tenants.{kind}_per_second_max)",
        hint=f"retry in {delay_ms} ms, with the same producer and sequence",
        context={"retry_after_ms": str(delay_ms)},
    )


def _too_many(tenant: str, kind: str, most: int, hint: str) -> Overloaded:
    return Overloaded(
        f"tenant {tenant} has {most} {kind}, which are the most (tenants.{kind}_max)",
        hint=hint,
        context={"retry_after_ms": str(_RETRY_AFTER_MS)},
    )
