"""The files of the audit log: lines of JSON, added and never changed, shared by many processes.

    <data>/_calve/audit/audit.jsonl                 the one that is written
    <data>/_calve/audit/audit-<when>-<hex>.jsonl    a full one, named when it was full

A line is written as a whole under a lock and is on the disk before anything goes on. A crash may
leave half a line: the next writer ends it, and readers pass it over. Nothing here is ever deleted;
full files are for the operator to take away.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from calve.audit.actor import Actor, actor_now, note_recorded
from calve.clock import Clock, SystemClock
from calve.errors import CalveError, Unavailable
from calve.paths import DataLayout, make_private

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from calve.settings import Settings

_log: Final = logging.getLogger(__name__)
BEGIN, END, REFUSED = "begin", "end", "refused"
_CURRENT: Final = "audit.jsonl"
_LOCK_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.002
_ERROR_CHARACTERS: Final = 500
_REFUSALS_AT_ONCE: Final = 100
_REFUSALS_PER_SECOND: Final = 10


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line. An action has two with one `id`: its begin, and its end with the `result`.

    A begin without an end is an action that a crash cut off: what became of it is not known.
    """

    time: str
    id: str
    step: str
    action: str
    subject: str
    who: Actor
    details: dict[str, Any] = {}
    result: str | None = None
    error: str | None = None


