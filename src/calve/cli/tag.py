"""`calve tag`: names for snapshots."""

from __future__ import annotations

import click

from calve.cli.opened import confirm, destroying, opened
from calve.cli.options import Call, common_options
from calve.cli.references import print_forgotten, print_reference, print_references


@click.command()
@click.argument("table", metavar="TABLE")
@click.argument("name", metavar="TAG")
@click.option("--snapshot", type=int, metavar="ID", help="Which one; the current one.")
@common_options
def create(call: Call, table: str, name: str, snapshot: int | None) -> None:
    """Name a snapshot, which is then kept.

    \b
    Example: calve tag create users before_cleanup
    """
    with opened(call) as manager:
        print_reference(call, manager.create_tag(table, name, snapshot_id=snapshot))


@click.command("list")
@click.argument("table", metavar="TABLE")
@common_options
def list_all(call: Call, table: str) -> None:
    """List a table's tags.

    \b
    Example: calve tag list users
    """
    with opened(call) as manager:
        print_references(call, manager.list_tags(table), none="the table has no tag yet")


@click.command()
@click.argument("table", metavar="TABLE")
@click.argument("name", metavar="TAG")
@destroying
@common_options
def delete(call: Call, table: str, name: str, *, dry_run: bool, yes: bool) -> None:
    """Forget a tag. The snapshot stays until it expires.

    \b
    Example: calve tag delete users before_cleanup
    """
    with opened(call) as manager:
        if not dry_run:
            confirm(f"Forget the tag {name} of {table}?", yes=yes)
        gone = manager.delete_tag(table, name, dry_run=dry_run)
    print_forgotten(call, gone, dry_run=dry_run)
