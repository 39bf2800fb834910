"""`calve branch` and `calve tag`: names for snapshots, made, listed and forgotten alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import click

from calve.cli.opened import confirm, destroying, opened
from calve.cli.options import Call, common_options
from calve.cli.output import print_grid, print_json, say
from calve.manager import IcebergManager
from calve.tables.references import Reference, References


class _Kind(NamedTuple):
    """What is different about the two."""

    noun: str
    plural: str
    example: str
    begins: str
    where: str
    stays: str
    create: Callable[..., Reference]
    list_all: Callable[..., References]
    delete: Callable[..., Reference]


_BRANCH: Final = _Kind(
    noun="branch",
    plural="branches",
    example="audit",
    begins="Begin a branch, which `insert --branch` and the like write to.",
    where="Where it begins; the current one.",
    stays="The snapshots it led to stay until they expire.",
    create=IcebergManager.create_branch,
    list_all=IcebergManager.list_branches,
    delete=IcebergManager.delete_branch,
)
_TAG: Final = _Kind(
    noun="tag",
    plural="tags",
    example="before_cleanup",
    begins="Name a snapshot, which is then kept.",
    where="Which one; the current one.",
    stays="The snapshot stays until it expires.",
    create=IcebergManager.create_tag,
    list_all=IcebergManager.list_tags,
    delete=IcebergManager.delete_tag,
)


def _create(kind: _Kind) -> click.Command:
    @click.command("create", help=_help(kind, kind.begins, f"create users {kind.example}"))
    @click.argument("table", metavar="TABLE")
    @click.argument("name", metavar=kind.noun.upper())
    @click.option("--snapshot", type=int, metavar="ID", help=kind.where)
    @common_options
    def command(call: Call, table: str, name: str, snapshot: int | None) -> None:
        with opened(call) as manager:
            made = kind.create(manager, table, name, snapshot_id=snapshot)
        if call.as_json:
            print_json(made)
        else:
            say(f"{kind.noun} {made.name} is at snapshot {made.snapshot_id}")

    return command


def _list(kind: _Kind) -> click.Command:
    @click.command("list", help=_help(kind, f"List a table's {kind.plural}.", "list users"))
    @click.argument("table", metavar="TABLE")
    @common_options
    def command(call: Call, table: str) -> None:
        with opened(call) as manager:
            found = kind.list_all(manager, table)
        if call.as_json:
            print_json(found)
        elif found:
            for grid in found.grids():
                print_grid(grid)
        else:
            say(f"the table has no {kind.noun} yet")

    return command


def _delete(kind: _Kind) -> click.Command:
    about = f"Forget a {kind.noun}. {kind.stays}"

    @click.command("delete", help=_help(kind, about, f"delete users {kind.example}"))
    @click.argument("table", metavar="TABLE")
    @click.argument("name", metavar=kind.noun.upper())
    @destroying
    @common_options
    def command(call: Call, table: str, name: str, *, dry_run: bool, yes: bool) -> None:
        with opened(call) as manager:
            if not dry_run:
                confirm(f"Forget the {kind.noun} {name} of {table}?", yes=yes)
            gone = kind.delete(manager, table, name, dry_run=dry_run)
        if call.as_json:
            print_json(gone)
        else:
            say(f"{kind.noun} {gone.name} {'would be' if dry_run else 'is'} forgotten")

    return command


def _help(kind: _Kind, about: str, example: str) -> str:
    return f"{about}\n\n\b\nExample: calve {kind.noun} {example}"


create_branch, list_branches, delete_branch = _create(_BRANCH), _list(_BRANCH), _delete(_BRANCH)
create_tag, list_tags, delete_tag = _create(_TAG), _list(_TAG), _delete(_TAG)


@click.command("publish")
@click.argument("table", metavar="TABLE")
@click.argument("name", metavar="BRANCH")
@common_options
def publish_branch(call: Call, table: str, name: str) -> None:
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
