"""`calve branch`: write to a table without anybody seeing it, then publish."""

from __future__ import annotations

import click

from calve.cli.opened import confirm, destroying, opened
from calve.cli.options import Call, common_options
from calve.cli.output import print_json, say
from calve.cli.references import print_forgotten, print_reference, print_references


@click.command()
@click.argument("table", metavar="TABLE")
@click.argument("name", metavar="BRANCH")
@click.option("--snapshot", type=int, metavar="ID", help="Where it begins; the current one.")
@common_options
def create(call: Call, table: str, name: str, snapshot: int | None) -> None:
    """Begin a branch, which `insert --branch` and the like write to.

    \b
    Example: calve branch create users audit
    """
    with opened(call) as manager:
        print_reference(call, manager.create_branch(table, name, snapshot_id=snapshot))


@click.command("list")
@click.argument("table", metavar="TABLE")
@common_options
def list_all(call: Call, table: str) -> None:
    """List a table's branches.

    \b
    Example: calve branch list users
    """
    with opened(call) as manager:
        print_references(call, manager.list_branches(table), none="the table has no branch yet")


@click.command()
@click.argument("table", metavar="TABLE")
@click.argument("name", metavar="BRANCH")
@destroying
@common_options
def delete(call: Call, table: str, name: str, *, dry_run: bool, yes: bool) -> None:
    """Forget a branch. The snapshots it led to stay until they expire.

    \b
    Example: calve branch delete users audit
    """
    with opened(call) as manager:
        if not dry_run:
            confirm(f"Forget the branch {name} of {table}?", yes=yes)
        gone = manager.delete_branch(table, name, dry_run=dry_run)
    print_forgotten(call, gone, dry_run=dry_run)


@click.command()
@click.argument("table", metavar="TABLE")
@click.argument("name", metavar="BRANCH")
@common_options
def publish(call: Call, table: str, name: str) -> None:
    """Make main what the branch is; refused when main has moved since the branch began.

    \b
    Example: calve branch publish users audit
    """
    with opened(call) as manager:
        now = manager.publish_branch(table, name)
    if call.as_json:
        print_json(now)
    else:
        say(f"main of {table} is at snapshot {now.id}, as the branch {name} is")
