"""One transaction of a writer: rows staged, then committed or rolled back as a whole.

An exception says nothing about a commit: it may be tried again, and what an earlier attempt has
done is found in the table. Staged files are deleted only when the table proves that it has none of
them; what is undecided stays for orphan removal, under the transaction's id.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Final

from calve.errors import (
    CalveError,
    Conflict,
    InvalidRequest,
    NotFound,
    SchemaConflict,
    UnknownOutcome,
)
from calve.tables.commit import Committed, TableCommit
from calve.tables.data_files import new_operation_id
from calve.tables.recording import Retirement
from calve.tables.retention import bounded_metadata
from calve.tables.staging import Edit
from calve.writer.config import Bounds
from calve.writer.stager import Stager, refuse_rows
from calve.writer.stats import WriterCounters
from calve.writer.target import TargetTable

_KIND: Final = "transaction"


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What became of rows. `snapshot_id` is None until they are committed, or if there are none."""

    transaction_id: str
    rows: int
    snapshot_id: int | None = None
    files: int = 0


class Transaction:
    """Safe to share between threads: what they ask for happens one after the other."""

    def __init__(self, target: TargetTable, counters: WriterCounters) -> None:
        self.id = new_operation_id(_KIND)
        # What has become of it, in words; empty while it is open.
        self.fate = ""
        self.result: WriteResult | None = None
        self._target = target
        self._counters = counters
        self._stager = Stager(target, self.id, counters)
        self._commit: TableCommit | None = None
        self._retirement = Retirement()
        self._is_outdated = False
        self._process = os.getpid()
        self._lock = threading.RLock()
        # How many batches are being written: more than one where rows write rows as they are read.
        self._depth = 0
        # How many calls with many batches are under way: others may write between two of them.
        self._calls = 0
        counters.count("transactions_begun")

    def write(self, data: object, bounds: Bounds) -> WriteResult:
        self._require_own()
        with self._lock:
            self._require_open()
            if self._is_under_way:
                # It would be found as it was, without these rows.
                raise InvalidRequest(
                    f"a commit of {self.id} was tried, and its outcome is unknown",
                    hint="commit it again, or roll it back",
                )
            self._depth += 1
            try:
                return WriteResult(self.id, self._stager.take(data, bounds))
            finally:
                self._depth -= 1

    def write_all(self, batches: Iterable[object], bounds: Callable[[], Bounds]) -> WriteResult:
        """Write batches as they come. Nothing of them can be committed if one fails behind others,
        or while they are being written."""
        rows = taken = 0
        with self._in_call():
            try:
                for batch in batches:
                    rows += self.write(batch, bounds()).rows
                    taken += 1
            except BaseException as error:
                # An interrupt may have come before the batch was counted.
                if taken or not isinstance(error, Exception):
                    with self._lock:
                        self._stager.spoil()
                raise
        return WriteResult(self.id, rows)

    def commit(self, bounds: Bounds) -> WriteResult:
        """Make all rows part of the table. After an error it may be called again."""
        self._require_own()
        with self._lock:
            self._require_open()
            self._require_idle()
            if self._calls:
                raise InvalidRequest(
                    f"batches of {self.id} are being written", hint="commit it when all are"
                )
            if not self._stager.finish():
                return self._committed(None, 0)
            try:
                done = self._commit_files(bounds)
            except CalveError:
                self._target.forget()
                raise
            self._target.keep(done.table)
            return self._committed(done.snapshot_id, len(self._stager.finish()))

    def roll_back(self, reason: str) -> None:
        """Delete what was staged."""
        self._require_own()
        with self._lock:
            self._require_open()
            self._require_idle()
            if self._commit is not None and self._is_under_way:
                self._require_uncommitted(self._commit)
            # First, so that nobody commits what an interrupt has left of it.
            self.fate = f"was rolled back ({reason})"
            self._stager.discard(held=self._commit.held_files if self._commit else ())
            self._counters.rolled_back(reason)

    @contextmanager
    def _in_call(self) -> Iterator[None]:
        self._require_own()
        with self._lock:
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1

    @property
    def _is_under_way(self) -> bool:
        """Whether a commit was sent that has happened, or of which nobody knows whether it has."""
        commit = self._commit
        return commit is not None and (commit.is_undecided or commit.done is not None)

    def _commit_files(self, bounds: Bounds) -> Committed:
        """Commit, and write the rows again as often as others change the columns they were for."""
        assert self._stager.table is not None
        return bounds.commit_retry(self._counters.waited)(
            lambda: self._attempt(bounds),
            self._stager.table.properties,
            lambda error: isinstance(error, SchemaConflict),
        )

    def _attempt(self, bounds: Bounds) -> Committed:
        commit = self._prepared(bounds)
        if self._is_outdated:
            # What was sent before the columns changed may be in the table, or get there.
            if found := commit.reload():
                return found
            self._stager.rewrite(copy(commit.table), bounds, held=commit.held_files)
            self._counters.count("rewritten_transactions")
            self._is_outdated = False
        edit = Edit(
            added=self._stager.finish(),
            schema=self._stager.schema,
            summary={"calve.operation": self.id},
            is_recurring=True,
        )
        try:
            return commit.repeat(lambda: self._attempt_once(commit, edit))
        except SchemaConflict:
            self._is_outdated = True
            raise

    def _attempt_once(self, commit: TableCommit, edit: Edit) -> Committed:
        """Commit on the table as it is now; so that commits stay fast, it forgets those before.

        Only transactions: snapshots of other changes, and of other programs, are not a writer's.
        """
        table = commit.table
        refuse_rows(table)
        bounded = replace(edit, properties=bounded_metadata(table.properties))
        return commit.attempt(self._retirement.making_room(table, bounded, made_by=_KIND))

    def _prepared(self, bounds: Bounds) -> TableCommit:
        """The commit of which something was sent, or a new one on the table as last seen."""
        if self._commit is None or not self._is_under_way:
            seen = self._commit.table if self._commit else self._stager.table
            assert seen is not None
            retry = bounds.commit_retry(self._counters.waited)
            self._commit = TableCommit(self._target.newest(seen), retry=retry)
            if not self._target.is_fresh():
                self._commit.read_again()
        return self._commit

    def _require_uncommitted(self, commit: TableCommit) -> None:
        """Look what became of a commit without an answer."""
        try:
            found = commit.reload()
        except (NotFound, UnknownOutcome):
            # Gone, or under another name, where nobody can look; or what would tell has expired.
            found = None
        if found is not None:
            self._committed(found.snapshot_id, len(self._stager.finish()))
            raise Conflict(
                f"{self.id} has been committed: snapshot {found.snapshot_id}",
                hint="the answer to its commit had been lost; delete its rows if they are unwanted",
            )
        if not commit.is_undecided:
            return
        self.fate = "has an unknown outcome"
        self._counters.count("transactions_undecided")
        raise UnknownOutcome(
            f"a commit of {self.id} may have been applied, or may still be: its files are left",
            hint="look at the table later; orphan removal deletes the files if it was not",
        )

    def _committed(self, snapshot_id: int | None, files: int) -> WriteResult:
        where = f"in snapshot {snapshot_id}" if snapshot_id else "without rows"
        self.fate = f"was committed {where}"
        self._counters.count("transactions_committed")
        self.result = WriteResult(self.id, self._stager.rows, snapshot_id, files)
        return self.result

    def _require_idle(self) -> None:
        """Refuse what is asked for by the very rows that are being written."""
        if self._depth:
            raise InvalidRequest(
                f"a batch of {self.id} is being written", hint="end it when all rows are read"
            )

    def _require_own(self) -> None:
        """A forked process has a copy, and the files are those of the one that it came from.

        It cannot even wait for the lock: whoever held it is not there.
        """
        if os.getpid() != self._process:
            raise InvalidRequest(
                f"{self.id} was begun in another process, which has forked this one",
                hint="make a writer in each process",
            )

    def _require_open(self) -> None:
        if self.fate:
            raise InvalidRequest(f"{self.id} {self.fate}", hint="begin another one")
