"""`calve pipeline`: how far tables are behind the log, and what is to be left alone or skipped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

import click
import msgspec

from calve.cli.options import Call, common_options
from calve.cli.output import print_json, print_table, say
from calve.cli.place import client_of, server_option

_SHOWN: Final = 40


class _Pipeline(Protocol):
    """Beside us, or of a service; answers are the same, once in plain values."""

    def status(self, topic: str | None) -> Any: ...
    def pause(self, topic: str | None) -> Any: ...
    def resume(self, topic: str | None) -> Any: ...
    def skip(self, topic: str, to: int, partition: int | None) -> Any: ...


@click.command()
@click.option(
    "--output",
    metavar="FILE",
    default="calve-executors.zip",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The archive to write.",
)
@common_options
def package(call: Call, *, output: Path) -> None:
    """Write what Spark's executors need into one archive: Calve, and the packages it stands on.

    For a cluster whose machines have Spark and the same Python as this one, and nothing of Calve.
    Name it as spark.package, and Spark brings it to the executors.

    \b
    Example: calve pipeline package --output /srv/shop/calve-executors.zip
    """
    from calve.pipeline.package import build_package

    if not output.name:
        raise click.BadParameter("it names no file", param_hint="'--output'")
    built = build_package(output)
    if call.as_json:
        print_json(msgspec.to_builtins(built))
        return
    say(
        f"{built.path}: {len(built.packages)} packages for Python {built.python}, "
        f"{built.bytes / 1e6:.0f} MB"
    )
    click.echo(f"spark.package = {built.path}")


@click.command()
@click.argument("topic", metavar="[TOPIC]", required=False)
@server_option("admin")
@common_options
def status(call: Call, topic: str | None, *, server: str | None) -> None:
    """Show how far tables are behind the log, the worst first.

    Of each topic: rows, bytes and seconds that wait, the last commit, the last error and when
    the next try is.

    \b
    Example: calve pipeline status
    Example: calve pipeline status orders --json
    """
    with _pipeline(call, server) as pipeline:
        _print(call, _values(pipeline.status(topic)))


@click.command()
@click.argument("topic", metavar="[TOPIC]", required=False)
@server_option("admin")
@common_options
def pause(call: Call, topic: str | None, *, server: str | None) -> None:
    """Leave a topic alone until it is resumed; all of them, if none is named.

    Rows are taken in as before, and wait in the log. It holds also for a pipeline that is started
    later.

    \b
    Example: calve pipeline pause orders
    """
    with _pipeline(call, server) as pipeline:
        _print(call, _values(pipeline.pause(topic)))


@click.command()
@click.argument("topic", metavar="[TOPIC]", required=False)
@server_option("admin")
@common_options
def resume(call: Call, topic: str | None, *, server: str | None) -> None:
    """Go on with a topic; with all that were paused, if none is named.

    \b
    Example: calve pipeline resume orders
    """
    with _pipeline(call, server) as pipeline:
        found = _values(pipeline.resume(topic))
        if found["is_paused"]:
            say("the whole pipeline is paused still: `calve pipeline resume` without a topic")
        _print(call, found)


@click.command()
@click.argument("topic", metavar="TOPIC")
@click.option(
    "--to", metavar="OFFSET", type=click.IntRange(min=1), required=True, help="The first to keep."
)
@click.option(
    "--partition", metavar="N", type=click.IntRange(min=0), help="Which, if there are several."
)
@server_option("admin")
@common_options
def skip(call: Call, topic: str, *, server: str | None, to: int, partition: int | None) -> None:
    """Send rows that do not get into their table to the dead letters.

    Those before the offset that are in no table yet. They can be looked at and replayed from
    there. The order is followed in the next cycle of the pipeline. It takes back none that was
    given before and goes further.

    \b
    Example: calve pipeline skip orders --to 1500
    """
    with _pipeline(call, server) as pipeline:
        skipped = _values(pipeline.skip(topic, to, partition))
    if call.as_json:
        print_json(skipped)
    else:
        earlier = ", as an earlier skip says" if skipped["end"] > to else ""
        say(
            f"the rows of {skipped['topic']} from offset {skipped['start']} to before "
            f"{skipped['end']} become dead letters{earlier}"
        )


@contextmanager
def _pipeline(call: Call, server: str | None) -> Iterator[_Pipeline]:
    """The pipeline, and words to standard error that say through what."""
    settings = call.settings()
    if server is None:
        from calve.service.directing import pipeline_of

        say(f"in the lake at {settings.data}")
        with pipeline_of(settings) as control:
            yield control
    else:
        say(f"through the service at {server}")
        with client_of(settings, server) as client:
            yield client.pipeline


def _values(answer: Any) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(answer)
    return values


def _print(call: Call, found: dict[str, Any]) -> None:
    if call.as_json:
        print_json(found)
        return
    owner = f", by {found['owner']}" if found["owner"] else ""
    paused = ", and is paused" if found["is_paused"] else ""
    click.echo(f"the pipeline {'runs' if found['is_running'] else 'does not run'}{owner}{paused}")
    partitions = found["partitions"]
    if partitions:
        click.echo()
        print_table(
            ("TOPIC", "", "ROWS", "BYTES", "SECONDS", "LAST COMMIT", "FLUSH", "NEXT TRY"),
            [_row(each) for each in partitions[:_SHOWN]],
        )
    for each in partitions[:_SHOWN]:
        _print_remarks(each)
    if len(partitions) > _SHOWN:
        say(f"and {len(partitions) - _SHOWN:,} more, which are better off; --json shows them all")


def _print_remarks(each: dict[str, Any]) -> None:
    if each["last_error"]:
        click.echo(f"\n{_name(each)}: {each['last_error']}")
        if each["hint"]:
            click.echo(f"  {each['hint']}")
    if each["skip_to"] is not None:
        rows = f"the rows from offset {each['committed']} to before {each['skip_to']}"
        click.echo(f"\n{_name(each)}: {rows} become dead letters (`calve pipeline skip`)")


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    seconds, size, interval = each["lag_seconds"], each["lag_bytes"], each["flush_interval_ms"]
    return (
        _name(each),
        _condition(each),
        f"{each['lag_rows']:,}",
        "?" if size is None else f"{size:,}",
        "" if seconds is None else f"{seconds:,.1f}",
        _ago(each["last_commit_at"], is_past=True),
        "" if interval is None else f"{interval / 1000:g} s",
        _ago(each["next_try_at"]),
    )


def _condition(each: dict[str, Any]) -> str:
    """Both, where a topic fails and is left alone: nothing will mend it until it is resumed."""
    condition: str = each["condition"]
    return f"paused, {condition}" if each["is_paused"] and condition == "failing" else condition


def _name(each: dict[str, Any]) -> str:
    topic: str = each["topic"]
    return topic if each["partition"] == 0 else f"{topic}/{each['partition']}"


def _ago(text: str | None, *, is_past: bool = False) -> str:
    """What is past is so also by a clock that was set back since."""
    if text is None:
        return ""
    seconds = (datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds()
    seconds = max(seconds, 0) if is_past else seconds
    return f"{seconds:,.0f} s ago" if seconds >= 0 else f"in {-seconds:,.0f} s"
