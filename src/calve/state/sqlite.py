"""The registry in a SQLite file, for the processes of one machine.

Write-ahead journal, a busy time-out, and transactions of microseconds, each synced before it is
answered. A file that cannot be read is Corruption, never a reason to begin anew.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from calve.errors import Conflict, Corruption, Unavailable
from calve.model import TableName
from calve.state import sqlite_offsets as offsets
from calve.state import sqlite_work as work
from calve.state.sqlite_format import APPLICATION_ID, FORMAT_VERSION, OF_TOPICS, bring_up_to_date
from calve.state.sqlite_work import Run
from calve.state.store import CommittedOffset, TopicRecord
from calve.state.work import Lease, PipelineOrders, Progress, ProgressReport, TopicPartition

if TYPE_CHECKING:
    from calve.clock import Clock

_BUSY_SECONDS: Final = 30.0
_JOURNAL_ATTEMPTS: Final = 200
_JOURNAL_WAIT_SECONDS: Final = 0.05


class SqliteState:
    """A `State` in one file. Safe to share between threads, which take turns."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._is_closed = False
        with self._translating():
            _make_directory(path.parent)
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        try:
            with self._translating():
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def create_topic(self, name: TableName, content: bytes) -> TopicRecord | None:
        with self._transaction() as run:
            if run("SELECT 1 FROM topics WHERE (tenant, dataset, name) = (?, ?, ?)", _key(name)):
                return None
            version = _next_version(run)
            run("INSERT INTO topics VALUES (?, ?, ?, ?, ?)", (*_key(name), content, version))
            return TopicRecord(name, content, version)

    def topic(self, name: TableName) -> TopicRecord | None:
        with self._reading() as run:
            rows = run(
                "SELECT content, version FROM topics WHERE (tenant, dataset, name) = (?, ?, ?)",
                _key(name),
            )
        return TopicRecord(name, *rows[0]) if rows else None

    def topics(self, tenant: str | None = None) -> list[TopicRecord]:
        with self._reading() as run:
            rows = run(
                "SELECT tenant, dataset, name, content, version FROM topics "
                "WHERE tenant = coalesce(?, tenant) ORDER BY tenant, dataset, name",
                (tenant,),
            )
        return [
            TopicRecord(TableName(tenant, dataset, name), content, version)
            for tenant, dataset, name, content, version in rows
        ]

    def replace_topic(self, expected: TopicRecord, content: bytes) -> TopicRecord | None:
        with self._transaction() as run:
            if not _is_at(run, expected):
                return None
            version = _next_version(run)
            run(
                "UPDATE topics SET content = ?, version = ? "
                "WHERE (tenant, dataset, name) = (?, ?, ?)",
                (content, version, *_key(expected.name)),
            )
            return TopicRecord(expected.name, content, version)

    def delete_topic(
        self, expected: TopicRecord, topic_id: UUID, ended_streams: Sequence[UUID]
    ) -> bool:
        with self._transaction() as run:
            if not _is_at(run, expected):
                return False
            _next_version(run)
            run("DELETE FROM topics WHERE (tenant, dataset, name) = (?, ?, ?)", _key(expected.name))
            for table in OF_TOPICS:
                run(f"DELETE FROM {table} WHERE topic_id = ?", (str(topic_id),))  # noqa: S608
            for stream in ended_streams:
                run("INSERT OR IGNORE INTO ended_streams VALUES (?)", (str(stream),))
            return True

    def ended_streams(self) -> set[UUID]:
        with self._reading() as run:
            return {UUID(stream) for (stream,) in run("SELECT stream_id FROM ended_streams", ())}

    def forget_ended(self, stream_id: UUID) -> None:
        with self._transaction() as run:
            run("DELETE FROM ended_streams WHERE stream_id = ?", (str(stream_id),))

    def change_count(self) -> int:
        with self._reading() as run:
            return int(run("SELECT count FROM changes", ())[0][0])

    def committed(self, topic_id: UUID, partition: int) -> CommittedOffset | None:
        with self._reading() as run:
            return offsets.committed(run, TopicPartition(topic_id, partition))

    @contextmanager
    def keeping_committed(self, partition: int) -> Iterator[dict[UUID, CommittedOffset]]:
        with self._lock:
            with self._translating():
                self._require_open()
                self._connection.execute("BEGIN IMMEDIATE")
            try:
                with self._translating():
                    found = offsets.all_committed(self._run, partition)
                # What goes wrong in the block is no trouble of the state's.
                yield found
            finally:
                with suppress(sqlite3.Error):  # nothing was changed
                    self._connection.execute("ROLLBACK")

    def publish_committed(
        self,
        topic_id: UUID,
        partition: int,
        *,
        log_id: UUID,
        offset: int,
        resets: int | None = None,
        is_commit: bool = False,
    ) -> CommittedOffset:
        at, now = TopicPartition(topic_id, partition), self._clock.now()
        with self._transaction() as run:
            known = offsets.committed(run, at)
            if known is not None and known.log_id != log_id:
                raise _other_log(known, log_id, offset)
            if known is not None and resets not in {None, known.resets}:
                return known
            if known is not None and offsets.is_held(run, at, now=now):
                if not is_commit:
                    return known
                offsets.release(run, at)
            if known is not None and known.offset >= offset:
                return known
            return offsets.set_committed(run, at, log_id, offset, now=now)

    def reset_committed(
        self, topic_id: UUID, partition: int, *, log_id: UUID, offset: int
    ) -> CommittedOffset:
        at = TopicPartition(topic_id, partition)
        with self._transaction() as run:
            known = offsets.committed(run, at)
            if known is None or known.log_id != log_id:
                work.clear_requests(run, at)
            offsets.count_reset(run, at)
            return offsets.set_committed(run, at, log_id, offset, now=self._clock.now())

    def hold_committed(
        self, topic_id: UUID, partition: int, *, log_id: UUID, offset: int, seconds: float
    ) -> CommittedOffset:
        at, now = TopicPartition(topic_id, partition), self._clock.now()
        with self._transaction() as run:
            known = offsets.committed(run, at)
            lowest = offset if known is None else min(offset, known.offset)
            offsets.count_reset(run, at, held_until=now + timedelta(seconds=seconds))
            return offsets.set_committed(run, at, log_id, lowest, now=now)

    def release_committed(self, topic_id: UUID, partition: int, *, resets: int) -> None:
        at = TopicPartition(topic_id, partition)
        with self._transaction() as run:
            known = offsets.committed(run, at)
            if known is not None and known.resets == resets:
                offsets.count_reset(run, at)

    def take_lease(self, name: str, owner: str, seconds: float) -> bool:
        with self._transaction() as run:
            return work.take_lease(run, name, owner, seconds=seconds, now=self._clock.now())

    def release_lease(self, name: str, owner: str) -> None:
        with self._transaction() as run:
            work.release_lease(run, name, owner)

    def lease(self, name: str) -> Lease | None:
        with self._reading() as run:
            return work.lease(run, name, now=self._clock.now())

    def request_flush(self, topic_id: UUID, partition: int, offset: int) -> None:
        with self._transaction() as run:
            work.raise_offset(run, "flush_requests", TopicPartition(topic_id, partition), offset)

    def flush_requests(self) -> dict[TopicPartition, int]:
        with self._reading() as run:
            return work.offsets(run, "flush_requests")

    def pause_pipeline(self, topic_id: UUID | None = None) -> None:
        with self._transaction() as run:
            work.pause(run, topic_id)

    def resume_pipeline(self, topic_id: UUID | None = None) -> None:
        with self._transaction() as run:
            work.resume(run, topic_id)

    def request_skip(self, topic_id: UUID, partition: int, end: int) -> None:
        with self._transaction() as run:
            work.raise_offset(run, "skips", TopicPartition(topic_id, partition), end)

    def pipeline_orders(self) -> PipelineOrders:
        with self._reading() as run:
            return work.orders(run)

    def publish_progress(self, changed: Sequence[Progress]) -> None:
        with self._transaction() as run:
            work.publish(run, changed, now=self._clock.now())

    def progress(self) -> ProgressReport:
        with self._reading() as run:
            return work.progress(run)

    def add_bytes(self, partition: int, more_bytes: Mapping[UUID, int]) -> None:
        with self._transaction() as run:
            for topic_id, count in more_bytes.items():
                run(
                    "INSERT INTO appended VALUES (?, ?, ?) "
                    "ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes",
                    (str(topic_id), partition, count),
                )

    def bytes_appended(self, topic_id: UUID, partition: int) -> int:
        with self._reading() as run:
            rows = run(
                "SELECT bytes FROM appended WHERE (topic_id, partition) = (?, ?)",
                (str(topic_id), partition),
            )
        return int(rows[0][0]) if rows else 0

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._connection.close()

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA synchronous = FULL")
        self._use_journal()
        # Whoever is first makes the tables; the others wait here for it.
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._make_or_check()
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _use_journal(self) -> None:
        """SQLite does not wait while it changes the mode, which happens once in a file's life."""
        for _ in range(_JOURNAL_ATTEMPTS):
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if not _is_busy(error):
                    raise
                time.sleep(_JOURNAL_WAIT_SECONDS)
            else:
                return
        raise self._busy()

    def _make_or_check(self) -> None:
        application, version, tables = (
            self._connection.execute(query).fetchone()[0]
            for query in (
                "PRAGMA application_id",
                "PRAGMA user_version",
                "SELECT count(*) FROM sqlite_schema",
            )
        )
        if (application, version, tables) == (0, 0, 0):
            bring_up_to_date(self._connection, 0)
        elif application != APPLICATION_ID:
            raise self._unreadable("it is a database, but not one of Calve's")
        elif 0 < version < FORMAT_VERSION:
            bring_up_to_date(self._connection, version)
        elif version != FORMAT_VERSION:
            raise Conflict(
                f"{self._path} has format {version}, this Calve knows {FORMAT_VERSION}",
                hint="a newer Calve wrote it: install that one or a later one",
                context={"file": str(self._path), "format": str(version)},
            )

    @contextmanager
    def _reading(self) -> Iterator[Run]:
        with self._lock, self._translating():
            self._require_open()
            yield self._run

    @contextmanager
    def _transaction(self) -> Iterator[Run]:
        with self._reading() as run:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield run
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def _run(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values).fetchall()

    def _require_open(self) -> None:
        if self._is_closed:
            raise Unavailable("the state is closed", hint="open it again")

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if _is_busy(error):
                raise self._busy() from error
            if "no such" in str(error):
                raise self._unreadable(str(error)) from error
            raise Unavailable(
                f"{self._path}: {error}",
                hint="look at the disk and the file's permissions, then try again",
                context={"file": str(self._path)},
            ) from error
        except (sqlite3.DatabaseError, ValueError, msgspec.DecodeError) as error:
            raise self._unreadable(str(error)) from error
        except OSError as error:
            raise Unavailable(
                f"{self._path.parent} cannot be made: {error.strerror}",
                hint="look at the disk and the directory's permissions, then try again",
            ) from error

    def _busy(self) -> Unavailable:
        return Unavailable(
            f"{self._path} stays locked by another process",
            hint="look for a program that holds it open, such as a database browser, and close it",
            context={"file": str(self._path)},
        )

    def _unreadable(self, reason: str) -> Corruption:
        return Corruption(
            f"{self._path} cannot be read: {reason}",
            hint="bring the file back from a copy, with the -wal file beside it. If there is none, "
            "move it aside and create the topics again: each then takes over its rows in the log "
            "with `calve topic create --adopt`",
            context={"file": str(self._path)},
        )


def _make_directory(path: Path) -> None:
    """For its owner alone, and so are those above it that are not there yet."""
    if not path.exists():
        _make_directory(path.parent)
        path.mkdir(0o700, exist_ok=True)


def _key(name: TableName) -> tuple[str, str, str]:
    return (name.tenant, name.dataset, name.name)


def _next_version(run: Run) -> int:
    return int(run("UPDATE changes SET count = count + 1 RETURNING count", ())[0][0])


def _is_at(run: Run, expected: TopicRecord) -> bool:
    found = run(
        "SELECT version FROM topics WHERE (tenant, dataset, name) = (?, ?, ?)", _key(expected.name)
    )
    return found == [(expected.version,)]


def _other_log(known: CommittedOffset, log_id: UUID, offset: int) -> Conflict:
    return Conflict(
        f"offset {offset} of log {log_id} was to be published as committed, but the state knows "
        f"offset {known.offset} of log {known.log_id}",
        hint="the topic has another log now, or the state was set back; look at the topic again",
        context={"found": str(known.log_id), "expected": str(log_id)},
    )


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return "locked" in str(error) or "busy" in str(error)
