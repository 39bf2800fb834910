"""How a running service is found: a file in the lake that says where it listens.

Whoever serves holds a lock beside the file for as long as it lives, and the kernel lets go of it
however that ends: so a file that a crash left behind is known to be stale. One service per lake
and partition.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from calve.clock import Clock, SystemClock
from calve.errors import Conflict, Denied, InvalidSettings
from calve.paths import DataLayout
from calve.wal.files import FileLock, OsFiles

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from calve.settings import Settings

_FILES: Final = OsFiles()


class Addresses(msgspec.Struct, frozen=True, kw_only=True):
    """Where a service listens, as URLs."""

    flight: str
    http: str
    otlp_grpc: str | None = None  # the two are not there without the part `otlp`
    otlp_http: str | None = None

    def from_here(self) -> Addresses:
        """As this machine calls them: no certificate is made for "every address"."""
        urls: dict[str, str | None] = msgspec.structs.asdict(self)
        return Addresses(**{name: url and _called(url) for name, url in urls.items()})  # type: ignore[arg-type]

    def ports(self) -> dict[str, int]:
        """By the names of the addresses."""
        urls: dict[str, str | None] = msgspec.structs.asdict(self)
        found = {name: urlsplit(url).port for name, url in urls.items() if url is not None}
        return {name: port for name, port in found.items() if port is not None}


def _called(url: str) -> str:
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


class Announced(msgspec.Struct, frozen=True, kw_only=True):
    """A service as its file tells of it. `processes` are the ids of its parts, by name."""

    pid: int
    since: datetime
    partition: int
    addresses: Addresses
    processes: dict[str, int] = {}


class Announcement:
    """The right to serve a lake, and the file that says so. A context manager: taken, released."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        """Conflict, with where it listens, if another service has the lake."""
        self._place = _Place.of(settings)
        self._partition = settings.ingest.partition
        self._since = (clock or SystemClock()).now()
        self._lock = _taken(self._place)

    def tell(self, addresses: Addresses, processes: Mapping[str, int]) -> None:
        """Say where the service listens; again when that has changed."""
        announced = Announced(
            pid=os.getpid(),
            since=self._since,
            partition=self._partition,
            addresses=addresses,
            processes=dict(processes),
        )
        unfinished = self._place.file.with_suffix(".new")
        unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(announced)) + b"\n")
        unfinished.replace(self._place.file)

    def release(self) -> None:
        """Take the file away and let another service come; again does nothing."""
        lock, self._lock = self._lock, None
        if lock is not None:
            self._place.file.unlink(missing_ok=True)
            lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def running_service(settings: Settings) -> Announced | None:
    """The service that takes rows into the lake's partition on this machine, if there is one."""
    return _read(_Place.of(settings))


class _Place(msgspec.Struct, frozen=True):
    file: Path
    lock: Path

    @classmethod
    def of(cls, settings: Settings) -> _Place:
        own = DataLayout(settings.data).service
        partition = settings.ingest.partition
        name = own.name if partition == 0 else f"{own.name}-{partition}"
        return cls(own.with_name(f"{name}.json"), own.with_name(f"{name}.lock"))


def _read(place: _Place) -> Announced | None:
    try:
        if not _FILES.is_locked(place.lock):
            return None
        return msgspec.json.decode(place.file.read_bytes(), type=Announced)
    except (OSError, msgspec.MsgspecError):
        return None  # nobody serves, or not yet: the file comes once all is ready


def _taken(place: _Place) -> FileLock | None:
    try:
        _FILES.make_directory(place.lock.parent)
        place.lock.touch()
        lock = _FILES.lock(place.lock)
    except (FileExistsError, NotADirectoryError) as error:
        raise InvalidSettings(
            f"data: {place.lock.parent.parent} is not a directory",
            hint="name a directory, or a new path",
        ) from error
    except OSError as error:
        raise Denied(
            f"{place.lock.parent} cannot be written: {error.strerror}",
            hint="change its permissions, or name another directory with --data",
        ) from error
    if lock is None:
        raise _served_already(place)
    with suppress(OSError):
        place.file.unlink()  # what a service that was killed has left
    return lock


def _served_already(place: _Place) -> Conflict:
    found = _read(place)
    if found is None:
        return Conflict("a service of this lake is just starting or ending", hint="try again")
    return Conflict(
        f"a service of this lake is running already: process {found.pid}, at "
        f"{found.addresses.http} and {found.addresses.flight}",
        hint="`calve status` shows it; stop it first, or use it",
        context={"pid": str(found.pid)},
    )
