"""Commits a change of data files, once, and finds out by looking whether it happened.

An exception says nothing about a commit: the table is read again and asked for the snapshot.
PyIceberg's own retry would repeat a change that was computed from rows which have changed since;
here a conflict is the caller's to resolve, who must read again. Files that were written for a
commit are deleted only when the catalog said no and the table does not have the snapshot.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import requests
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AssertTableUUID
from sqlalchemy.exc import SQLAlchemyError

from calve.errors import Conflict, UnknownOutcome

_ATTEMPTS: Final = 50
_UNCLEAR = (CommitStateUnknownException, requests.RequestException, SQLAlchemyError, OSError)


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FileSwap:
    """Data files that go and data files that come, in one snapshot."""

    removed: Sequence[DataFile] = ()
    added: Sequence[DataFile] = ()


def commit_append(table: Table, files: Sequence[DataFile], *, branch: str = MAIN_BRANCH) -> int:
    """Add data files. Others' commits in between change nothing about them: it is tried again.

    Only a schema or a partitioning that changed since the files were written is a conflict.
    """
    written_with = (table.metadata.current_schema_id, table.metadata.default_spec_id)
    for attempt in range(_ATTEMPTS):
        transaction = Transaction(table)
        producer = transaction.update_snapshot(branch=branch).fast_append()
        with producer:
            for file in files:
                producer.append_data_file(file)
        if _commit(table, transaction, producer.snapshot_id):
            return producer.snapshot_id
        moved = (table.metadata.current_schema_id, table.metadata.default_spec_id) != written_with
        if moved or attempt == _ATTEMPTS - 1:
            break
        time.sleep(random.uniform(0, min(1.0, 0.01 * 2**attempt)))  # noqa: S311
    discard(table.io, [file.file_path for file in files])
    raise _conflict()


def commit_swap(table: Table, swap: FileSwap, *, branch: str = MAIN_BRANCH) -> int:
    """Commit against the snapshot that the table object has; give the new snapshot's id.

    Raises Conflict when the branch has moved on: nothing has happened then, and the added files
    are gone. Raises UnknownOutcome when it cannot be told; then every file is left where it is.
    """
    transaction = Transaction(table)
    producer = transaction.update_snapshot(branch=branch).overwrite()
    with producer:
        for file in swap.removed:
            producer.delete_data_file(file)
        for file in swap.added:
            producer.append_data_file(file)
    if not _commit(table, transaction, producer.snapshot_id):
        discard(table.io, [file.file_path for file in swap.added])
        raise _conflict()
    return producer.snapshot_id


def _commit(table: Table, transaction: Transaction, snapshot_id: int) -> bool:
    """Whether the staged snapshot is in the table now; the table object is up to date after."""
    try:
        table._do_commit(  # noqa: SLF001
            updates=transaction._updates,  # noqa: SLF001
            requirements=(
                *transaction._requirements,  # noqa: SLF001
                AssertTableUUID(uuid=table.metadata.table_uuid),
            ),
        )
    except CommitFailedException:
        return _has_happened(table, snapshot_id)
    except _UNCLEAR as error:
        if not _has_happened(table, snapshot_id):
            raise UnknownOutcome(
                f"the answer to a commit was lost: {error}",
                hint="look at the table before trying again: the commit may still happen",
            ) from error
    return True


def _conflict() -> Conflict:
    return Conflict(
        "somebody else changed the table at the same time", hint="read it again and try again"
    )


def discard(io: FileIO, paths: Sequence[str]) -> None:
    """Delete files that nothing refers to; what cannot be deleted is left for orphan removal."""
    for path in paths:
        try:
            io.delete(path)
        except OSError:
            continue


def again_on_conflict(work: Callable[[], _T]) -> _T:
    """Do the whole work again, from reading on, while others get in between."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return work()
        except Conflict:
            continue
    return work()


def _has_happened(table: Table, snapshot_id: int) -> bool:
    try:
        table.refresh()
    except _UNCLEAR:
        return False
    return table.snapshot_by_id(snapshot_id) is not None