class Trail:
    """Where a lake's actions are recorded. Safe to share between threads, cheap to make."""

    def __init__(
        self, directory: Path | None, *, bytes_max: int, clock: Clock | None = None
    ) -> None:
        """Without a directory nothing is recorded: of a lake that ends with its process."""
        self._directory = directory
        self._bytes_max = bytes_max
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        # Threads wait for each other here; only one of them asks again and again for the file.
        self._writing = threading.Lock()
        self._written_at = 0.0
        self._refusals_left = float(_REFUSALS_AT_ONCE)
        self._refused_at = self._clock.monotonic()

    @classmethod
    def of(cls, settings: Settings, *, clock: Clock | None = None) -> Trail:
        is_kept = settings.catalog.type != "memory"
        directory = DataLayout(settings.data).audit if is_kept else None
        return cls(directory, bytes_max=settings.audit.file_bytes_max, clock=clock)

    @contextmanager
    def recording(
        self, action: str, subject: str, details: Mapping[str, Any] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Record what is done inside; Unavailable, and nothing is done, if that cannot be.

        What is put into the dict are details that are known at the end.
        """
        note_recorded()
        more: dict[str, Any] = {}
        if self._directory is None:
            yield more
            return
        begun = self._record(BEGIN, action, subject, details)
        self._write(begun)
        result, error = "failed", None
        try:
            yield more
            result = "done"
        except BaseException as raised:
            error = _told(raised)
            raise
        finally:
            ended = msgspec.structs.replace(
                begun,
                time=self._time(),
                step=END,
                details=begun.details | more,
                result=result,
                error=error,
            )
            try:
                self._write(ended)
            except Unavailable as problem:
                # It is done: saying otherwise would be wrong. That it was begun is on the disk.
                _log.error("the end of %s %s is not recorded: %s", action, subject, problem)

    def refused(self, action: str, subject: str, error: BaseException) -> None:
        """Record what a door refused before anything was begun.

        Not more than a few in a second: they cost whoever sends them nothing, and a disk is finite.
        """
        if self._directory is None or not self._may_tell_refusal():
            return
        record = self._record(REFUSED, action, subject, None)
        with suppress(Unavailable):  # it is refused all the same
            refused = msgspec.structs.replace(record, result=REFUSED, error=_told(error))
            self._write(refused, is_synced=False)  # nothing was done that waits for it

    def _may_tell_refusal(self) -> bool:
        with self._lock:
            now = self._clock.monotonic()
            room = self._refusals_left + (now - self._refused_at) * _REFUSALS_PER_SECOND
            self._refusals_left = min(room, float(_REFUSALS_AT_ONCE))
            self._refused_at = now
            if self._refusals_left < 1:
                return False
            self._refusals_left -= 1
            return True

    def _record(
        self, step: str, action: str, subject: str, details: Mapping[str, Any] | None
    ) -> Record:
        return Record(
            time=self._time(),
            id=uuid4().hex,
            step=step,
            action=action,
            subject=subject,
            who=actor_now(),
            details=dict(details or {}),
        )

    def _time(self) -> str:
        return self._clock.now().isoformat(timespec="microseconds").replace("+00:00", "Z")

    def _write(self, record: Record, *, is_synced: bool = True) -> None:
        assert self._directory is not None
        line = _encoded(record) + b"\n"
        try:
            with self._turn() as idle_since, _locked(self._directory, idle_since) as file:
                size = os.fstat(file).st_size
                if size and os.pread(file, 1, size - 1) != b"\n":
                    line = b"\n" + line  # somebody died in the middle of one
                _write_all(file, line)
                if is_synced:
                    os.fsync(file)
                if size + len(line) >= self._bytes_max:
                    self._put_away()
                self._written_at = time.monotonic()
        except OSError as error:
            raise Unavailable(
                f"the audit log in {self._directory} cannot be written: {error.strerror or error}",
                hint="nothing administrative is done without a record of it; make room there, or "
                "mend its permissions, and try again",
            ) from error

    @contextmanager
    def _turn(self) -> Iterator[float]:
        """Before the other threads of this process; since when nothing was written meanwhile."""
        came_at = time.monotonic()
        while not self._writing.acquire(timeout=_LOCK_SECONDS):
            if _is_late(max(came_at, self._written_at)):
                raise TimeoutError("the disk has not taken the last line yet")
        try:
            yield max(came_at, self._written_at)
        finally:
            self._writing.release()

    def _put_away(self) -> None:
        """Name the file as full; whoever comes next makes a new one."""
        assert self._directory is not None
        now = self._clock.now().strftime("%Y%m%dT%H%M%S%fZ")
        (self._directory / _CURRENT).rename(
            self._directory / f"audit-{now}-{uuid4().hex[:8]}.jsonl"
        )
        _sync_directory(self._directory)


def _encoded(record: Record) -> bytes:
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:
        # Whoever is recorded is told by the action itself that this is no text.
        return msgspec.json.encode(_writable(msgspec.to_builtins(record)))


def _writable(value: Any) -> Any:
    """The same with halves of characters, which no encoding can write, as Python shows them."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_writable(key): _writable(each) for key, each in value.items()}
    return [_writable(each) for each in value] if isinstance(value, list) else value


@contextmanager
def _locked(directory: Path, idle_since: float) -> Iterator[int]:
    """The file that is written now, which nobody else writes meanwhile.

    TimeoutError if whoever has it writes nothing. Many who write, on a slow machine, are no error.
    """
    while True:
        file = _opened(directory)
        try:
            size = os.fstat(file).st_size
            while not _lock(file):
                before, size = size, os.fstat(file).st_size
                if size != before:
                    idle_since = time.monotonic()
                elif _is_late(idle_since):
                    raise TimeoutError("another process does not let go of it")
                time.sleep(_LOOK_SECONDS)
            if _is_current(file, directory):
                yield file
                return
        finally:
            os.close(file)


def _is_late(idle_since: float) -> bool:
    return time.monotonic() - idle_since > _LOCK_SECONDS


def _opened(directory: Path) -> int:
    path = directory / _CURRENT
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        make_private(directory)
        file = os.open(path, flags | os.O_CREAT, 0o600)
        _sync_directory(directory)
        return file


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_current(file: int, directory: Path) -> bool:
    """Whether nobody has put it away between our opening and our locking it."""
    try:
        return os.path.samestat(os.fstat(file), (directory / _CURRENT).stat())
    except FileNotFoundError:
        return False


def _write_all(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]


def _sync_directory(directory: Path) -> None:
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _told(error: BaseException) -> str:
    words = error.message if isinstance(error, CalveError) else str(error)
    return f"{type(error).__name__}: {words}"[:_ERROR_CHARACTERS]


_DECODER: Final = msgspec.json.Decoder(Record)


def files_of(directory: Path) -> list[Path]:
    """Oldest first, the one that is written last."""
    full = sorted(directory.glob("audit-*.jsonl"))
    return [*full, *(path for path in (directory / _CURRENT,) if path.exists())]


def records(directory: Path) -> Iterator[Record]:
    """Every whole line, oldest first; what a crash left half is passed over."""
    for path in files_of(directory):
        for line in path.read_bytes().splitlines():
            with suppress(msgspec.DecodeError):
                yield _DECODER.decode(line)
