"""`calve table`: rows added, changed and deleted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click

from calve.changes import Change, Expression
from calve.cli.opened import opened
from calve.cli.options import Call, common_options, delimiter_option, row_options, split_names
from calve.cli.output import counted, print_json, say
from calve.cli.progress import reading_rows
from calve.manager import Engine

# A name in quotes may hold anything, also an equals sign.
_ASSIGNMENT: Final = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^="\s][^=]*?))\s*=(?!=)(.+)', re.DOTALL)
_BRANCH = click.option("--branch", metavar="NAME", help="Write to this branch instead of main.")
_ENGINE = click.option(
    "--engine",
    type=click.Choice(["python", "spark"]),
    default="python",
    help="Who does the work; spark for changes of much of a large table.",
)
_FORCE = click.option(
    "--force", is_flag=True, help="Also into a table that a topic feeds: the rows have no offset."
)
_FLUSH = click.option(
    "--no-flush",
    is_flag=True,
    help="Leave out rows of the table's topic that are still in the log, instead of having them "
    "come to the table first.",
)
_FORMAT = click.option(
    "--format",
    "input_format",
    metavar="FORMAT",
    help="csv, tsv, json, ndjson, parquet or arrow; told by the file itself if left out.",
)


@click.command()
@click.argument("table", metavar="TABLE")
@_FORMAT
@delimiter_option
@_BRANCH
@_FORCE
@row_options
def insert(
    call: Call,
    table: str,
    rows: str,
    *,
    input_format: str | None,
    delimiter: str | None,
    branch: str | None,
    force: bool,
) -> None:
    """Add rows from a file, or from standard input.

    Columns are matched by name. All rows are added in one snapshot, or none.

    \b
    Example: calve table insert users --data users.csv
    Example: calve table insert users --data users.csv --delimiter ";"
    Example: gunzip -c users.json.gz | calve table insert users --data - --format ndjson
    """
    _refuse_directory(rows)
    with opened(call) as manager, reading_rows(rows) as shown:
        change = manager.insert_data(
            table,
            rows,
            format=input_format,
            delimiter=delimiter,
            branch=branch,
            progress=shown.rows,
            progress_bytes=shown.bytes,
            force=force,
        )
    _print(call, change)


@click.command()
@click.argument("table", metavar="TABLE")
@click.option(
    "--key",
    "keys",
    metavar="A,B,…",
    multiple=True,
    required=True,
    help="The key's columns; can be given again.",
)
@_FORMAT
@delimiter_option
@_BRANCH
@_ENGINE
@_FORCE
@row_options
def upsert(
    call: Call,
    table: str,
    rows: str,
    *,
    keys: tuple[str, ...],
    input_format: str | None,
    delimiter: str | None,
    branch: str | None,
    engine: Engine,
    force: bool,
) -> None:
    """Change the rows that have the keys of these, and add the others.

    A column that the data lacks keeps its value in a row that is there; it is null in a new one.

    \b
    Example: calve table upsert users --data users.csv --key id
    """
    _refuse_directory(rows)
    names = [name for text in keys for name in split_names(text)]
    with opened(call) as manager:
        change = manager.upsert_data(
            table,
            rows,
            names,
            format=input_format,
            delimiter=delimiter,
            branch=branch,
            engine=engine,
            force=force,
        )
    _print(call, change)


@click.command()
@click.argument("table", metavar="TABLE")
@click.option(
    "--assign",
    "assigned",
    metavar="COLUMN=EXPRESSION",
    multiple=True,
    required=True,
    help="What a column becomes, such as 'age = age + 1'.",
)
@click.option("--where", metavar="CONDITION", help="Only rows for which this is true.")
@click.option("--all", "everything", is_flag=True, help="All rows.")
@_BRANCH
@_ENGINE
@_FLUSH
@common_options
def update(
    call: Call,
    table: str,
    *,
    assigned: tuple[str, ...],
    where: str | None,
    everything: bool,
    branch: str | None,
    engine: Engine,
    no_flush: bool,
) -> None:
    """Change rows. Those that have the values already are left alone.

    Of a table that a topic feeds, rows that are still in the log come to the table first.

    \b
    Example: calve table update users --assign "age = age + 1" --where "name = 'Ada'"
    """
    if (where is None) != everything:
        raise click.UsageError("say which rows: --where CONDITION, or --all")
    updates = _assignments(assigned)
    with opened(call) as manager:
        change = manager.update_data(
            table, updates, where, branch=branch, engine=engine, flush=not no_flush
        )
    _print(call, change)


@click.command()
@click.argument("table", metavar="TABLE")
@click.option(
    "--where", metavar="CONDITION", required=True, help="The rows for which this is true."
)
@click.option("--dry-run", is_flag=True, help="Say how many rows it would be, and do nothing.")
@click.option("--yes", is_flag=True, help="For scripts: nothing is asked, as snapshots keep them.")
@_BRANCH
@_ENGINE
@_FLUSH
@common_options
def delete(
    call: Call,
    table: str,
    *,
    where: str,
    dry_run: bool,
    yes: bool,  # noqa: ARG001
    branch: str | None,
    engine: Engine,
    no_flush: bool,
) -> None:
    """Delete the rows that `query` shows for the same condition.

    Earlier snapshots keep them until they expire. Of a table that a topic feeds, rows that are
    still in the log come to the table first; a dry run does not count them.

    \b
    Example: calve table delete users --where "age < 18"
    """
    with opened(call) as manager:
        if dry_run:
            count = len(manager.query_table(table, where, branch=branch))
            if call.as_json:
                print_json({"table": table, "would_delete": count})
            else:
                say(f"{counted(count, 'row')} would be deleted")
            return
        change = manager.delete_data(table, where, branch=branch, engine=engine, flush=not no_flush)
    _print(call, change)


def _print(call: Call, change: Change) -> None:
    if call.as_json:
        print_json(change)
    else:
        say(str(change))


def _assignments(texts: tuple[str, ...]) -> dict[str, Expression]:
    found: dict[str, Expression] = {}
    for column, expression in map(_assignment, texts):
        if column in found:
            raise click.UsageError(f"--assign gives {column!r} two values")
        found[column] = expression
    return found


def _assignment(text: str) -> tuple[str, Expression]:
    found = _ASSIGNMENT.fullmatch(text)
    if found is None:
        raise click.UsageError(
            f"--assign takes COLUMN=EXPRESSION, such as 'age = age + 1', not {text!r}"
        )
    quoted, plain, expression = found.groups()
    return quoted.replace('""', '"') if quoted else plain, Expression(expression.strip())


def _refuse_directory(rows: str) -> None:
    if Path(rows).is_dir():
        raise click.UsageError(
            f"--data names the rows here, and {rows} is a directory; the lake's directory is --lake"
        )
