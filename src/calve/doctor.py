"""Checks everything that Calve needs on this machine, by using it.

Nothing is left behind: a lake that does not exist yet is tried in a temporary directory beside its
place. A check that fails carries the hint and the exit code of the error it met.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from calve.clock import Clock
from calve.errors import (
    CalveError,
    Denied,
    InvalidSettings,
    MissingPart,
    NotFound,
    Unavailable,
)
from calve.ingest.exposure import insecure_words, is_loopback, require_guards
from calve.lake import Lake
from calve.parts import load_part
from calve.paths import DataLayout, directory_url
from calve.query.engine import connect
from calve.service.announcement import running_service
from calve.settings import SecretUrl, Settings
from calve.spark.conf import kinds_of
from calve.spark.jars import JarCache, needed_jars, spark_home
from calve.spark.java import find_java
from calve.state import open_state, state_kind
from calve.tables.connect import require_lake
from calve.tables.probe import probe_store

_FREE_BYTES_WARNING: Final = 1024**3
_SYNC_ROUNDS: Final = 20
_SYNC_BYTES: Final = 4096
_SLOW_SYNC_MS: Final = 20.0
_CLOCK_SKEW_SECONDS_MAX: Final = 2.0
# No machine that runs this version can truthfully be earlier.
_RELEASED: Final = datetime(2026, 11, 1, tzinfo=UTC)


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    status: Status
    detail: str
    hint: str | None = None
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class _Trial:
    """A lake to try out, and whether it may be made for that."""

    settings: Settings
    create: bool

    @property
    def note(self) -> str:
        return " (no lake yet; tried in a temporary one)" if self.create else ""

    def open(self) -> Lake:
        return Lake(self.settings, create=self.create)


class _Notable(Exception):
    """Something that works, but that the user should know."""

    def __init__(self, detail: str, hint: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint


def examine(settings: Settings, clock: Clock) -> Iterator[Check]:
    """Every check, one after the other, as each is done."""
    yield _check("python", lambda: f"{platform.python_version()} ({sys.executable})")
    yield _check("data directory", lambda: _data_directory(settings))
    yield _check("permissions", lambda: _permissions(settings))
    yield _check("clock", lambda: _clock(settings, clock))
    with _tried_out(settings) as trial:
        yield _check("catalog", lambda: _catalog(trial))
        yield _check("store", lambda: _store(trial))
        yield _check("state", lambda: _state(settings))
        yield _check("duckdb", _duckdb)
        yield from _spark_checks(trial)
    yield _check("exposure", lambda: _exposure(settings))
    yield from (
        _check(f"port {name}", lambda port=port: _port(settings, port))  # type: ignore[misc]
        for name, port in _ports(settings).items()
    )


def _check(name: str, work: Callable[[], str]) -> Check:
    try:
        return Check(name, Status.OK, work())
    except _Notable as notable:
        return Check(name, Status.WARNING, notable.detail, notable.hint)
    except CalveError as error:
        return Check(name, Status.FAILED, error.message, error.hint, error.exit_code)
    except OSError as error:
        return Check(name, Status.FAILED, str(error), "check the path", Denied.exit_code)


def _spark_checks(trial: _Trial) -> Iterator[Check]:
    works: dict[str, Callable[[], str]] = {
        "java": lambda: f"Java {find_java().version} ({find_java().executable})",
        "jars": lambda: _jars(trial.settings),
        "spark": lambda: _spark(trial),
    }
    try:
        spark_home()
    except MissingPart as missing:
        yield from (Check(name, Status.SKIPPED, missing.message, missing.hint) for name in works)
        return
    failed: str | None = None
    for name, work in works.items():
        if failed:
            yield Check(name, Status.SKIPPED, f"needs {failed}")
            continue
        check = _check(name, work)
        failed = name if check.status is Status.FAILED else None
        yield check


def _data_directory(settings: Settings) -> str:
    with suppress(FileNotFoundError, NotADirectoryError):
        # A name that is too long, or a way that is closed to us, shows here.
        settings.data.stat()
    with _probe_directory(settings.data) as probe:
        free = shutil.disk_usage(probe).free
        sync_ms = _sync_ms(probe / "sync")
    detail = f"{settings.data}, {free / 1e9:.1f} GB free, fsync {sync_ms:.2f} ms"
    if free < _FREE_BYTES_WARNING:
        raise _Notable(detail, "free some space, or name a directory on another disk")
    if sync_ms > _SLOW_SYNC_MS:
        raise _Notable(detail, "durable writes wait for this; a local SSD syncs in about 1 ms")
    return detail


def _permissions(settings: Settings) -> str:
    """What others on this machine could read; nothing that somebody made is changed."""
    # Who cannot enter a directory reads nothing in it, whatever is open there.
    places = [settings.data]
    if settings.wal.path is not None and not settings.wal.path.is_relative_to(settings.data):
        places.append(settings.wal.path)
    opened = [place for place in places if _is_open(place)]
    if opened:
        raise _Notable(
            f"others on this machine can look into {', '.join(map(str, opened))}",
            f"`chmod go-rwx {opened[0]}`, unless they are meant to",
        )
    return "the lake is its owner's alone"


def _is_open(place: Path) -> bool:
    try:
        return bool(place.stat().st_mode & 0o077)
    except OSError:
        return False  # not there yet: it is made for its owner alone


def _exposure(settings: Settings) -> str:
    if found := require_guards(settings):
        raise _Notable(
            insecure_words(settings, found),
            "set auth.required = true, ingest.tls_cert and ingest.tls_key, or listen on 127.0.0.1",
        )
    host = settings.ingest.host
    if is_loopback(host):
        return f"{host}, this machine alone"
    return f"{host}, with tokens and TLS"


def _sync_ms(file: Path) -> float:
    times = []
    with file.open("wb", buffering=0) as output:
        for _ in range(_SYNC_ROUNDS):
            start = time.perf_counter()
            output.write(bytes(_SYNC_BYTES))
            os.fsync(output.fileno())
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1000


def _clock(settings: Settings, clock: Clock) -> str:
    """What can be told without asking another machine: the date, and the disk's opinion of it."""
    now = clock.now()
    if now < _RELEASED:
        raise InvalidSettings(
            f"it cannot be {now:%Y-%m-%d}", hint="set the machine's clock, best with NTP"
        )
    with _probe_directory(settings.data) as probe:
        (probe / "clock").touch()
        skew = abs((probe / "clock").stat().st_mtime - clock.now().timestamp())
    if skew > _CLOCK_SKEW_SECONDS_MAX:
        raise _Notable(
            f"the disk's clock differs by {skew:.0f} s",
            "synchronise this machine and its file server with NTP",
        )
    return f"{now:%Y-%m-%d %H:%M:%S} UTC"


