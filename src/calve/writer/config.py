"""What a writer can be told: sizes of batches, retries, and the catalog's connections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import msgspec

from calve.errors import InvalidRequest
from calve.settings import PoolSettings, RetrySettings, Settings
from calve.tables.retry import CommitRetry

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class BatchOptimizationConfig:
    """How batches are cut and how many pieces are written at once.

    Memory is bounded by `max_memory_per_batch_bytes` times `target_concurrent_batches`. With
    `enable_auto_split` off, a batch over a bound is refused.
    """

    max_rows_per_batch: int = 50_000
    max_memory_per_batch_bytes: int = 128 * _MIB
    enable_auto_split: bool = True
    target_concurrent_batches: int = 4
    enable_catalog_caching: bool = True
    catalog_cache_ttl_seconds: float = 300

    def __post_init__(self) -> None:
        _require(self, "max_rows_per_batch", at_least=1)
        _require(self, "max_memory_per_batch_bytes", at_least=1)
        _require(self, "target_concurrent_batches", at_least=1)
        _require(self, "catalog_cache_ttl_seconds", at_least=0)
        for name in ("enable_auto_split", "enable_catalog_caching"):
            if not isinstance(value := getattr(self, name), bool):
                raise InvalidRequest(f"{name}: {value!r} is not allowed", hint="give True or False")

    @classmethod
    def of(cls, settings: Settings) -> BatchOptimizationConfig:
        return cls(catalog_cache_ttl_seconds=settings.catalog.cache_ttl_seconds)

    @property
    def cache_seconds(self) -> float:
        return self.catalog_cache_ttl_seconds if self.enable_catalog_caching else 0


@dataclass(frozen=True, slots=True)
class RetryConfig:
    """How often something is tried and how long is waited in between; delays are in seconds."""

    max_attempts: int = 5
    initial_delay: float = 0.2
    max_delay: float = 10.0
    backoff_multiplier: float = 2.0

    def __post_init__(self) -> None:
        _require(self, "max_attempts", at_least=1)
        _require(self, "initial_delay", at_least=0)
        _require(self, "max_delay", at_least=0)
        _require(self, "backoff_multiplier", at_least=1)

    @classmethod
    def of(cls, settings: RetrySettings) -> RetryConfig:
        return cls(
            max_attempts=settings.max_attempts,
            initial_delay=settings.initial_delay_ms / 1000,
            max_delay=settings.max_delay_ms / 1000,
            backoff_multiplier=settings.backoff_multiplier,
        )

    def to_settings(self) -> RetrySettings:
        return RetrySettings(
            max_attempts=self.max_attempts,
            initial_delay_ms=round(self.initial_delay * 1000),
            max_delay_ms=round(self.max_delay * 1000),
            backoff_multiplier=self.backoff_multiplier,
        )


class CatalogPoolConfig(PoolSettings, frozen=True, kw_only=True):
    """The catalog's connections: the settings of `catalog.pool`, for one writer."""

    def __post_init__(self) -> None:
        _require(self, "min_connections", at_least=0)
        for name in self.__struct_fields__[1:]:
            _require(self, name, at_least=1)
        if self.min_connections > self.max_connections:
            raise InvalidRequest(
                f"min_connections: {self.min_connections} is more than max_connections, "
                f"{self.max_connections}",
                hint="lower the one, or raise the other",
            )

    @classmethod
    def of(cls, settings: PoolSettings) -> CatalogPoolConfig:
        return cls(**msgspec.structs.asdict(settings))


@dataclass(frozen=True, slots=True)
class Bounds:
    """What holds for a writer at one moment.

    Without a RetryConfig of its own, a writer may lose against others as often as the table says.
    """

    batch: BatchOptimizationConfig
    retry: RetryConfig
    bounds_races: bool

    def commit_retry(self, on_wait: Callable[[float], None]) -> CommitRetry:
        return CommitRetry(self.retry.to_settings(), self.bounds_races, on_wait)


def require_kind(config: object, kind: type) -> None:
    """Refuse what is no such configuration, before anything is changed."""
    if not isinstance(config, kind):
        raise InvalidRequest(
            f"{config!r} is no {kind.__name__}", hint=f"give a {kind.__name__}(…), whole"
        )


def _require(config: Any, name: str, *, at_least: int) -> None:
    value = getattr(config, name)
    kinds = (int,) if type(config).__annotations__.get(name) == "int" else (int, float)
    if not isinstance(value, kinds) or isinstance(value, bool) or not at_least <= value < inf:
        whole = "a whole number" if kinds == (int,) else "a number"
        raise InvalidRequest(
            f"{name}: {value!r} is not allowed", hint=f"give {whole} of at least {at_least}"
        )
