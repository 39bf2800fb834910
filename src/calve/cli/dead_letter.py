"""`calve dead-letter`: rows that a topic could not take, listed, shown, sent again, discarded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar

import click
import msgspec

from calve.cli.opened import confirm, destroying
from calve.cli.options import Call, common_options
from calve.cli.output import counted, print_json, print_table, say, shown_json
from calve.cli.place import client_of, server_option, service_url
from calve.errors import InvalidRequest

_F = TypeVar("_F", bound=Callable[..., Any])
_REASONS_SHOWN: Final = 20
_LIMIT: Final = 100
_WAITING: Final = "the next commit brings what came since"
_NONE: Final = f"there are no such dead letters in its table; {_WAITING}"
_FILTERS: Final = ("reason", "offsets", "partition", "since", "until")
_OPTIONS: Final = (
    click.option("--reason", metavar="TEXT", help="Those with this text in their reason."),
    click.option(
        "--offsets", metavar="OFFSETS", help="Such as 5,10-20,300-; the end is not in a range."
    ),
    click.option("--partition", metavar="NUMBER", type=click.IntRange(min=0), help="One alone."),
    click.option("--since", metavar="TIME", help="Taken in at this time or later, UTC."),
    click.option("--until", metavar="TIME", help="Taken in before this time, UTC."),
)


class Letters(Protocol):
    """The dead letters of a topic, in the lake or of a service."""

    def list(self, *, limit: int, **filters: Any) -> Any: ...
    def show(self, offset: int, partition: int | None) -> Any: ...
    def original(self, offset: int, partition: int | None) -> bytes: ...
    def replay(self, *, dry_run: bool, give_up: bool, **filters: Any) -> Any: ...
    def discard(self, *, dry_run: bool, **filters: Any) -> Any: ...


def _filters(command: _F) -> _F:
    """Give a command the options that say which dead letters are meant."""
    decorated: Any = command
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


@click.command("list")
@click.argument("topic", metavar="TOPIC")
@_filters
@click.option(
    "--limit",
    metavar="NUMBER",
    type=click.IntRange(1, 10_000),
    default=_LIMIT,
    help="How many to list; they are counted all.",
)
@server_option("admin")
@common_options
def list_letters(call: Call, topic: str, *, limit: int, server: str | None, **filters: Any) -> None:
    """List the rows that a topic could not take: how many, why, and the first by offset.

    \b
    Example: calve dead-letter list orders
    Example: calve dead-letter list orders --reason "no number" --since 2026-01-01
    """
    with _letters(call, topic, server) as letters:
        found = _values(letters.list(limit=limit, **_given(filters)))
    if call.as_json:
        print_json(found)
    else:
        _print_list(found)


@click.command()
@click.argument("topic", metavar="TOPIC")
@click.argument("offset", metavar="OFFSET", type=click.IntRange(min=0))
@click.option("--partition", metavar="NUMBER", type=click.IntRange(min=0), help="If several.")
@click.option("--raw", is_flag=True, help="Print what was sent, byte for byte, and nothing else.")
@server_option("admin")
@common_options
def show(
    call: Call, topic: str, offset: int, *, partition: int | None, raw: bool, server: str | None
) -> None:
    """Show a row that a topic could not take, and why.

    Signs that a terminal would act on are shown by their numbers; --raw prints what was sent.

    \b
    Example: calve dead-letter show orders 17
    Example: calve dead-letter show orders 17 --raw > row.json
    """
    with _letters(call, topic, server) as letters:
        if raw:
            click.echo(letters.original(offset, partition), nl=False)
            return
        found = _values(letters.show(offset, partition))
    if call.as_json:
        print_json(found)
    else:
        _print_letter(found)


@click.command()
@click.argument("topic", metavar="TOPIC")
@_filters
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--dry-run", is_flag=True, help="Say what would become of the first, do nothing.")
@click.option(
    "--give-up",
    is_flag=True,
    help="Forget a replay that was interrupted and whose log is lost; its rows may come twice.",
)
@server_option("admin")
@common_options
def replay(
    call: Call,
    topic: str,
    *,
    everything: bool,
    dry_run: bool,
    give_up: bool,
    server: str | None,
    **filters: Any,
) -> None:
    """Send rows that a topic could not take to it again, each exactly once.

    They are read with the columns that the topic has now. What still does not fit becomes a dead
    letter again, at a new offset. If it is interrupted, run it again.

    \b
    Example: calve dead-letter replay orders --all --dry-run
    Example: calve dead-letter replay orders --reason "no column"
    """
    meant = _meant(filters, everything=everything)
    with _letters(call, topic, server) as letters:
        done = _values(letters.replay(dry_run=dry_run, give_up=give_up, **meant))
    if call.as_json:
        print_json(done)
        return
    would = "would be " if dry_run else ""
    of = " of the first" if dry_run else ""
    say(f"{done['topic']}: {counted(done['rows'], 'row')}{of} {would}sent to the topic again")
    if not done["rows"] and not done["rejected"]:
        say(_NONE)
    if done["rejected"]:
        say(f"{done['rejected']:,} still do not fit, and {would or 'are '}dead letters again:")
        for reason in done["reasons"]:
            say(f"  {reason}")


@click.command()
@click.argument("topic", metavar="TOPIC")
@_filters
@click.option("--all", "everything", is_flag=True, help="All of them.")
@destroying
@server_option("admin")
@common_options
def discard(
    call: Call,
    topic: str,
    *,
    everything: bool,
    dry_run: bool,
    yes: bool,
    server: str | None,
    **filters: Any,
) -> None:
    """Remove rows that a topic could not take. It is recorded that it was on purpose.

    \b
    Example: calve dead-letter discard orders --offsets 17 --dry-run
    """
    meant = _meant(filters, everything=everything)
    with _letters(call, topic, server) as letters:
        done = _values(letters.discard(dry_run=True, **meant))
        if not dry_run and done["count"]:
            found = counted(done["count"], "dead letter")
            more = "" if done["is_done"] else " or more"
            confirm(f"Discard {found}{more} of {topic}?", yes=yes)
            done = _values(letters.discard(dry_run=False, **meant))
    if call.as_json:
        print_json(done | {"dry_run": dry_run})
    else:
        what = "would be discarded" if dry_run else "discarded"
        say(f"{done['topic']}: {counted(done['count'], 'dead letter')} {what}")
        if not done["count"]:
            say(_NONE)


@contextmanager
def _letters(call: Call, topic: str, server: str | None) -> Iterator[Letters]:
    """The dead letters, and words to standard error that say where they are."""
    settings = call.settings()
    url = service_url(settings, server)
    if url is None:
        say(f"in the lake at {settings.data}; no service is running")
        from calve.lake import Lake

        with Lake(settings, create=False) as lake:
            found: Any = lake.dead_letters(topic)
            yield found
    else:
        say(f"through the service at {url}")
        with client_of(settings, url) as client:
            yield client.dead_letters(topic)


def _given(filters: dict[str, Any]) -> dict[str, Any]:
    from calve.tables.snapshots import parse_moment

    given = {name: filters[name] for name in _FILTERS if filters[name] is not None}
    if given.get("reason") == "":
        raise InvalidRequest(
            "--reason is empty, and every reason has that in it",
            hint="give a part of the reason; --all, or no --reason for a list, means all of them",
        )
    moments = {name: parse_moment(given[name]) for name in ("since", "until") if name in given}
    return given | moments


def _meant(filters: dict[str, Any], *, everything: bool) -> dict[str, Any]:
    given = _given(filters)
    if bool(given) == everything:
        raise click.UsageError(
            "say which dead letters are meant: --all, or --reason, --offsets, --partition, --since "
            "and --until; not both"
        )
    return given | ({"all": True} if everything else {})


def _values(answer: Any) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(answer)
    return values


def _print_list(found: dict[str, Any]) -> None:
    if not found["count"]:
        say(f"{found['topic']} has no such dead letters in its table; {_WAITING}")
        return
    reasons = found["reasons"][:_REASONS_SHOWN]
    print_table(("COUNT", "REASON"), [(f"{r['count']:,}", _line(r["reason"])) for r in reasons])
    others = found["count"] - sum(each["count"] for each in reasons)
    if others:
        click.echo(f"{others:,} others")
    click.echo()
    print_table(
        ("PARTITION", "OFFSET", "TAKEN IN (UTC)", "TYPE", "REASON"),
        [_row(each) for each in found["letters"]],
    )
    more = found["count"] - len(found["letters"])
    if more > 0:
        last = found["letters"][-1]["offset"]
        say(f"and {more:,} more: --offsets {last + 1}- shows the next")


def _row(letter: dict[str, Any]) -> tuple[object, ...]:
    at = letter["ingested_at"]
    shown = at[:19].replace("T", " ") if at else None
    place = (letter["partition"], letter["offset"], shown)
    return (*place, _line(letter["content_type"]), _line(letter["reason"]))


def _line(text: str) -> str:
    """On one line, whatever is in it."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _visible(text: str) -> str:
    """On its lines, with nothing in it that a terminal acts on: a producer has written it."""
    return "\n".join(
        "".join(sign if sign.isprintable() or sign == "\t" else _line(sign) for sign in line)
        for line in text.split("\n")
    )


def _print_letter(found: dict[str, Any]) -> None:
    about = {
        "offset": f"{found['offset']} of partition {found['partition']}",
        "taken in": found["ingested_at"],
        "reason": _line(found["reason"]),
        "type": _line(found["content_type"]),
        "bytes": f"{found['size_bytes']:,}",
    }
    print_table(("ABOUT", found["topic"]), list(about.items()))
    click.echo()
    if found["values"] is not None:
        click.echo(_visible(shown_json(found["values"])))
    else:
        click.echo(_visible(found["text"] if found["text"] is not None else found["base64"]))
    if not found["is_whole"]:
        say("this is its beginning; --raw prints all of it")