@contextmanager
def _probe_directory(data: Path) -> Iterator[Path]:
    """A temporary directory on the disk where the data is, or would be."""
    parent = next(path for path in (data, *data.parents) if os.path.exists(path))  # noqa: PTH110
    try:
        with tempfile.TemporaryDirectory(prefix=".calve-doctor-", dir=parent) as probe:
            yield Path(probe)
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise Denied(
            f"{parent} cannot be written", hint="change its permissions, or use another --data"
        ) from error
    except OSError as error:
        if error.errno not in {errno.EROFS, errno.ENOSPC}:
            raise
        raise Denied(f"{parent} cannot be written: {error.strerror}") from error


@contextmanager
def _tried_out(settings: Settings) -> Iterator[_Trial]:
    """The lake as it is; one that is a directory still to be made, in a temporary one instead."""
    try:
        require_lake(settings)
    except CalveError:
        try:
            with _probe_directory(settings.data) as probe:
                yield _Trial(_moved(settings, probe), create=True)
        except (Denied, OSError):
            # The data directory's own check has said so; the others say what they meet.
            yield _Trial(settings, create=False)
    else:
        yield _Trial(settings, create=False)


def _moved(settings: Settings, data: Path) -> Settings:
    replace = msgspec.structs.replace
    storage = settings.storage
    if storage.dsn == directory_url(settings.data):
        storage = replace(storage, dsn=directory_url(data))
    uri = SecretUrl(f"sqlite:///{DataLayout(data).catalog}")
    return replace(settings, data=data, storage=storage, catalog=replace(settings.catalog, uri=uri))


def _catalog(trial: _Trial) -> str:
    kind = trial.settings.catalog.type
    try:
        with trial.open() as lake:
            return f"{kind}, {len(lake.catalog.list_tables())} tables{trial.note}"
    except NotFound as missing:
        raise _Notable(
            f"{kind}, reachable: {missing.message}", "it is made when the first table is created"
        ) from missing


def _store(trial: _Trial) -> str:
    if trial.settings.storage.dsn is None:
        return "chosen by the catalog's server for each table"
    try:
        with trial.open() as lake:
            probe_store(lake.catalog)
    except NotFound as missing:
        raise _Notable("not tried", "it is tried once the lake has been made") from missing
    return f"written, read and deleted a file{trial.note}"


def _state(settings: Settings) -> str:
    kind = state_kind(settings)
    try:
        with closing(open_state(settings, create=False)) as state:
            return f"{kind}, {len(state.topics())} topics"
    except NotFound as missing:
        if "not_made" not in missing.context:
            raise
        return f"{kind}, reachable: {missing.message}"


def _duckdb() -> str:
    with connect() as connection:
        row = connection.sql("select version()").fetchone()
    assert row is not None
    return f"DuckDB {row[0]} with Iceberg"


def _jars(settings: Settings) -> str:
    paths = JarCache(Path(str(settings.cache))).verified_paths(needed_jars(kinds_of(settings)))
    size = sum(path.stat().st_size for path in paths)
    return f"{len(paths)} jars, {size / 1e6:.0f} MB, checksums right"


def _spark(trial: _Trial) -> str:
    start = time.monotonic()
    translating_spark = load_part("spark", "calve.spark.translate").translating_spark
    with trial.open() as lake, translating_spark():
        session = lake.spark()
        session.sql("show namespaces").collect()
        version = session.version
    return f"Spark {version} opened the catalog ({time.monotonic() - start:.0f} s)"


def _ports(settings: Settings) -> dict[str, int]:
    ingest = settings.ingest
    return {
        "flight": ingest.flight_port,
        "http": ingest.http_port,
        "otlp grpc": ingest.otlp_grpc_port,
        "otlp http": ingest.otlp_http_port,
    }


def _port(settings: Settings, port: int) -> str:
    host = settings.ingest.host
    service = running_service(settings)
    if service is not None and port in service.addresses.ports().values():
        return f"{host}:{port} is the running service's"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise Unavailable(
                f"{host}:{port} cannot be used: {error.strerror}",
                hint="stop the program that listens there, or set another port (0: any free one)",
            ) from error
    return f"{host}:{port} is free" if port else f"{host}, any free port"
