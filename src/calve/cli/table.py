"""`calve table`: tables themselves; also verbs of `iceberg-manager`."""

from __future__ import annotations

import click

from calve.cli.description import print_description
from calve.cli.opened import confirm, destroying, opened
from calve.cli.options import Call, common_options, delimiter_option
from calve.cli.output import print_json, print_table, say
from calve.cli.removal import print_removal
from calve.connections import Connections
from calve.model import TableName

_FORCE = click.option("--force", is_flag=True, help="Also if a topic feeds the table.")


@click.command("list")
@common_options
def list_tables(call: Call) -> None:
    """List the lake's tables.

    \b
    Example: calve table list --data ./calve-data
    """
    with Connections(call.settings(), create=False) as connections:
        names = connections.catalog.list_tables()
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


@click.command()
@click.argument("name", metavar="TABLE")
@common_options
def describe(call: Call, name: str) -> None:
    """Show a table's columns, partitioning and state.

    \b
    Example: calve table describe users
    """
    with opened(call) as manager:
        print_description(call, manager.describe_table(name))


@click.command()
@click.argument("name", metavar="TABLE")
@click.option("--schema", metavar="FILE", help="A JSON file with the columns; - is standard input.")
@click.option("--from-data", metavar="FILE", help="Infer the columns from a file with rows.")
@delimiter_option
@click.option("--partition-by", metavar="EXPRESSION", multiple=True, help="Such as day(created).")
@click.option("--sort-by", metavar="EXPRESSION", multiple=True, help="Such as 'id desc'.")
@click.option("--property", "properties", metavar="KEY=VALUE", multiple=True, help="A property.")
@common_options
def create(
    call: Call,
    name: str,
    schema: str | None,
    from_data: str | None,
    delimiter: str | None,
    partition_by: tuple[str, ...],
    sort_by: tuple[str, ...],
    properties: tuple[str, ...],
) -> None:
    """Make a table, with the columns of a JSON file or of data; the lake too, if it is new.

    \b
    Example: calve table create users --schema schema.json
    Example: calve table create users --from-data users.csv --partition-by country
    """
    if (schema is None) == (from_data is None):
        both = ", not both" if schema is not None else ""
        raise click.UsageError(f"name the columns: --schema FILE, or --from-data FILE{both}")
    if schema is not None and delimiter is not None:
        raise click.UsageError("--delimiter separates the cells of --from-data FILE")
    from calve.tables.inputs import infer_schema
    from calve.tables.schemas import define_table

    # All that can be wrong is found before a lake is made for it.
    TableName.parse(name)
    definition = define_table(
        infer_schema(from_data, delimiter=delimiter) if schema is None else schema,
        partition_by=partition_by,
        sort_by=sort_by,
        properties=dict(_assignment(text) for text in properties),
    )
    with opened(call, create=True) as manager:
        description = manager.create_table(name, definition)
    print_description(call, description)


@click.command()
@click.argument("name", metavar="TABLE")
@click.argument("new_name", metavar="NEW_NAME")
@_FORCE
@common_options
def rename(call: Call, name: str, new_name: str, *, force: bool) -> None:
    """Give a table another name. Its files stay where they are.

    \b
    Example: calve table rename users people
    """
    with opened(call) as manager:
        print_description(call, manager.rename_table(name, new_name, force=force))


@click.command()
@click.argument("name", metavar="TABLE")
@click.option("--purge", is_flag=True, help="Delete its files too.")
@_FORCE
@destroying
@common_options
def drop(call: Call, name: str, *, purge: bool, force: bool, dry_run: bool, yes: bool) -> None:
    """Take a table out of the lake. Its files stay, unless --purge.

    \b
    Example: calve table drop users --purge --dry-run
    """
    with opened(call) as manager:
        if not dry_run:
            manager.drop_table(name, dry_run=True, force=force)
            what = "and delete all its files" if purge else "and keep its files"
            confirm(f"Drop the table {name} {what}?", yes=yes)
        removal = manager.drop_table(name, purge=purge, dry_run=dry_run, force=force)
    if purge or call.as_json:
        print_removal(call, removal)
    if not call.as_json:
        say(f"the table {name} {'would be' if dry_run else 'is'} dropped")


def _assignment(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found:
        raise click.UsageError(f"--property takes KEY=VALUE, such as owner=me, not {text!r}")
    return key, value
