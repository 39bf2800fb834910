"""The one commit path: data files added and removed on a branch, in one snapshot, at most once.

An exception says nothing about a commit. After any, the table is read again, and the snapshot's id
in it says that the commit happened. Files are deleted only when the catalog refused the commit and
the table does not have it; what is undecided stays for orphan removal.

Each attempt asserts the branch's head that it was based on, so of several attempts on one head at
most one is applied, however late. What is not promised: that a commit is recognised whose snapshot
somebody expired before it was looked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from pyiceberg import exceptions as iceberg
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType

from calve.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    SchemaConflict,
    Unavailable,
    UnknownOutcome,
)
from calve.tables.expiry import clear_away
from calve.tables.outcome import LOOK, REFUSALS, read_after, said
from calve.tables.retry import CommitRetry
from calve.tables.staging import Edit, Staged, require_writable, stage
from calve.tables.translate import translating

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Committed:
    """The snapshot that holds the change, and the table as it was seen with it."""

    snapshot_id: int
    table: Table


class TableCommit:
    """One change on its way into a table: tried as often as its caller wants, applied once."""

    def __init__(
        self, table: Table, *, branch: str | None = None, retry: CommitRetry | None = None
    ) -> None:
        require_writable(table)
        self._retry = retry or CommitRetry()
        self.table = table
        self.branch = branch or MAIN_BRANCH
        self._require_branch()
        self._sent: list[int] = []
        self._undecided: set[int] = set()
        self._is_stale = False

    @property
    def head(self) -> int | None:
        """The newest snapshot of the branch, as the table was last read."""
        ref = self.table.metadata.refs.get(self.branch)
        return ref.snapshot_id if ref else None

    @property
    def is_undecided(self) -> bool:
        """Whether an attempt was made of which nobody knows yet how it ended."""
        return bool(self._undecided)

    def attempt(self, edit: Edit) -> Committed:
        """Commit on top of the head that was last read.

        Conflict if the table has moved on, Unavailable if the answer was lost and the table does
        not have the snapshot: `reload`, decide again, and attempt again. No change is made twice.
        """
        with translating():
            staged = stage(self.table, edit, self.branch)
            self._sent.append(staged.snapshot_id)
            self._undecided.add(staged.snapshot_id)
            try:
                self.table._do_commit(staged.updates, staged.requirements)  # noqa: SLF001
            except Exception as error:
                if found := read_after(error, self.reload):
                    return found
                self._settle(staged, error)
                raise
            self._undecided.clear()
            return Committed(staged.snapshot_id, self.table)

    def reload(self) -> Committed | None:
        """Read the table again; what an earlier attempt has committed after all, if one has."""
        with translating():
            loaded = self.table.catalog.load_table(self.table.name())
        if loaded.metadata.table_uuid != self.table.metadata.table_uuid:
            raise NotFound(
                "the table was dropped and another one made under its name",
                hint="look at the new one, then do the change again",
            )
        self.table = loaded
        known = {each.snapshot_id for each in loaded.metadata.snapshots}
        for snapshot_id in self._sent:
            if snapshot_id in known:
                self._undecided.clear()
                return Committed(snapshot_id, loaded)
        return None

    def append(self, edit: Edit) -> Committed:
        """Commit what does not depend on the rest of the table, on whatever head there is."""
        assert not edit.removed
        return self.repeat(lambda: self.attempt(edit))

    def repeat(self, attempt: Callable[[], Committed]) -> Committed:
        """Attempt until it succeeds or an earlier attempt turns out to have.

        Between attempts the table is read again. Its `commit.retry.*` properties bound it, or the
        `retry` that was given: after that a Conflict, or an UnknownOutcome where one of the
        attempts may still be applied.
        """

        def once() -> Committed:
            if self._is_stale and (found := self.reload()):
                return found
            self._is_stale = True
            self._require_branch()
            return attempt()

        try:
            return self._retry(once, self.table.properties, _may_pass)
        except (Conflict, Unavailable) as error:
            if not self.is_undecided:
                raise
            raise UnknownOutcome(error.message, hint=LOOK, context=error.context) from error

    def discard(self, files: Iterable[str]) -> None:
        """Delete files that were written for this change, if it is certain that it failed."""
        if not self._undecided:
            clear_away(self.table.io, files)
            return
        _LOG.warning(
            "the outcome of a commit is unknown: its files are left", extra={"files": [*files]}
        )

    def _settle(self, staged: Staged, error: Exception) -> None:
        """The table was read after the error, and does not have the snapshot."""
        if isinstance(error, REFUSALS):
            self._undecided.discard(staged.snapshot_id)
            clear_away(self.table.io, staged.metadata_files)
        elif isinstance(error, iceberg.CommitStateUnknownException):
            raise Unavailable(
                f"the answer to a commit was lost: {said(error)}",
                hint="the table does not have it so far; try again",
            ) from error

    def _require_branch(self) -> None:
        ref = self.table.metadata.refs.get(self.branch)
        if ref is None and self.branch != MAIN_BRANCH:
            raise NotFound(
                f"there is no branch {self.branch!r}",
                hint="`calve branch list` shows those there are; `calve branch create` makes one",
            )
        if ref is not None and ref.snapshot_ref_type is not SnapshotRefType.BRANCH:
            raise InvalidRequest(
                f"{self.branch!r} is a tag, which stays what it is", hint="name a branch"
            )


def _may_pass(error: BaseException) -> bool:
    # The same files will not fit the next time either.
    return isinstance(error, Conflict | Unavailable) and not isinstance(error, SchemaConflict)
