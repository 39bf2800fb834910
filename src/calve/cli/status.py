"""`calve status`: how the service and its topics are doing, on one screen."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
import msgspec

from calve.cli.options import Call, common_options
from calve.cli.output import counted, print_json, print_table, say
from calve.cli.place import client_of, server_option
from calve.errors import Unavailable
from calve.service.survey import Gravity, LakeStatus, status_from, survey

if TYPE_CHECKING:
    from calve.ingest.status import LogStatus
    from calve.service.survey import TopicStatus
    from calve.settings import Settings
    from calve.topics.lag import PipelineStatus

_MARKS = {Gravity.FAILED: "FAIL", Gravity.WARNING: "warn", Gravity.NOTE: "note"}
_TOPICS_SHOWN = 20


@click.command()
@server_option("admin")
@common_options
def status(call: Call, *, server: str | None) -> int:
    """Show how the lake's service is doing, the worst first, with what helps.

    With and without a running service; with --server, that of another machine. Ends with exit
    code 6 if rows cannot be taken in.

    \b
    Example: calve status
    Example: calve status --server grpc://127.0.0.1:8815
    """
    found = _asked(call.settings(), server) if server else survey(call.settings())
    if call.as_json:
        print_json(_plain(found))
    else:
        _print(found)
    return 0 if found.is_sound else Unavailable.exit_code


def _asked(settings: Settings, server: str) -> LakeStatus:
    from calve.ingest.status import IngestStatus

    say(f"through the service at {server}")
    with client_of(settings, server) as client:
        told = client.status()
    return status_from(msgspec.convert(told, IngestStatus), server)


def _plain(found: LakeStatus) -> dict[str, Any]:
    return {
        "findings": [asdict(each) for each in found.findings],
        "service": msgspec.to_builtins(found.service),
        "server": found.server,
        "log": asdict(found.log) if found.log else None,
        "topics": [asdict(each) | {"lag": each.lag} for each in found.topics],
        "pipeline": msgspec.to_builtins(found.pipeline),
    }


def _print(found: LakeStatus) -> None:
    for finding in found.findings:
        click.echo(f"{_MARKS[finding.gravity]:<5} {finding.message}")
        if finding.hint:
            click.echo(f"      {finding.hint}")
    service = found.service
    if service is not None:
        click.echo(f"up    since {service.since:%Y-%m-%d %H:%M:%S} UTC, process {service.pid}")
        click.echo(f"      {service.addresses.http}  {service.addresses.flight}")
    if found.server is not None:
        click.echo(f"up    at {found.server}")
    if found.log is not None:
        click.echo(_log_line(found.log))
    if found.pipeline is not None:
        click.echo(_pipeline_line(found.pipeline))
    if found.topics:
        _print_topics(found)


def _print_topics(found: LakeStatus) -> None:
    click.echo()
    ages = _ages(found.pipeline)
    print_table(
        ("TOPIC", "FIRST", "DURABLE", "COMMITTED", "LAG", "SECONDS"),
        [
            (*_offsets(each), ages.get((each.topic, each.partition), ""))
            for each in found.topics[:_TOPICS_SHOWN]
        ],
    )
    if len(found.topics) > _TOPICS_SHOWN:
        say(f"and {len(found.topics) - _TOPICS_SHOWN:,} more: `calve topic list` shows them all")


def _offsets(each: TopicStatus) -> tuple[str, int | None, int | None, int, int]:
    return (each.topic, each.first, each.durable, each.committed, each.lag)


def _ages(pipeline: PipelineStatus | None) -> dict[tuple[str, int], str]:
    """How old the oldest row is that waits, of each partition."""
    partitions = pipeline.partitions if pipeline else []
    return {
        (each.topic, each.partition): f"{each.lag_seconds:,.1f}"
        for each in partitions
        if each.lag_seconds is not None
    }


def _pipeline_line(pipeline: PipelineStatus) -> str:
    owner = f"runs, by {pipeline.owner}" if pipeline.is_running else "does not run"
    waiting = sum(each.lag_rows for each in pipeline.partitions)
    return f"pipe  the pipeline {owner}; {counted(waiting, 'row')} still to be brought to tables"


def _log_line(log: LogStatus) -> str:
    return (
        f"log   it has {_size(log.bytes)} of {_size(log.bytes_max)}; its disk has "
        f"{_size(log.free_bytes)} free, {_size(log.free_bytes_min)} of which stay so"
    )


def _size(count: int) -> str:
    for unit, length in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count} bytes"
