"""The one commit path: data files added and removed on a branch, in one snapshot, at most once.

An exception says nothing about a commit. After any, the table is read again, and the snapshot's id
in it says that the commit happened. It did not, and never will, when the table does not have it and
either the catalog has refused it or the table has moved on. Files are deleted only then; what is
undecided stays for orphan removal.

Each attempt asserts the branch's head that it was based on, so of several attempts on one head at
most one is applied, however late. What is not promised: that a commit is recognised whose snapshot
somebody expired before it was looked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from pyiceberg import exceptions as iceberg
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV1
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType

from calve.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    SchemaConflict,
    Unavailable,
    UnknownOutcome,
)
from calve.tables.expiry import clear_away, manifest_paths
from calve.tables.outcome import LOOK, REFUSALS, read_after, said
from calve.tables.retry import CommitRetry
from calve.tables.staging import Edit, Staged, require_writable, stage
from calve.tables.translate import translating

_T = TypeVar("_T")
_LOG: Final = logging.getLogger(__name__)
# All else may also mean that the table was not what the attempt took it for.
_CLEAR: Final = (
    iceberg.CommitFailedException,
    iceberg.UnauthorizedError,
    iceberg.ForbiddenError,
)


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
        self._undecided: dict[int, Staged] = {}
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
            staged = self._staged(edit)
            self._sent.append(staged.snapshot_id)
            self._undecided[staged.snapshot_id] = staged
            try:
                self.table._do_commit(staged.updates, staged.requirements)  # noqa: SLF001
            except Exception as error:
                if found := read_after(error, self.reload):
                    return found
                self._settle(staged, error)
                raise
            return self._done(staged.snapshot_id)

    def reload(self) -> Committed | None:
        """Read the table again; what an earlier attempt has committed after all, if one has."""
        with translating():
            loaded = self.table.catalog.load_table(self.table.name())
        if loaded.metadata.table_uuid != self.table.metadata.table_uuid:
            raise NotFound(
                "the table was dropped and another one made under its name",
                hint="`calve table describe` shows the new one; do the change again if it is meant",
            )
        self.table = loaded
        known = {each.snapshot_id for each in loaded.metadata.snapshots}
        for snapshot_id in self._sent:
            if snapshot_id in known:
                return self._done(snapshot_id)
        self._give_up_past()
        return None

    def append(self, edit: Edit, *, require: Callable[[Table], None] | None = None) -> Committed:
        """Commit what does not depend on the rest of the table, on whatever head there is.

        `require` looks at the table before each attempt, and refuses it with an error.
        """
        assert not edit.removed

        def attempt() -> Committed:
            if require is not None:
                require(self.table)
            return self.attempt(edit)

        return self.repeat(attempt)

    def read_again(self) -> None:
        """Have the table read before the next attempt: somebody has probably changed it."""
        self._is_stale = True

    def repeat(self, attempt: Callable[[], _T]) -> _T | Committed:
        """Attempt until it succeeds or an earlier attempt turns out to have.

        Between attempts the table is read again. Its `commit.retry.*` properties bound it, or the
        `retry` that was given: after that a Conflict, or an UnknownOutcome where one of the
        attempts may still be applied.
        """

        def once() -> _T | Committed:
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

    def _done(self, snapshot_id: int) -> Committed:
        self._undecided.pop(snapshot_id, None)
        self._give_up_past()
        self._undecided.clear()
        return Committed(snapshot_id, self.table)

    def _staged(self, edit: Edit) -> Staged:
        """Write the edit's manifests on top of the head that was last read."""
        head = self.head
        try:
            return stage(self.table, edit, self.branch)
        except FileNotFoundError as error:
            # What an old head consists of may have been expired since it was read.
            if self.reload() is None and self.head != head:
                raise Conflict(
                    "the table has moved on", hint="load the table and decide again"
                ) from error
            raise

    def _settle(self, staged: Staged, error: Exception) -> None:
        """The table was read after the error, and does not have the snapshot."""
        if isinstance(error, REFUSALS):
            self._give_up(staged)
        if isinstance(error, _CLEAR):
            return
        if self._is_past(staged):
            raise Conflict(
                f"the table has moved on: {said(error)}", hint="load the table and decide again"
            ) from error
        if isinstance(error, iceberg.CommitStateUnknownException):
            raise Unavailable(
                f"the answer to a commit was lost: {said(error)}",
                hint="the table does not have it so far; try again",
            ) from error

    def _is_past(self, staged: Staged) -> bool:
        """Whether the table, as last read, would refuse the attempt now and for ever.

        A snapshot needs a higher sequence number than the table's last, and one without a parent
        that its branch does not exist. Snapshots of format 1 have no such number.
        """
        metadata = self.table.metadata
        if isinstance(metadata, TableMetadataV1):
            return False
        if staged.parent_id is None and self.head is None:
            return False
        return metadata.last_sequence_number >= staged.sequence_number

    def _give_up_past(self) -> None:
        for staged in [each for each in self._undecided.values() if self._is_past(each)]:
            self._give_up(staged)

    def _give_up(self, staged: Staged) -> None:
        """Delete the manifests of an attempt that is not in the table and never will be.

        It may have been, if its snapshot has expired since: then later ones refer to its manifests.
        """
        if self._undecided.pop(staged.snapshot_id, None) is None:
            return
        io = self.table.io
        later = [
            each
            for each in self.table.metadata.snapshots
            if (each.sequence_number or 0) >= staged.sequence_number
        ]
        try:
            needed = {path for each in later for path in manifest_paths(io, each)}
        except OSError as error:
            _LOG.warning("manifests are left over", extra={"reason": said(error)})
            return
        clear_away(io, [each for each in staged.metadata_files if each not in needed])

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
