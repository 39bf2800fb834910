"""`calve subscription`: named, durable places in topics, listed, moved and forgotten."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from calve.cli.opened import confirm, destroying
from calve.cli.options import Call, common_options
from calve.cli.output import counted, print_json, print_table, say
from calve.cli.place import server_option, subscribing_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from calve.client.subscriptions import ClientSubscriptions
    from calve.subscriptions.register import Subscriptions

_F = TypeVar("_F", bound="Callable[..., Any]")


def _named(command: _F) -> _F:
    """Give a command the topic and the name of a subscription."""
    named = click.argument("name", metavar="NAME")(command)
    return click.argument("topic", metavar="TOPIC")(named)


@click.command("list")
@click.argument("topic", metavar="[TOPIC]", required=False)
@server_option("subscribe")
@common_options
def list_all(call: Call, topic: str | None, *, server: str | None) -> None:
    """List the subscriptions, or a topic's, and how far behind they are.

    \b
    Example: calve subscription list orders
    """
    with _subscriptions(call, server) as subscriptions:
        found = [each.document() for each in subscriptions.list(topic)]
    if call.as_json:
        print_json(found)
        return
    keys = ("topic", "name", "lag", "owner", "owned_until")
    print_table(
        ("TOPIC", "NAME", "LAG", "OWNER", "UNTIL"), [[each[key] for key in keys] for each in found]
    )


@click.command()
@_named
@server_option("subscribe")
@common_options
def describe(call: Call, topic: str, name: str, *, server: str | None) -> None:
    """Show where a subscription is in each partition, who has it and how far behind it is.

    \b
    Example: calve subscription describe orders billing
    """
    with _subscriptions(call, server) as subscriptions:
        _print(call, subscriptions.describe(topic, name).document())


@click.command()
@_named
@click.option(
    "--to",
    "start",
    metavar="PLACE",
    required=True,
    help="earliest, latest, an offset, 0:1200,1:800 by partition, or a time.",
)
@server_option("subscribe")
@common_options
def seek(call: Call, topic: str, name: str, *, start: str, server: str | None) -> None:
    """Have a subscription go on from another place, whoever has it now.

    What its consumer has got before does not count when it is acknowledged.

    \b
    Example: calve subscription seek orders billing --to 2026-01-01T00:00:00Z
    Example: calve subscription seek orders billing --to 0:1200,1:800
    """
    from calve.subscriptions.start import parse_start

    place = parse_start(start)
    with _subscriptions(call, server) as subscriptions:
        _print(call, subscriptions.seek(topic, name, place).document())


@click.command()
@_named
@destroying
@server_option("subscribe")
@common_options
def reset(
    call: Call, topic: str, name: str, *, dry_run: bool, yes: bool, server: str | None
) -> None:
    """Have a subscription forget its progress and begin again with the first row.

    Also where its topic was deleted and made again.

    \b
    Example: calve subscription reset orders billing --yes
    """
    with _subscriptions(call, server) as subscriptions:
        found = subscriptions.describe(topic, name).document()
        if dry_run:
            say(f"{name} would begin again with the first row of {topic}")
        else:
            confirm(f"Have {name} read all of {topic} again?", yes=yes)
            found = subscriptions.reset(topic, name).document()
    _print(call, found)


@click.command()
@_named
@destroying
@server_option("subscribe")
@common_options
def delete(
    call: Call, topic: str, name: str, *, dry_run: bool, yes: bool, server: str | None
) -> None:
    """Forget a subscription and its progress; a consumer that has it is told so.

    \b
    Example: calve subscription delete orders billing --yes
    """
    with _subscriptions(call, server) as subscriptions:
        found = subscriptions.describe(topic, name).document()
        if dry_run:
            say(f"{name} would be forgotten")
            _print(call, found)
            return
        confirm(f"Forget {name} of {topic} and its progress?", yes=yes)
        subscriptions.delete(topic, name)
    if call.as_json:
        print_json({"topic": topic, "name": name, "deleted": True})
    say(f"{name} of {topic} is forgotten")


@contextmanager
def _subscriptions(call: Call, server: str | None) -> Iterator[Subscriptions | ClientSubscriptions]:
    with subscribing_at(call, server) as place:
        yield place.subscriptions


def _print(call: Call, found: dict[str, Any]) -> None:
    if call.as_json:
        print_json(found)
        return
    print_table(
        ("PARTITION", "POSITION", "END"),
        [[each["partition"], each["position"], each["end"]] for each in found["partitions"]],
    )
    lag, owner = found["lag"], found["owner"]
    say(
        "the topic is gone, or cannot be read now"
        if lag is None
        else f"{counted(lag, 'row')} behind"
    )
    say(f"{owner} has it until {found['owned_until']}" if owner else "nobody has it now")
