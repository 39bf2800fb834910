"""`calve table query` and `calve sql`: rows shown, now and as they were."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final
from uuid import uuid4

import click

from calve.cli.opened import opened
from calve.cli.options import Call, common_options, split_names
from calve.cli.output import counted, say
from calve.cli.place import client_of, token_option
from calve.errors import InvalidRequest
from calve.manager import IcebergManager
from calve.query.formats import FORMATS, write_rows
from calve.query.rows import Rows
from calve.tables.snapshots import parse_moment, told_moment

if TYPE_CHECKING:
    from calve.client import Client
    from calve.lake import Lake

_BINARY: Final = frozenset({"parquet", "arrow"})
_OF_TEXT: Final = frozenset({"", "txt", "log"})
_FORMAT = click.option(
    "--format",
    "output_format",
    type=click.Choice(list(FORMATS)),
    help="How rows are written; as the ending of FILE says, else table.",
)
_OUTPUT = click.option(
    "--output", metavar="FILE", type=click.Path(dir_okay=False), help="Write there instead."
)


@click.command()
@click.argument("table", metavar="TABLE")
@click.option("--where", metavar="CONDITION", help="Only rows for which this is true.")
@click.option(
    "--columns", metavar="A,B,…", help="Only these columns; can be given again.", multiple=True
)
@click.option("--limit", type=click.IntRange(min=0), help="At most so many rows.")
@click.option("--snapshot", type=int, metavar="ID", help="The table as it was in this snapshot.")
@click.option("--timestamp", metavar="TIME", help="The table as it was at this time.")
@click.option("--tag", metavar="NAME", help="The table as it was when it got this tag.")
@click.option("--branch", metavar="NAME", help="A branch instead of main.")
@_FORMAT
@_OUTPUT
@common_options
def query(
    call: Call,
    table: str,
    *,
    where: str | None,
    columns: tuple[str, ...],
    limit: int | None,
    snapshot: int | None,
    timestamp: str | None,
    tag: str | None,
    branch: str | None,
    output_format: str | None,
    output: str | None,
) -> None:
    """Show rows, now or as they were.

    \b
    Example: calve table query users --where "age > 30" --columns name,age --limit 10
    Example: calve table query users --timestamp "2024-01-01 10:00:00" --format csv
    """
    moments = {"--snapshot": snapshot, "--timestamp": timestamp, "--tag": tag, "--branch": branch}
    named = [name for name, value in moments.items() if value is not None]
    if len(named) > 1:
        raise click.UsageError(f"{' and '.join(named)} exclude each other")
    wanted = [name for text in columns for name in split_names(text)] if columns else None
    with opened(call) as manager:
        if snapshot is not None:
            rows = manager.query_snapshot(table, snapshot, where, wanted, limit)
        elif timestamp is not None:
            rows = _as_of(manager, table, timestamp, where, wanted, limit)
        else:
            rows = manager.query_table(table, where, wanted, limit, branch=branch, tag=tag)
        _write(call, rows, output_format, output)


@click.command()
@click.argument("text", metavar="SQL")
@click.option(
    "--fresh/--committed",
    default=True,
    show_default=True,
    help="Every acknowledged row of a topic, or only those that are in its table.",
)
@click.option(
    "--param",
    "parameters",
    metavar="VALUE",
    multiple=True,
    help="The value of ? or $1, a text that becomes what SQL needs; can be given again.",
)
@click.option(
    "--server",
    metavar="URL",
    envvar="CALVE_SERVER",
    help="The service to ask, such as grpc://127.0.0.1:8815; also as CALVE_SERVER. Without it, "
    "the lake itself, with no limits.",
)
@token_option("query")
@_FORMAT
@_OUTPUT
@common_options
def sql(
    call: Call,
    text: str,
    *,
    fresh: bool,
    parameters: tuple[str, ...],
    server: str | None,
    output_format: str | None,
    output: str | None,
) -> None:
    """Ask in SQL, over all tables and topics of the lake; nothing can be changed by it.

    \b
    Example: calve sql "select country, count(*) from users group by country"
    Example: calve sql "select * from users AT (VERSION => 12345)" --json
    Example: calve sql "select * from users where name = ?" --param "O'Hara"
    """
    with _asked(call, server) as place:
        rows = place.sql(text, list(parameters) or None, fresh=fresh)
        for each in rows.times:
            say(each)
        for as_of in rows.as_of:
            if as_of.durable:
                say(str(as_of))
        _write(call, rows, output_format, output)


@contextmanager
def _asked(call: Call, server: str | None) -> Iterator[Lake | Client]:
    settings = call.settings()
    if server is None:
        from calve.lake import Lake

        with Lake(settings, create=False) as lake:
            yield lake
    else:
        say(f"through the service at {server}")
        with client_of(settings, server) as client:
            yield client


def _as_of(
    manager: IcebergManager,
    table: str,
    timestamp: str,
    where: str | None,
    columns: list[str] | None,
    limit: int | None,
) -> Rows:
    moment = parse_moment(timestamp)
    rows = manager.query_as_of(table, moment, where, columns, limit)
    say(told_moment(moment, rows.snapshot_id))
    return rows


def _write(call: Call, rows: Rows, output_format: str | None, output: str | None) -> None:
    chosen = _chosen_format(call, output_format, output or "")
    if output is not None and output != "-":
        with _opened_file(output) as file:
            count = write_rows(rows, file, chosen)
        say(f"{counted(count, 'row')} written to {output}")
        return
    if sys.stdout is None:
        raise InvalidRequest("standard output is closed", hint="use --output FILE")
    stream = sys.stdout.buffer
    if chosen in _BINARY and stream.isatty():
        raise click.UsageError(f"{chosen} is not for a terminal; use --output FILE")
    count = write_rows(rows, stream, chosen)
    if chosen == "table":
        say(counted(count, "row"))


def _chosen_format(call: Call, output_format: str | None, output: str) -> str:
    if call.as_json and output_format not in {None, "json"}:
        raise click.UsageError(f"--json and --format {output_format} are two formats; give one")
    return output_format or ("json" if call.as_json else _by_ending(output))


def _by_ending(path: str) -> str:
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending in FORMATS:
        return ending
    if ending in _OF_TEXT or (Path(path).exists() and not Path(path).is_file()):
        return "table"
    raise click.UsageError(
        f"{path} ends with .{ending}, which is no format; use --format "
        f"{', '.join(list(FORMATS)[:-1])} or {list(FORMATS)[-1]}"
    )


@contextmanager
def _opened_file(path: str) -> Iterator[BinaryIO]:
    """A file that appears under its name only when all of it has been written.

    What is no file, such as a pipe or /dev/null, is written to as it is.
    """
    target = Path(path)
    is_other = target.exists() and not target.is_file()
    try:
        with target.open("wb") if is_other else _drafted(target.resolve()) as file:
            yield file
    except OSError as error:
        raise InvalidRequest(
            f"{path} cannot be written: {error.strerror or error}", hint="name another file"
        ) from error


@contextmanager
def _drafted(target: Path) -> Iterator[BinaryIO]:
    draft = target.with_name(f".calve-{uuid4().hex}")
    try:
        with draft.open("xb") as file:
            yield file
        if target.exists():
            shutil.copymode(target, draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
