"""The options that every command takes, and the settings they lead to."""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from calve.settings import LoadedSettings, Settings, hide_secrets, load_settings

_F = TypeVar("_F", bound=Callable[..., Any])

_LAKE = "The lake's directory (setting `data`)."
_OPTIONS = (
    click.option(
        "--config", metavar="FILE", type=click.Path(path_type=Path), help="The configuration file."
    ),
    click.option(
        "--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Any other setting."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    click.option("-v", "--verbose", is_flag=True, help="Log more, and show tracebacks."),
)

delimiter_option = click.option(
    "--delimiter",
    metavar="CHARACTER",
    help="What separates the cells of CSV, such as ; or tab; a comma if left out.",
)


class Call:
    """How a command was called: its settings, and how to print."""

    def __init__(
        self,
        *,
        data: str | None,
        config: Path | None,
        assignments: tuple[str, ...],
        as_json: bool,
        verbose: bool,
    ) -> None:
        self.as_json = as_json
        self.verbose = verbose
        self.config = config
        self.flags = _flags(data, assignments, verbose=verbose)

    def load(self) -> LoadedSettings:
        loaded = load_settings(config=self.config, flags=self.flags)
        hide_secrets(loaded.settings)
        return loaded

    def settings(self) -> Settings:
        """The settings for a command that does work, and so may have something to log."""
        settings = self.load().settings
        # Commands that only look at the configuration need not wait for it.
        from calve.log import configure_logs

        configure_logs(settings)
        return settings


def common_options(command: _F) -> _F:
    """Give a command the options; it receives them as one argument, `call`."""
    lake = click.option("--data", "--lake", "data", metavar="DIR", help=_LAKE)
    return _with_options(command, lake)


def row_options(command: _F) -> _F:
    """The same for a command whose `--data` are rows: the lake's directory is `--lake` alone."""
    lake = click.option("--lake", "data", metavar="DIR", help=_LAKE)
    rows = click.option(
        "--data", "rows", metavar="FILE", required=True, help="The rows; - is standard input."
    )
    return rows(_with_options(command, lake))


def _with_options(command: _F, lake: Callable[[Any], Any]) -> _F:
    @functools.wraps(command)
    def with_call(**arguments: Any) -> Any:
        names = ("data", "config", "assignments", "as_json", "verbose")
        call = Call(**{name: arguments.pop(name) for name in names})
        return command(call=call, **arguments)

    decorated: Any = with_call
    for option in reversed((lake, *_OPTIONS)):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def _flags(data: str | None, assignments: tuple[str, ...], *, verbose: bool) -> dict[str, object]:
    flags: dict[str, object] = {}
    if verbose:
        flags["log.level"] = "debug"
    if data is not None:
        flags["data"] = data
    for assignment in assignments:
        name, found, value = assignment.partition("=")
        if not found:
            raise click.UsageError(
                f"--set takes KEY=VALUE, such as wal.sync_mode=periodic, not {assignment!r}"
            )
        flags[name.strip()] = value
    return flags


def split_names(text: str) -> list[str]:
    """`name,age`; a name with a comma in it goes in double quotes."""
    return [part.strip() for part in next(csv.reader([text], skipinitialspace=True))]
