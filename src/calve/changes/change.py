"""What a change did to a table, for those who asked for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from calve.grid import Grid, ShownAsGrids


@dataclass(frozen=True, slots=True)
class Change(ShownAsGrids):
    """One operation and its effect. None stands for a count that the engine does not tell.

    `snapshot_id` is None when nothing had to change, so that there is no new snapshot.
    """

    table: str
    operation: str
    branch: str
    snapshot_id: int | None
    inserted_rows: int | None = 0
    updated_rows: int | None = 0
    deleted_rows: int | None = 0
    added_files: int = 0
    deleted_files: int = 0

    def __str__(self) -> str:
        counts = (
            (self.inserted_rows, "inserted"),
            (self.updated_rows, "updated"),
            (self.deleted_rows, "deleted"),
        )
        said = [f"{n:,} row{'' if n == 1 else 's'} {what}" for n, what in counts if n]
        if self.snapshot_id is None:
            return f"{self.table}: nothing to change"
        where = f"snapshot {self.snapshot_id}"
        where += "" if self.branch == "main" else f" of branch {self.branch}"
        return f"{self.table}: {', '.join(said) or 'changed'} ({where})"

    def grids(self) -> list[Grid]:
        counts = (self.inserted_rows, self.updated_rows, self.deleted_rows)
        columns = ("TABLE", "OPERATION", "BRANCH", "SNAPSHOT", "INSERTED", "UPDATED", "DELETED")
        cells = (self.table, self.operation, self.branch, self.snapshot_id)
        return [Grid(columns, [(*cells, *(None if n is None else f"{n:,}" for n in counts))])]

    def to_dict(self) -> dict[str, Any]:
        """The change as JSON knows it."""
        return asdict(self)
