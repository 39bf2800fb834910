"""`calve topic`: topics made, listed, described, changed, deleted and flushed."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from calve.cli.opened import confirm, destroying
from calve.cli.options import Call, common_options
from calve.cli.output import print_json, print_table, say
from calve.cli.place import server_option, topics_at

_F = TypeVar("_F", bound=Callable[..., Any])
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"(\d+)\s*([smhdw])", re.ASCII)
_FOREVER: Final = "forever"
_FLUSH_SECONDS: Final = 60.0

_RETENTION = click.option(
    "--retention",
    metavar="DURATION",
    help="How long the table is to keep rows, such as 30d, 12h or forever. It is kept for "
    "maintenance to come; this version removes none.",
)
_UNKNOWN = click.option(
    "--on-unknown-column",
    type=click.Choice(["add", "ignore", "dead-letter", "refuse"]),
    help="What becomes of columns that the topic does not have; add, if left out.",
)
_BAD = click.option(
    "--on-bad-row",
    type=click.Choice(["refuse", "dead-letter"]),
    help="What becomes of rows that do not fit; refuse, if left out.",
)
_DEFAULT: Final = "default"


class _Bound(click.ParamType[int | str]):
    """A number above 0, or the word for what the pipeline's settings say."""

    name = "N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        if value == _DEFAULT:
            return _DEFAULT
        return click.IntRange(min=1).convert(value, param, ctx)


_FLUSHES: Final = {
    "flush_rows": ("rows_max", "Write rows to the table when so many wait."),
    "flush_bytes": ("bytes_max", "Write rows to the table when so many bytes of them wait."),
    "flush_interval_ms": ("interval_ms", "Write rows to the table when they are so old."),
    "freshness_ms": ("freshness_ms", "How old rows may become where few come in."),
}


def _flushing(command: _F) -> _F:
    """Give a command the options that say when rows go to the table, as a dict `flush`."""

    @functools.wraps(command)
    def gathered(*arguments: Any, **options: Any) -> Any:
        given = {key: options.pop(option) for option, (key, _) in _FLUSHES.items()}
        flush = {key: value for key, value in given.items() if value is not None}
        return command(
            *arguments,
            flush={key: None if value == _DEFAULT else value for key, value in flush.items()},
            **options,
        )

    for option, (_, meaning) in reversed(_FLUSHES.items()):
        name = "--" + option.replace("_", "-")
        gathered = click.option(name, option, type=_Bound(), help=meaning)(gathered)
    return gathered  # type: ignore[return-value]


_PROPERTY = click.option(
    "--property", "properties", metavar="KEY=VALUE", multiple=True, help="A property of the table."
)


@click.command()
@click.argument("topic", metavar="TOPIC")
@click.option(
    "--schema",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A JSON file with the columns, as for `calve table create`.",
)
@click.option("--messages", is_flag=True, help="A topic of messages: payloads, not columns.")
@click.option("--table", is_flag=True, help="Feed the table of this name, which is there already.")
@click.option("--adopt", is_flag=True, help="Take over rows in the log that nobody knows of.")
@click.option("--partition-by", metavar="EXPRESSION", multiple=True, help="Such as day(created).")
@click.option("--sort-by", metavar="EXPRESSION", multiple=True, help="Such as 'id desc'.")
@_PROPERTY
@_RETENTION
@_UNKNOWN
@_BAD
@_flushing
@server_option("admin")
@common_options
def create(
    call: Call,
    topic: str,
    *,
    server: str | None,
    schema: Path | None,
    messages: bool,
    table: bool,
    adopt: bool,
    partition_by: tuple[str, ...],
    sort_by: tuple[str, ...],
    properties: tuple[str, ...],
    retention: str | None,
    on_unknown_column: str | None,
    on_bad_row: str | None,
    flush: dict[str, int | None],
) -> None:
    """Make a topic, or find it if it is there and the same was asked for.

    Its columns come from a file, or from the table that it is to feed. A topic that is not made
    gets them from the first rows sent to it.

    \b
    Example: calve topic create orders --schema orders.json --partition-by "day(created)"
    Example: calve topic create users --table
    """
    if (schema is not None) + messages + table != 1:
        raise click.UsageError("name what it holds: --schema FILE, --messages or --table")
    spec: dict[str, Any] = {
        "kind": "messages" if messages else "rows",
        "bind_table": table,
        "adopt": adopt,
        "partition_by": partition_by,
        "sort_by": sort_by,
        "properties": dict(_pair(text, "--property") for text in properties),
        "retention_seconds": _seconds(retention),
        "on_unknown_column": _word(on_unknown_column),
        "on_bad_row": _word(on_bad_row) or "refuse",
        "flush": flush,
    }
    with topics_at(call, server) as topics:
        _print(call, topics.create(topic, _with_schema(spec, schema)))


