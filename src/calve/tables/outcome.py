"""Whether a commit happened is read from the table; the catalog's answer alone proves nothing.

Here are the commits that write no manifests: names of snapshots, columns, what expires. Each
asserts what it was decided on, so an answer that was lost and comes true late does no harm twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from pyiceberg import exceptions as iceberg
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from calve.errors import NotFound, Unavailable, UnknownOutcome
from calve.tables.translate import translated

_T = TypeVar("_T")

LOOK: Final = "look at the table before trying again: the commit may have happened"
# Said by a catalog that has decided. All else may still be applied after we have looked.
REFUSALS: Final = (
    iceberg.CommitFailedException,
    iceberg.ValidationException,
    iceberg.BadRequestError,
    iceberg.UnauthorizedError,
    iceberg.ForbiddenError,
)


def commit_metadata(
    table: Table,
    updates: Sequence[TableUpdate],
    requirements: Sequence[TableRequirement],
    *,
    has_happened: Callable[[TableMetadata], bool],
) -> None:
    """Have the updates made, if the table is still as they require; `table` is then the new state.

    A refusal is raised as it came. UnknownOutcome if the answer was lost and the table does not
    have the updates, so far.
    """
    asserted = AssertTableUUID(uuid=table.metadata.table_uuid)
    try:
        table._do_commit(tuple(updates), (asserted, *requirements))  # noqa: SLF001
    except Exception as error:
        read_after(error, table.refresh)
        if has_happened(table.metadata):
            return
        if not isinstance(error, REFUSALS) and isinstance(
            translated(error), Unavailable | UnknownOutcome
        ):
            raise UnknownOutcome(
                f"the answer to a commit was lost: {said(error)}",
                hint="the table does not have it so far; look at it again before trying again",
            ) from error
        raise


def leads_to(ref: str, snapshot_id: int | None) -> AssertRefSnapshotId:
    """The requirement that a branch or tag leads to a snapshot; to none if there is to be none."""
    return AssertRefSnapshotId.model_validate({"ref": ref, "snapshot-id": snapshot_id})


def moved(metadata: TableMetadata, branch: str, snapshot_id: int) -> SetSnapshotRefUpdate:
    """The update that has a branch lead to a snapshot; what it is to keep stays as it was set."""
    ref = metadata.refs.get(branch)
    kept = ref.model_dump(by_alias=True, exclude_none=True) if ref else {"type": "branch"}
    return SetSnapshotRefUpdate.model_validate(
        {**kept, "ref-name": branch, "snapshot-id": snapshot_id}
    )


def read_after(error: Exception, read: Callable[[], _T]) -> _T:
    """What a reading after a failed commit finds; UnknownOutcome if that fails too.

    That the table is gone says enough, and so does a table in which nobody can tell any more.
    """
    try:
        return read()
    except (NotFound, UnknownOutcome):
        raise
    except Exception as unreadable:  # noqa: BLE001
        raise UnknownOutcome(
            f"the commit failed ({said(error)}), and the table cannot be read to see whether "
            f"it happened: {said(unreadable)}",
            hint=LOOK,
        ) from error


def said(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
