"""What a change did to a table, for those who asked for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Change:
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

    def to_dict(self) -> dict[str, Any]:
        """The change as JSON knows it."""
        return asdict(self)