@click.command("list")
@server_option("any")
@common_options
def list_topics(call: Call, *, server: str | None) -> None:
    """List the topics, with the offsets that each has reached.

    \b
    Example: calve topic list
    """
    with topics_at(call, server) as topics:
        found = topics.list()
    if call.as_json:
        print_json(found)
    elif found:
        print_table(
            ("TOPIC", "KIND", "FIRST", "DURABLE", "COMMITTED"),
            [(each["name"], each["kind"], *_offsets(each).values()) for each in found],
        )
        for each in found:
            if each["problem"]:
                say(f"{each['name']}: {each['problem']['detail']}")
    else:
        say("there are no topics yet")


@click.command()
@click.argument("topic", metavar="TOPIC")
@server_option("any")
@common_options
def describe(call: Call, topic: str, *, server: str | None) -> None:
    """Show a topic's columns, its policies, and the offsets that it has reached.

    \b
    Example: calve topic describe orders
    """
    with topics_at(call, server) as topics:
        _print(call, topics.describe(topic))


@click.command()
@click.argument("topic", metavar="TOPIC")
@click.option(
    "--add-column", "added", metavar="NAME TYPE", multiple=True, help="Such as 'email string'."
)
@click.option("--drop-column", "dropped", metavar="NAME", multiple=True, help="Take it away.")
@click.option(
    "--rename-column", "renamed", metavar="NAME=NEW", multiple=True, help="Call it otherwise."
)
@_PROPERTY
@_RETENTION
@_UNKNOWN
@_BAD
@_flushing
@click.option(
    "--new-log",
    is_flag=True,
    help="Go on in the log that is here, because the topic's own is lost for good.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@server_option("admin")
@common_options
def alter(
    call: Call,
    topic: str,
    *,
    server: str | None,
    added: tuple[str, ...],
    dropped: tuple[str, ...],
    renamed: tuple[str, ...],
    properties: tuple[str, ...],
    retention: str | None,
    on_unknown_column: str | None,
    on_bad_row: str | None,
    flush: dict[str, int | None],
    new_log: bool,
    yes: bool,
) -> None:
    """Change a topic's columns and policies, for the rows that come from now on.

    A column that was dropped stays away, and one that was renamed is known by its old name too.

    \b
    Example: calve topic alter orders --on-unknown-column refuse --retention 90d
    Example: calve topic alter orders --rename-column name=full_name
    """
    change: dict[str, Any] = {
        "on_unknown_column": _word(on_unknown_column),
        "on_bad_row": _word(on_bad_row),
        "properties": dict(_pair(text, "--property") for text in properties),
        "flush": flush,
        "add_columns": dict(_column(text) for text in added) or None,
        "drop_columns": dropped,
        "rename_columns": dict(_pair(text, "--rename-column") for text in renamed),
    }
    if retention is not None:
        change["retention_seconds"] = _seconds(retention)
    with topics_at(call, server) as topics:
        if new_log:
            confirm(f"Give up the rows of {topic} that only its lost log had?", yes=yes)
            say(f"{topic} goes on at offset {topics.new_log(topic)}")
        _print(call, topics.alter(topic, change))


@click.command()
@click.argument("topic", metavar="TOPIC")
@destroying
@server_option("admin")
@common_options
def delete(call: Call, topic: str, *, server: str | None, dry_run: bool, yes: bool) -> None:
    """Forget a topic, with its rows in the log. Its table stays, if there is one.

    \b
    Example: calve topic delete orders --dry-run
    """
    with topics_at(call, server) as topics:
        found = topics.describe(topic)
        offsets = _offsets(found)
        first, durable = offsets["first"] or 0, offsets["durable"] or 0
        only_here = max(0, durable - (offsets["committed"] or 0))
        if not dry_run:
            lost = f", of which {only_here:,} are in no table" if only_here else ""
            held = durable - first
            confirm(f"Delete the topic {topic} with its {held:,} rows in the log{lost}?", yes=yes)
            topics.delete(topic)
    if call.as_json:
        print_json({"topic": found["name"], "dry_run": dry_run, "rows_in_log_only": only_here})
    else:
        done = "would be deleted" if dry_run else "is deleted"
        say(f"the topic {topic} {done}; rows in its log alone: {only_here:,}")


@click.command()
@click.argument("topic", metavar="TOPIC")
@click.option(
    "--timeout",
    "timeout_seconds",
    metavar="SECONDS",
    type=click.FloatRange(min=0, max=3_600),
    default=_FLUSH_SECONDS,
    help="How long to wait.",
)
@server_option("produce")
@common_options
def flush(call: Call, topic: str, *, server: str | None, timeout_seconds: float) -> None:
    """Wait until every row that was acknowledged before is in the topic's table.

    \b
    Example: calve topic flush orders --timeout 10
    """
    with topics_at(call, server) as topics:
        offsets = topics.flush(topic, timeout_seconds)
    if call.as_json:
        print_json({"topic": topic, **offsets})
    else:
        say(f"{topic} is in its table up to offset {offsets['committed']}")


def _with_schema(spec: dict[str, Any], file: Path | None) -> dict[str, Any]:
    """The request with what the file says; what was said on the command line counts more."""
    if file is None:
        return spec
    from calve.tables.schema_file import read_schema_file
    from calve.tables.schemas import schema_to_json

    read = read_schema_file(file)
    return spec | {
        "schema": msgspec.json.decode(schema_to_json(read.schema)),
        "partition_by": spec["partition_by"] or list(read.partition_by),
        "sort_by": spec["sort_by"] or list(read.sort_by),
        "properties": {**read.properties, **spec["properties"]},
    }


def _print(call: Call, topic: dict[str, Any]) -> None:
    if call.as_json:
        print_json(topic)
        return
    print_table(
        ("COLUMN", "TYPE", "REQUIRED"),
        [(c["name"], c["type"], "yes" if c["required"] else "no") for c in topic["columns"]],
    )
    click.echo()
    about = {
        "kind": topic["kind"],
        "partitioned by": ", ".join(topic["partition_by"]) or None,
        "sorted by": ", ".join(topic["sort_by"]) or None,
        "retention": _duration(topic["retention_seconds"]),
        "unknown columns": topic["on_unknown_column"],
        "bad rows": topic["on_bad_row"],
        "flush": _flush_line(topic["flush"]),
        "offsets": _offsets_line(topic),
        "problem": (topic.get("problem") or {}).get("detail"),
    }
    optional = ("flush", "offsets", "problem")
    rows = [(name, value) for name, value in about.items() if name not in optional or value]
    print_table(("ABOUT", topic["name"]), rows)


def _offsets(topic: dict[str, Any]) -> dict[str, int | None]:
    """None is what cannot be told of a topic that stopped."""
    offsets = topic["offsets"] or {}
    return {name: offsets.get(name) for name in ("first", "durable", "committed")}


def _flush_line(bounds: dict[str, int | None]) -> str | None:
    given = {key: value for key, value in bounds.items() if value is not None}
    return ", ".join(f"{key} {value:,}" for key, value in given.items()) or None


def _offsets_line(topic: dict[str, Any]) -> str | None:
    if not topic.get("offsets"):
        return None
    return ", ".join(f"{name} {offset:,}" for name, offset in _offsets(topic).items())


def _word(choice: str | None) -> str | None:
    return choice.replace("-", "_") if choice else None


def _pair(text: str, option: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found or not key:
        raise click.UsageError(f"{option} takes two words with = between them, not {text!r}")
    return key.strip(), value.strip()


def _column(text: str) -> tuple[str, str]:
    name, _, kind = text.strip().partition(" ")
    if not kind.strip():
        raise click.UsageError(f"--add-column takes 'NAME TYPE', such as 'email string': {text!r}")
    return name, kind.strip()


def _seconds(text: str | None) -> int | None:
    if text is None or text == _FOREVER:
        return None
    found = _DURATION.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise click.UsageError(
            f"--retention takes a time such as 30d, 12h or forever, not {text!r}"
        )
    return int(found[1]) * _UNITS[found[2]]


def _duration(seconds: int | None) -> str:
    if seconds is None:
        return _FOREVER
    unit, length = max(
        ((unit, length) for unit, length in _UNITS.items() if seconds % length == 0),
        key=lambda each: each[1],
    )
    return f"{seconds // length}{unit}"
