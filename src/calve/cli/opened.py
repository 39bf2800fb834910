"""The lake that a command works on, and how it asks before it destroys something."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from calve.cli.options import Call
from calve.cli.output import say
from calve.connections import Connections
from calve.settings import environment_server

if TYPE_CHECKING:
    from calve.manager import IcebergManager

_F = TypeVar("_F", bound=Callable[..., Any])


@contextmanager
def opened(call: Call, *, create: bool = False) -> Iterator[IcebergManager]:
    """The tables of the lake; one that is not there yet is an error, unless `create`."""
    # Listing tables need not wait for it.
    from calve.manager import IcebergManager

    settings = call.settings()
    if environment_server() is not None:
        say(f"this works on the lake at {settings.data}: CALVE_SERVER is for topics and SQL")
    with Connections(settings, create=create) as connections:
        yield IcebergManager(connections)


def destroying(command: _F) -> _F:
    """Give a command `--dry-run` and `--yes`."""
    decorated: Any = command
    for option in (
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing."),
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def confirm(question: str, *, yes: bool) -> None:
    """Ask whoever sits at the terminal; a script must have said --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Say --yes, as there is nobody to ask.")
    click.confirm(question, abort=True, err=True)
