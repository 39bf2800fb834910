"""A table as plain data for those who show it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.table import Table

from calve.grid import Grid, ShownAsGrids
from calve.model import TableName
from calve.tables.types import type_name


@dataclass(frozen=True, slots=True)
class ColumnDescription:
    name: str
    type: str
    required: bool
    doc: str | None


@dataclass(frozen=True, slots=True, repr=False)
class TableDescription(ShownAsGrids):
    name: str
    location: str
    format_version: int
    columns: list[ColumnDescription]
    partitioned_by: list[str]
    sorted_by: list[str]
    snapshot_id: int | None
    snapshot_at: datetime | None
    rows: int | None
    files: int | None
    properties: dict[str, str]

    def grids(self) -> list[Grid]:
        at = self.snapshot_at
        about = {
            "location": self.location,
            "partitioned by": ", ".join(self.partitioned_by) or None,
            "sorted by": ", ".join(self.sorted_by) or None,
            "snapshot": self.snapshot_id,
            "at": at and at.isoformat(timespec="milliseconds"),
            "rows": self.rows,
            "data files": self.files,
            "format": f"v{self.format_version}",
        }
        return [self.column_grid(), Grid(("ABOUT", self.name), list(about.items()))]

    def column_grid(self) -> Grid:
        return Grid(
            ("COLUMN", "TYPE", "REQUIRED", "DOC"),
            [(c.name, c.type, "yes" if c.required else "no", c.doc) for c in self.columns],
        )


def describe_table(name: TableName, table: Table) -> TableDescription:
    schema = table.schema()
    snapshot = table.current_snapshot()
    summary = snapshot.summary if snapshot else None
    return TableDescription(
        name=str(name),
        location=table.location(),
        format_version=table.format_version,
        columns=[
            ColumnDescription(field.name, type_name(field.field_type), field.required, field.doc)
            for field in schema.fields
        ],
        partitioned_by=[
            f"{field.transform}({schema.find_column_name(field.source_id)})"
            for field in table.spec().fields
        ],
        sorted_by=[
            f"{field.transform}({schema.find_column_name(field.source_id)}) {field.direction}"
            for field in table.sort_order().fields
        ],
        snapshot_id=snapshot.snapshot_id if snapshot else None,
        snapshot_at=_time(snapshot.timestamp_ms) if snapshot else None,
        rows=_number(summary["total-records"]) if summary else 0,
        files=_number(summary["total-data-files"]) if summary else 0,
        properties=dict(table.properties),
    )


def _time(timestamp_ms: int) -> datetime:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
