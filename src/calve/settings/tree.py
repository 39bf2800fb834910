"""The settings as one frozen value. Names, defaults and bounds; nothing is read from anywhere here.

A value that depends on another setting, such as the catalog's file in the data directory, is None
in this tree's defaults and filled in when settings are loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from calve.settings.secret import Properties, Secret, SecretUrl

Count = Annotated[int, Meta(ge=1)]
Amount = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Bytes = Annotated[int, Meta(ge=1)]
Level = Literal["debug", "info", "warning", "error"]

MIB = 1024 * 1024
GIB = 1024 * MIB


class Section(Struct, frozen=True, kw_only=True):
    """A part of the tree. Fields keep the order in which they are shown."""


class PoolSettings(Section, frozen=True, kw_only=True):
    min_connections: Amount = 1
    max_connections: Count = 10
    connection_timeout_ms: Count = 3_000
    idle_timeout_seconds: Count = 600
    max_lifetime_seconds: Count = 3_600


class CatalogSettings(Section, frozen=True, kw_only=True):
    type: Literal["sql", "memory", "rest", "glue"] = "sql"
    uri: SecretUrl | None = None
    name: Annotated[str, Meta(pattern="^[a-z][a-z0-9_]*$")] = "calve"
    cache_ttl_seconds: Amount = 300
    properties: Properties = field(default_factory=Properties)
    pool: PoolSettings = PoolSettings()


class StorageSettings(Section, frozen=True, kw_only=True):
    dsn: str | None = None
    region: str | None = None
    endpoint: str | None = None
    path_style: bool = False
    access_key_id: str | None = None
    secret_access_key: Secret | None = None
    profile: str | None = None
    role_arn: str | None = None
    properties: Properties = field(default_factory=Properties)


class WalSettings(Section, frozen=True, kw_only=True):
    path: Path | None = None
    segment_bytes_max: Bytes = 64 * MIB
    sync_mode: Literal["always", "periodic", "none"] = "always"
    sync_interval_ms: Count = 100
    hot_window_seconds: Amount = 600
    disk_bytes_max: Bytes = 64 * GIB
    free_bytes_min: Amount = GIB


class IngestSettings(Section, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    flight_port: Port = 8815
    http_port: Port = 8080
    otlp_grpc_port: Port = 4317
    otlp_http_port: Port = 4318
    request_bytes_max: Bytes = 64 * MIB
    memory_bytes_max: Bytes = 512 * MIB
    http_header_timeout_ms: Count = 10_000
    http_body_timeout_ms: Count = 60_000
    http_idle_timeout_ms: Count = 75_000
    http_connections_max: Count = 4_096
    auto_create: bool = True
    partition: Amount = 0
    streams_max: Count = 1_024
    streams_per_client_max: Count = 256
    idle_seconds_max: Count = 300
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    tls_client_ca: Path | None = None
    tls_client_cert: Path | None = None
    tls_client_key: Path | None = None

    @property
    def trusted(self) -> Path | None:
        """The file whose authorities commands and pipelines trust."""
        return self.tls_ca or self.tls_cert


class PipelineSettings(Section, frozen=True, kw_only=True):
    rows_max: Count = 50_000
    bytes_max: Bytes = 128 * MIB
    flush_interval_ms: Count = 5_000
    freshness_ms: Count = 60_000
    cycle_interval_ms: Count = 500
    concurrent_batches: Count = 4
    logs: str = ""
    token: Secret | None = None
    drain_ms: Amount = 10_000
    sink: Literal["iceberg", "parquet", "both"] = "iceberg"


class RetrySettings(Section, frozen=True, kw_only=True):
    max_attempts: Count = 5
    initial_delay_ms: Amount = 200
    max_delay_ms: Amount = 10_000
    backoff_multiplier: Annotated[float, Meta(ge=1)] = 2.0


class ReaderSettings(Section, frozen=True, kw_only=True):
    poll_interval_ms: Count = 1_000
    max_concurrent_reads: Count = 10
    prefetch_size: Count = 5
    memory_bytes_max: Bytes = 256 * MIB


class StateSettings(Section, frozen=True, kw_only=True):
    dsn: SecretUrl | None = None


class QuerySettings(Section, frozen=True, kw_only=True):
    time_ms_max: Count = 60_000
    memory_bytes_max: Bytes = GIB
    rows_max: Count = 1_000_000
    concurrent_max: Count = 4


class LogSettings(Section, frozen=True, kw_only=True):
    level: Level = "info"
    levels: str = ""
    format: Literal["auto", "human", "json"] = "auto"


class SparkSettings(Section, frozen=True, kw_only=True):
    master: str = "local[*]"
    package: Path | None = None
    conf: Properties = field(default_factory=Properties)


class AuthSettings(Section, frozen=True, kw_only=True):
    required: bool = False
    allow_insecure: bool = False


class TenantSettings(Section, frozen=True, kw_only=True):
    rows_per_second_max: Amount = 0
    bytes_per_second_max: Amount = 0
    log_bytes_max: Amount = 0
    queries_max: Amount = 0
    subscriptions_max: Amount = 0
    limits: Properties = field(default_factory=Properties)

    def own_limits(self) -> dict[str, dict[str, int]]:
        """What single tenants have instead, by tenant and key."""
        found: dict[str, dict[str, int]] = {}
        for name, value in self.limits.items():
            tenant, _, key = name.partition(".")
            found.setdefault(tenant, {})[key] = int(value)
        return found


class AuditSettings(Section, frozen=True, kw_only=True):
    file_bytes_max: Bytes = 64 * MIB
    topic: str | None = None


class Settings(Section, frozen=True, kw_only=True):
    data: Path = Path("calve-data")
    cache: Path | None = None
    catalog: CatalogSettings = CatalogSettings()
    storage: StorageSettings = StorageSettings()
    wal: WalSettings = WalSettings()
    ingest: IngestSettings = IngestSettings()
    pipeline: PipelineSettings = PipelineSettings()
    retry: RetrySettings = RetrySettings()
    reader: ReaderSettings = ReaderSettings()
    state: StateSettings = StateSettings()
    query: QuerySettings = QuerySettings()
    log: LogSettings = LogSettings()
    spark: SparkSettings = SparkSettings()
    auth: AuthSettings = AuthSettings()
    tenants: TenantSettings = TenantSettings()
    audit: AuditSettings = AuditSettings()
