"""The two programs, `calve` and `iceberg-manager`: which command lives where, and how they end.

Only click is loaded until a command is chosen, so that `--help` answers at once.
"""

from __future__ import annotations

import errno
import gc
import importlib
import signal
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Final, NamedTuple, NoReturn

import click

from calve import __version__
from calve.errors import EXIT_INTERRUPTED, EXIT_UNEXPECTED, CalveError, Unavailable, masked


class Entry(NamedTuple):
    """Where a command lives, and the line that help shows for it."""

    module: str
    attribute: str
    summary: str


class Noun(NamedTuple):
    """A group of commands, and the line that help shows for it."""

    entries: dict[str, Entry]
    summary: str


TABLE: Final = {
    "add-column": Entry("columns", "add_column", "Add a column."),
    "alter-column": Entry(
        "columns", "alter_column", "Make a column's type wider, let it be null, or describe it."
    ),
    "alter-partition": Entry(
        "columns", "alter_partition", "Partition what is written from now on otherwise."
    ),
    "changes": Entry("snapshots", "changes", "Show the data files that came and went."),
    "create": Entry("table", "create", "Make a table."),
    "delete": Entry("rows", "delete", "Delete the rows that `query` shows for the same condition."),
    "describe": Entry("table", "describe", "Show a table's columns, partitioning and state."),
    "drop": Entry("table", "drop", "Take a table out of the lake."),
    "drop-column": Entry("columns", "drop_column", "Take a column away."),
    "expire-snapshots": Entry(
        "snapshots", "expire", "Forget old snapshots, and delete their files."
    ),
    "insert": Entry("rows", "insert", "Add rows from a file, or from standard input."),
    "list": Entry("table", "list_tables", "List the lake's tables."),
    "list-snapshots": Entry("snapshots", "list_all", "List a table's snapshots."),
    "query": Entry("query", "query", "Show rows, now or as they were."),
    "remove-orphans": Entry(
        "snapshots",
        "remove_orphans",
        "Delete files in the table's directory that nothing refers to.",
    ),
    "rename": Entry("table", "rename", "Give a table another name."),
    "rename-column": Entry("columns", "rename_column", "Give a column another name."),
    "rollback": Entry("snapshots", "rollback", "Go back to an earlier snapshot."),
    "update": Entry("rows", "update", "Change rows."),
    "upsert": Entry(
        "rows", "upsert", "Change the rows that have the keys of these, and add the others."
    ),
}
BRANCH: Final = {
    "create": Entry("references", "create_branch", "Begin a branch."),
    "delete": Entry("references", "delete_branch", "Forget a branch."),
    "list": Entry("references", "list_branches", "List a table's branches."),
    "publish": Entry("references", "publish_branch", "Make main what the branch is."),
}
TAG: Final = {
    "create": Entry("references", "create_tag", "Name a snapshot, which is then kept."),
    "delete": Entry("references", "delete_tag", "Forget a tag."),
    "list": Entry("references", "list_tags", "List a table's tags."),
}
TOPIC: Final = {
    "alter": Entry("topic", "alter", "Change a topic's columns and policies."),
    "create": Entry("topic", "create", "Make a topic."),
    "delete": Entry("topic", "delete", "Forget a topic."),
    "describe": Entry("topic", "describe", "Show a topic's columns."),
    "flush": Entry(
        "topic",
        "flush",
        "Wait until every row that was acknowledged before is in the topic's table.",
    ),
    "list": Entry("topic", "list_topics", "List the topics."),
    "verify": Entry("verify", "verify", "Prove that each offset of a topic is in its table once."),
}
PIPELINE: Final = {
    "package": Entry("pipeline", "package", "Write what Spark's executors need into one archive."),
    "pause": Entry("pipeline", "pause", "Leave a topic alone, or all of them."),
    "resume": Entry("pipeline", "resume", "Go on with a topic, or with all of them."),
    "skip": Entry("pipeline", "skip", "Send rows that do not get into their table aside."),
    "status": Entry("pipeline", "status", "Show how far tables are behind the log."),
}
DEAD_LETTER: Final = {
    "discard": Entry("dead_letter", "discard", "Remove rows that a topic could not take."),
    "list": Entry("dead_letter", "list_letters", "List the rows that a topic could not take."),
    "replay": Entry("dead_letter", "replay", "Send them to the topic again, each once."),
    "show": Entry("dead_letter", "show", "Show one of them as it was sent."),
}
SUBSCRIPTION: Final = {
    "delete": Entry("subscription", "delete", "Forget a subscription and its progress."),
    "describe": Entry("subscription", "describe", "Show where a subscription is."),
    "list": Entry("subscription", "list_all", "List the subscriptions."),
    "reset": Entry("subscription", "reset", "Have a subscription forget its progress."),
    "seek": Entry("subscription", "seek", "Have a subscription go on from another place."),
}
TOKEN: Final = {
    "create": Entry("token", "create", "Make a token; its secret is shown once."),
    "list": Entry("token", "list_all", "List the tokens."),
    "revoke": Entry("token", "revoke", "Have a token count no more."),
}
CALVE: Final[dict[str, Entry | Noun]] = {
    "branch": Noun(BRANCH, "Write to a table without anybody seeing it, then publish."),
    "config": Entry("config", "config", "Write, show and check the configuration."),
    "dead-letter": Noun(DEAD_LETTER, "Look after rows that topics could not take."),
    "doctor": Entry("doctor", "doctor", "Check everything that Calve needs on this machine."),
    "pipeline": Noun(PIPELINE, "Watch and direct what brings rows to tables."),
    "produce": Entry("produce", "produce", "Send rows to a topic."),
    "setup": Entry("setup", "setup", "Fetch what the installed parts need, once."),
    "sql": Entry("query", "sql", "Ask in SQL, over all tables of the lake."),
    "status": Entry("status", "status", "Show how the lake's service is doing."),
    "subscribe": Entry("subscribe", "subscribe", "Print the rows of a topic."),
    "subscription": Noun(SUBSCRIPTION, "Look after subscriptions."),
    "table": Noun(TABLE, "Make, fill, change, ask and look after tables."),
    "tag": Noun(TAG, "Give snapshots names."),
    "tls": Entry("tls", "tls", "Make certificates for a laptop or a test."),
    "token": Noun(TOKEN, "Say who may use the service, and for what."),
    "topic": Noun(TOPIC, "Make, show, change and look after topics."),
    "up": Entry("up", "up", "Run the service."),
    "wal": Entry("wal", "wal", "Look at the write-ahead log, verify and repair it."),
}
ICEBERG_MANAGER: Final[dict[str, Entry | Noun]] = {
    **TABLE,
    "branch": CALVE["branch"],
    "sql": CALVE["sql"],
    "tag": CALVE["tag"],
}


