"""`calve table`, and the verbs of `iceberg-manager`."""

from __future__ import annotations

import click

from calve.cli.options import Call, common_options
from calve.cli.output import print_json, print_table, say
from calve.lake import Lake
from calve.model import TableName
from calve.tables.describe import TableDescription, describe_table


@click.group()
def table() -> None:
    """Look at the lake's tables."""


@table.command("list")
@common_options
def list_tables(call: Call) -> None:
    """List the lake's tables.

    \b
    Example: calve table list --data ./calve-data
    """
    with Lake(call.settings(), create=False) as lake:
        names = lake.catalog.list_tables()
    if call.as_json:
        print_json(
            [
                {"table": str(n), "tenant": n.tenant, "dataset": n.dataset, "name": n.name}
                for n in names
            ]
        )
    elif names:
        print_table(("TABLE",), [(name,) for name in names])
    else:
        say("the lake has no tables yet")


@table.command()
@click.argument("name", metavar="TABLE")
@common_options
def describe(call: Call, name: str) -> None:
    """Show a table's columns, partitioning and state.

    \b
    Example: calve table describe users
    """
    parsed = TableName.parse(name)
    with Lake(call.settings(), create=False) as lake:
        description = describe_table(parsed, lake.catalog.load_table(parsed))
    if call.as_json:
        print_json(description)
    else:
        _print(description)


def _print(description: TableDescription) -> None:
    print_table(
        ("COLUMN", "TYPE", "REQUIRED", "DOC"),
        [(c.name, c.type, "yes" if c.required else "no", c.doc) for c in description.columns],
    )
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
