"""A table's description, printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from calve.cli.options import Call
from calve.cli.output import print_json, print_table

if TYPE_CHECKING:
    from calve.tables.describe import TableDescription


def print_description(call: Call, description: TableDescription) -> None:
    """All of it; as JSON if that was asked for."""
    print_columns(call, description)
    if call.as_json:
        return
    click.echo()
    shown = {
        "location": description.location,
        "partitioned by": ", ".join(description.partitioned_by) or None,
        "sorted by": ", ".join(description.sorted_by) or None,
        "snapshot": description.snapshot_id,
        "at": description.snapshot_at
        and description.snapshot_at.isoformat(timespec="milliseconds"),
        "rows": description.rows,
        "data files": description.files,
        "format": f"v{description.format_version}",
    }
    print_table(("ABOUT", str(description.name)), list(shown.items()))


def print_columns(call: Call, description: TableDescription) -> None:
    """The columns; as JSON, everything."""
    if call.as_json:
        print_json(description)
        return
    print_table(
        ("COLUMN", "TYPE", "REQUIRED", "DOC"),
        [(c.name, c.type, "yes" if c.required else "no", c.doc) for c in description.columns],
    )