class LazyGroup(click.Group):
    """A group that knows its commands' names and summaries, and loads the one that is called."""

    def __init__(
        self, entries: Mapping[str, Entry | Noun], name: str, **attributes: object
    ) -> None:
        super().__init__(name=name, no_args_is_help=True, **attributes)  # type: ignore[arg-type]
        self._entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        if isinstance(entry, Noun):
            return LazyGroup(entry.entries, cmd_name, help=entry.summary)
        module = importlib.import_module(f"calve.cli.{entry.module}")
        command = getattr(module, entry.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self._entries[name].summary) for name in sorted(self._entries)]
            )


_NEW_OBJECTS: Final = 10_000
# Those that came: some libraries make errors of their own of them.
_interrupts: Final[list[int]] = []
_CALVE_HELP: Final = """\
Turns streams into Apache Iceberg tables.

\b
  calve table create users --from-data users.csv     make a table
  calve table insert users --data users.csv          fill it
  calve sql "select count(*) from users"             ask
  calve up                                           take rows in over the network
  calve produce events --data events.ndjson          send some
  calve subscribe events --name billing              read them, and go on there next time
  calve doctor                                       check this machine
"""
_MANAGER_HELP: Final = """\
Manages the Iceberg tables of a lake; the same as `calve table`.

\b
  iceberg-manager create users --schema schema.json
  iceberg-manager insert users --data users.csv
  iceberg-manager query users --where "age > 30"
"""


def calve() -> None:
    """The program `calve`."""
    _run("calve", CALVE, _CALVE_HELP)


def iceberg_manager() -> None:
    """The program `iceberg-manager`."""
    _run("iceberg-manager", ICEBERG_MANAGER, _MANAGER_HELP)


def _run(program: str, entries: Mapping[str, Entry | Noun], help_text: str) -> None:
    group = LazyGroup(
        entries,
        program,
        help=help_text,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    # Python looks for cycles after each 700 new objects, and libraries make them by the 100,000.
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
    # So that what is under way is cleaned up: temporary directories, downloads, Spark.
    signal.signal(signal.SIGTERM, _interrupt)
    # Where a shell has it ignored, it stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    version = click.version_option(__version__, "-V", "--version", prog_name=program)
    code = _exit_code(version(group), program)
    # All is closed by now, and one more look for cycles takes a fifth of a short command's time.
    gc.freeze()
    sys.exit(code)


def _interrupt(number: int, _: object) -> NoReturn:
    _interrupts.append(number)
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
        return _interrupted()
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


def _interrupted() -> int:
    click.echo("interrupted", err=True)
    return EXIT_INTERRUPTED


def _show_masked(_: type[BaseException], error: BaseException, __: TracebackType | None) -> None:
    """A traceback as Python shows it, but for secrets in its words."""
    import traceback

    click.echo(masked("".join(traceback.format_exception(error))), err=True, nl=False)


def _unexpected(error: Exception) -> int:
    """A defect in Calve: one line for the user, the traceback for those who ask for it."""
    if _interrupts:
        return _interrupted()
    if "-v" in sys.argv or "--verbose" in sys.argv:
        sys.excepthook = _show_masked
        raise error
    click.echo(
        f"unexpected error: {type(error).__name__}: {masked(str(error))}\n"
        "hint: this is a defect in Calve; run again with -v and report what it prints",
        err=True,
    )
    return EXIT_UNEXPECTED
