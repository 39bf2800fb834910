"""A table's description, printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from calve.cli.options import Call
from calve.cli.output import print_grid, print_json

if TYPE_CHECKING:
    from calve.tables.describe import TableDescription


def print_description(call: Call, description: TableDescription) -> None:
    """All of it; as JSON if that was asked for."""
    print_columns(call, description)
    if call.as_json:
        return
    for grid in description.grids()[1:]:
        click.echo()
        print_grid(grid)


def print_columns(call: Call, description: TableDescription) -> None:
    """The columns; as JSON, everything."""
    if call.as_json:
        print_json(description)
        return
    print_grid(description.column_grid())
