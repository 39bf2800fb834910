"""`calve table`: its columns and partitioning."""

from __future__ import annotations

import click

from calve.cli.description import print_columns
from calve.cli.opened import confirm, destroying, opened
from calve.cli.options import Call, common_options
from calve.cli.output import print_json, print_table, say


@click.command("add-column")
@click.argument("table", metavar="TABLE")
@click.argument("name", metavar="COLUMN")
@click.argument("type_name", metavar="TYPE")
@click.option("--doc", metavar="TEXT", help="What the column holds.")
@common_options
def add_column(call: Call, table: str, name: str, type_name: str, doc: str | None) -> None:
    """Add a column, which is null in the rows there are; `address.city` goes inside another.

    \b
    Example: calve table add-column users email string
    """
    with opened(call) as manager:
        print_columns(call, manager.add_column(table, name, type_name, doc=doc))


@click.command("rename-column")
@click.argument("table", metavar="TABLE")
@click.argument("name", metavar="COLUMN")
@click.argument("new_name", metavar="NEW_NAME")
@common_options
def rename_column(call: Call, table: str, name: str, new_name: str) -> None:
    """Give a column another name. Old snapshots keep the old one.

    \b
    Example: calve table rename-column users name full_name
    """
    with opened(call) as manager:
        print_columns(call, manager.rename_column(table, name, new_name))


@click.command("drop-column")
@click.argument("table", metavar="TABLE")
@click.argument("name", metavar="COLUMN")
@destroying
@common_options
def drop_column(call: Call, table: str, name: str, *, dry_run: bool, yes: bool) -> None:
    """Take a column away. Old snapshots still show it; new ones never will.

    \b
    Example: calve table drop-column users email
    """
    with opened(call) as manager:
        if not dry_run:
            confirm(f"Drop the column {name} of {table}?", yes=yes)
        description = manager.drop_column(table, name, dry_run=dry_run)
    if dry_run and call.as_json:
        print_json({"table": table, "would_drop": name})
    elif dry_run:
        say(f"the column {name} would be dropped")
    else:
        print_columns(call, description)


@click.command("alter-column")
@click.argument("table", metavar="TABLE")
@click.argument("name", metavar="COLUMN")
@click.option("--type", "type_name", metavar="TYPE", help="A wider type: int to long, and so on.")
@click.option("--optional", is_flag=True, help="Let it be null.")
@click.option("--doc", metavar="TEXT", help="What the column holds.")
@common_options
def alter_column(
    call: Call, table: str, name: str, *, type_name: str | None, optional: bool, doc: str | None
) -> None:
    """Make a column's type wider, let it be null, or say what it holds.

    \b
    Example: calve table alter-column users age --type long
    """
    if type_name is None and doc is None and not optional:
        raise click.UsageError("say what to alter: --type, --optional or --doc")
    with opened(call) as manager:
        print_columns(
            call, manager.alter_column(table, name, type=type_name, optional=optional, doc=doc)
        )


@click.command("alter-partition")
@click.argument("table", metavar="TABLE")
@click.option("--add", metavar="EXPRESSION", multiple=True, help="Such as day(created).")
@click.option("--drop", metavar="EXPRESSION", multiple=True, help="One that the table has.")
@common_options
def alter_partition(call: Call, table: str, add: tuple[str, ...], drop: tuple[str, ...]) -> None:
    """Partition what is written from now on otherwise; the files there are stay as they are.

    \b
    Example: calve table alter-partition users --add "bucket(16, id)" --drop country
    """
    if not add and not drop:
        raise click.UsageError("say what to change: --add or --drop")
    with opened(call) as manager:
        description = manager.alter_partition(table, add=add, drop=drop)
    if call.as_json:
        print_json(description)
    else:
        print_table(("PARTITIONED BY",), [(each,) for each in description.partitioned_by])
