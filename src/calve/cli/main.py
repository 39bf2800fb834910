"""The two programs, `calve` and `iceberg-manager`: which command lives where, and how they end.

Only click is loaded until a command is chosen, so that `--help` answers at once.
"""

from __future__ import annotations

import errno
import importlib
import signal
import sys
from typing import Final, NamedTuple, NoReturn

import click

from calve import __version__
from calve.errors import EXIT_INTERRUPTED, EXIT_UNEXPECTED, CalveError, Unavailable


class Entry(NamedTuple):
    """Where a command lives, and the line that help shows for it."""

    module: str
    attribute: str
    summary: str


CALVE: Final = {
    "config": Entry("config", "config", "Write, show and check the configuration."),
    "doctor": Entry("doctor", "doctor", "Check everything that Calve needs on this machine."),
    "setup": Entry("setup", "setup", "Fetch what the installed parts need, once."),
    "table": Entry("table", "table", "Look at the lake's tables."),
    "wal": Entry("wal", "wal", "Look at the write-ahead log, verify and repair it."),
}
ICEBERG_MANAGER: Final = {
    "describe": Entry("table", "describe", "Show a table's columns, partitioning and state."),
    "list": Entry("table", "list_tables", "List the lake's tables."),
}


class LazyGroup(click.Group):
    """A group that knows its commands' names and summaries, and loads the one that is called."""

    def __init__(self, entries: dict[str, Entry], name: str, **attributes: object) -> None:
        super().__init__(name=name, no_args_is_help=True, **attributes)  # type: ignore[arg-type]
        self._entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"calve.cli.{entry.module}")
        command = getattr(module, entry.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self._entries[name].summary) for name in sorted(self._entries)]
            )


_CALVE_HELP: Final = """\
Turns streams into Apache Iceberg tables.

\b
  calve setup          fetch what the installed parts need
  calve doctor         check this machine
  calve table list     see what is in the lake
"""
_MANAGER_HELP: Final = """\
Manages the Iceberg tables of a lake; the same as `calve table`.

\b
  iceberg-manager list --data ./calve-data
"""


def calve() -> None:
    """The program `calve`."""
    _run("calve", CALVE, _CALVE_HELP)


def iceberg_manager() -> None:
    """The program `iceberg-manager`."""
    _run("iceberg-manager", ICEBERG_MANAGER, _MANAGER_HELP)


def _run(program: str, entries: dict[str, Entry], help_text: str) -> None:
    group = LazyGroup(
        entries,
        program,
        help=help_text,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    # So that what is under way is cleaned up: temporary directories, downloads, Spark.
    signal.signal(signal.SIGTERM, _terminated)
    version = click.version_option(__version__, "-V", "--version", prog_name=program)
    sys.exit(_exit_code(version(group), program))


def _terminated(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _exit_code(group: click.Group, program: str) -> int:
    try:
        result = group.main(prog_name=program, standalone_mode=False)
    except CalveError as error:
        click.echo(f"error: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except SystemExit:
        # Click ends so when whoever read our output has seen enough of it.
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            return _unexpected(error)
        sys.stdout = None
        click.echo("error: there is no room left where the output goes", err=True)
        return Unavailable.exit_code
    except Exception as error:  # noqa: BLE001
        return _unexpected(error)
    return result if isinstance(result, int) else 0


def _unexpected(error: Exception) -> int:
    """A defect in Calve: one line for the user, the traceback for those who ask for it."""
    if "-v" in sys.argv or "--verbose" in sys.argv:
        raise error
    click.echo(
        f"unexpected error: {type(error).__name__}: {error}\n"
        "hint: this is a defect in Calve; run again with -v and report what it prints",
        err=True,
    )
    return EXIT_UNEXPECTED
