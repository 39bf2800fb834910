"""`calve subscribe`: the rows of a topic, and then those that come, on standard output."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import msgspec

from calve.cli.options import Call, common_options
from calve.cli.output import say
from calve.cli.place import server_option, subscribing_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from calve.client import Client
    from calve.client.subscription import ClientSubscription
    from calve.lake import Lake
    from calve.subscriptions import Batch, Start, Subscription, TopicReader

    _Source: TypeAlias = TopicReader | Subscription | ClientSubscription


@click.command()
@click.argument("topic", metavar="TOPIC")
@click.option("--name", metavar="NAME", help="The subscription; without one, nothing is kept.")
@click.option(
    "--from",
    "start",
    metavar="PLACE",
    default="earliest",
    help="earliest, latest, an offset, 0:1200,1:800 by partition, or a time. A subscription "
    "begins there when it is new, and later goes on where it was.",
)
@click.option(
    "--max", "rows_max", metavar="N", type=click.IntRange(min=1), help="End after N rows."
)
@click.option("--where", metavar="CONDITION", help="The rows for which this holds.")
@click.option("--columns", metavar="NAMES", help="These alone, with commas between.")
@click.option(
    "--follow/--no-follow",
    default=True,
    help="Wait for rows that come, which is the default, or end with what there is.",
)
@server_option("subscribe")
@common_options
def subscribe(
    call: Call,
    topic: str,
    *,
    name: str | None,
    start: str,
    rows_max: int | None,
    where: str | None,
    columns: str | None,
    follow: bool,
    server: str | None,
) -> None:
    """Print the rows of a topic in the order of their offsets, and then those that come.

    With --name, what was printed is acknowledged, and the next call goes on behind it; if it is
    interrupted, rows may come again. One call at a time has a subscription; another one waits.

    \b
    Example: calve subscribe orders --from latest
    Example: calve subscribe orders --name billing --max 10 --json
    """
    from calve.subscriptions.start import parse_start

    place = parse_start(start)
    options: dict[str, Any] = {
        "where": where,
        "columns": [each.strip() for each in columns.split(",")] if columns else None,
        "follow": follow,
    }
    with subscribing_at(call, server) as lake, _opened(lake, topic, name, place, options) as source:
        _print_all(call, source, rows_max, is_named=name is not None)


def _opened(
    lake: Lake | Client, topic: str, name: str | None, start: Start, options: dict[str, Any]
) -> _Source:
    from calve.lake import Lake

    if name is not None:
        _say_owner(lake, topic, name)
        return lake.subscribe(topic, name, start, **options)
    if isinstance(lake, Lake):
        return lake.read(topic, start, **options)
    return lake.subscribe(topic, None, start, **options)


def _say_owner(lake: Lake | Client, topic: str, name: str) -> None:
    """Tell somebody who is going to wait for whom."""
    from calve.errors import NotFound

    with suppress(NotFound):  # it is new then
        owner = lake.subscriptions.describe(topic, name).owner
        if owner is not None:
            say(f"{owner} has {name} now; waiting until it ends")


def _print_all(call: Call, source: _Source, rows_max: int | None, *, is_named: bool) -> None:
    left = rows_max
    while True:
        batch = source.poll()
        if batch is None:
            return
        count = len(batch) if left is None else min(left, len(batch))
        _print(call, batch, count)
        if is_named:
            _acknowledge(source, batch, count)
        if left is not None:
            left -= count
            if not left:
                return


def _print(call: Call, batch: Batch, count: int) -> None:
    from calve.subscriptions.row_json import row_documents

    rows = islice(row_documents(batch.to_arrow()), count)
    text = _json_lines(rows) if call.as_json else "".join(map(_line, rows))
    click.echo(text, nl=False)  # which is flushed, so that what is acknowledged was printed


def _json_lines(rows: Iterable[dict[str, Any]]) -> str:
    return msgspec.json.Encoder(enc_hook=str).encode_lines(rows).decode()


def _line(row: dict[str, Any]) -> str:
    value = msgspec.json.encode(row["value"], enc_hook=str).decode()
    return f"{row['partition']}:{row['offset']}  {row['ingested_at']:%Y-%m-%d %H:%M:%S}  {value}\n"


def _acknowledge(source: _Source, batch: Batch, count: int) -> None:
    from calve.subscriptions import TopicReader

    assert not isinstance(source, TopicReader)
    source.ack(batch, None if count == len(batch) else batch.offset_at(count))
