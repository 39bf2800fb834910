"""The one commit path: data files added and removed on a branch, in one snapshot, at most once.

An exception says nothing about a commit. After any, the table is read again, and its history says
what became of each attempt (`attempts`). Files are deleted only when it proves that the attempt
failed, or the catalog has refused it and the table does not have it; what is undecided stays for
orphan removal.

Each attempt asserts the branch's head that it was based on, so of several attempts on one head at
most one is applied, however late. Where the snapshots that would tell have expired, nothing is
tried again: UnknownOutcome.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from pyiceberg import exceptions as iceberg
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType

from calve.errors import (
    CalveError,
    Conflict,
    InvalidRequest,
    NotFound,
    SchemaConflict,
    Unavailable,
    UnknownOutcome,
)
from calve.tables.attempts import Attempt, Fate
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
# On an older reading nothing is sent: so many commits may have come since that the snapshots which
# tell what became of an attempt have made room already.
FRESH_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Committed:
    """The snapshot that holds the change, the table as it was seen with it, and what was asked."""

    snapshot_id: int
    table: Table
    edit: Edit | None = None


class TableCommit:
    """One change on its way into a table: tried as often as its caller wants, applied once.

    With `is_told_otherwise` the caller can tell from the table itself whether the change is in it,
    and decides before each attempt; so nothing is refused because snapshots have expired.
    """

    def __init__(
        self,
        table: Table,
        *,
        branch: str | None = None,
        retry: CommitRetry | None = None,
        is_told_otherwise: bool = False,
    ) -> None:
        require_writable(table)
        self._retry = retry or CommitRetry()
        self._is_told_otherwise = is_told_otherwise
        self.table = table
        self._read_at = time.monotonic()
        self.branch = branch or MAIN_BRANCH
        self._require_branch()
        self.done: Committed | None = None
        self._sent: list[Attempt] = []
        self._undecided: dict[int, Attempt] = {}
        self._is_stale = False

    @property
    def head(self) -> int | None:
        """The newest snapshot of the branch, as the table was last read."""
        ref = self.table.metadata.refs.get(self.branch)
        return ref.snapshot_id if ref else None

    @property
    def is_undecided(self) -> bool:
        """Whether an attempt was made of which nobody knows yet how it ended."""
        return self.done is None and bool(self._undecided)

    @property
    def held_files(self) -> set[str]:
        """The data files that the table has or may get from this change: not to be deleted."""
        held = {path for each in self._undecided.values() for path in each.files}
        if self.done is not None and self.done.edit is not None:
            held.update(file.file_path for file in self.done.edit.added)
        return held

    def attempt(self, edit: Edit) -> Committed:
        """Commit on top of the head that was last read; what was committed already is not again.

        Conflict if the table has moved on, Unavailable if the answer was lost and the table does
        not have the snapshot: `reload`, decide again, and attempt again. No change is made twice.
        """
        if self.done is not None:
            return self.done
        with translating():
            self._require_fresh()
            attempt = Attempt(edit, self.branch, self._staged(edit))
            self._sent.append(attempt)
            self._undecided[attempt.snapshot_id] = attempt
            try:
                self.table._do_commit(  # noqa: SLF001
                    attempt.staged.updates, attempt.staged.requirements
                )
            except Exception as error:
                if found := read_after(error, self.reload):
                    return found
                self._settle(attempt, error)
                raise
            return self._finish(attempt)

    def reload(self) -> Committed | None:
        """Read the table again; what an earlier attempt has committed after all, if one has.

        UnknownOutcome where the snapshots that would tell have expired.
        """
        if self.done is not None:
            return self.done
        read_at = time.monotonic()
        with translating():
            loaded = self.table.catalog.load_table(self.table.name())
            if loaded.metadata.table_uuid != self.table.metadata.table_uuid:
                raise NotFound(
                    "the table was dropped and another one made under its name",
                    hint="`calve table describe` shows the new one; do the change again if it is "
                    "meant",
                )
            self.table, self._read_at = loaded, read_at
            return self._found()

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
            is_stale = self._is_stale or self._is_old() or self.is_undecided
            if is_stale and (found := self.reload()):
                return found
            self._is_stale = True
            self._require_branch()
            return attempt()

        if self.done is not None:
            return self.done
        try:
            return self._retry(once, self.table.properties, _may_pass)
        except (Conflict, Unavailable) as error:
            if not self.is_undecided:
                raise
            raise UnknownOutcome(error.message, hint=LOOK, context=error.context) from error

    def discard(self, files: Iterable[str]) -> None:
        """Delete files that were written for this change, but those the table has or may get."""
        held, listed = self.held_files, list(files)
        if self.is_undecided and not held.isdisjoint(listed):
            _LOG.warning(
                "the outcome of a commit is unknown: its files are left", extra={"files": listed}
            )
        clear_away(self.table.io, [each for each in listed if each not in held])

    def _found(self) -> Committed | None:
        """What the table, as it was just read, says of all attempts that were sent."""
        known = {each.snapshot_id for each in self.table.metadata.snapshots}
        for attempt in self._sent:
            if attempt.snapshot_id in known:
                return self._finish(attempt)
        untold: Attempt | None = None
        for attempt in list(self._undecided.values()):
            match attempt.fate(self.table):
                case Fate.APPLIED:
                    return self._finish(attempt)
                case Fate.FAILED:
                    self._give_up(attempt)
                case Fate.UNTOLD:
                    untold = attempt
        if untold is not None and not self._is_told_otherwise:
            raise _untold(untold)
        return None

    def _is_old(self) -> bool:
        age_seconds = time.monotonic() - self._read_at
        return age_seconds > FRESH_SECONDS and not self._is_told_otherwise

    def _require_fresh(self) -> None:
        """Look again at what was read a while ago; Conflict if it has changed."""
        before = self.table.metadata_location
        if self._is_old() and (self.reload() or self.table.metadata_location != before):
            raise _moved_on()

    def _finish(self, attempt: Attempt) -> Committed:
        """The table has the change, which is noted before anything else can fail."""
        self.done = Committed(attempt.snapshot_id, self.table, attempt.edit)
        self._undecided.pop(attempt.snapshot_id, None)
        for other in list(self._undecided.values()):
            if other.known_fate(self.table.metadata) is Fate.FAILED:
                self._give_up(other)
        return self.done

    def _staged(self, edit: Edit) -> Staged:
        """Write the edit's manifests on top of the head that was last read."""
        head = self.head
        try:
            return stage(self.table, edit, self.branch)
        except FileNotFoundError as error:
            # What an old head consists of may have been expired since it was read.
            if self.reload() is not None or self.head != head:
                raise _moved_on() from error
            raise

    def _settle(self, attempt: Attempt, error: Exception) -> None:
        """The table was read after the error, and does not have the snapshot."""
        has_failed = attempt.snapshot_id not in self._undecided
        if isinstance(error, REFUSALS):
            self._give_up(attempt)
        if isinstance(error, _CLEAR):
            return
        if has_failed:
            raise _moved_on(f": {said(error)}") from error
        if isinstance(error, iceberg.CommitStateUnknownException):
            raise Unavailable(
                f"the answer to a commit was lost: {said(error)}",
                hint="the table does not have it so far; try again",
            ) from error

    def _give_up(self, attempt: Attempt) -> None:
        """Delete the manifests of an attempt that is not in the table and never will be.

        None that a later snapshot refers to: whoever is wrong about the attempt does no harm.
        """
        if self._undecided.pop(attempt.snapshot_id, None) is None:
            return
        io, staged = self.table.io, attempt.staged
        later = [
            each
            for each in self.table.metadata.snapshots
            if (each.sequence_number or 0) >= staged.sequence_number
        ]
        try:
            with translating():
                needed = {path for each in later for path in manifest_paths(io, each)}
        except (CalveError, OSError, ValueError) as error:
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


def _moved_on(why: str = "") -> Conflict:
    return Conflict(f"the table has moved on{why}", hint="load the table and decide again")


def _untold(attempt: Attempt) -> UnknownOutcome:
    operation = attempt.edit.summary.get("calve.operation")
    named = f" ({operation}, with which its files' names begin)" if operation else ""
    return UnknownOutcome(
        f"nobody can tell whether a commit happened{named}: its answer was lost, and the snapshots "
        "that would tell have expired since",
        hint="look for its rows in the table before making the change again; its files are left, "
        "and orphan removal deletes them if they are nobody's",
    )
