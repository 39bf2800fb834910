"""`calve up`: the service, in the foreground, until it is told to stop."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

import click
import msgspec

from calve.cli.options import Call, common_options
from calve.cli.output import print_json_line, say
from calve.errors import EXIT_INTERRUPTED, MissingPart
from calve.service.orders import Order
from calve.service.supervisor import RoleName, Supervisor

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from calve.service.announcement import Addresses
    from calve.settings import Settings


_LOOK: Final = """\
`calve sql "select * from events"` shows them at once, `calve status` how far they are on the way to
their table.
"""
_ROLES: Final[tuple[RoleName, ...]] = ("ingest", "pipeline")


@click.command()
@click.option(
    "--only",
    type=click.Choice(["ingest", "pipeline", "console"]),
    help="Run this part alone; ingest and pipeline, if left out.",
)
@click.option("--demo", is_flag=True, help="Also send sample rows to a topic called demo.")
@common_options
def up(call: Call, *, only: str | None, demo: bool) -> int:
    """Run the service: rows are taken in over Flight, HTTP and OTLP, and brought to their tables.

    The lake is made if it is new. Ctrl-C has the service answer what it has accepted, bring it to
    the tables for a while, and stops it; a second Ctrl-C ends it at once. A process of the service
    that dies is started again. With --json the addresses are printed as one line once it is ready.

    \b
    Example: calve up
    Example: calve up --only pipeline
    Example: calve up --set ingest.http_port=0 --set ingest.flight_port=0 --json
    """
    if only == "console":
        raise MissingPart("this version has no console yet", hint="`calve up` runs what there is")
    if only == "pipeline" and demo:
        raise click.UsageError("--demo needs ingest, which takes its rows")
    settings = call.settings()
    roles = _ROLES if only is None else [role for role in _ROLES if role == only]
    supervisor = Supervisor(settings, _order(call, settings), roles=roles, say=say)
    with _stopping(supervisor) as asked, supervisor:
        addresses = supervisor.addresses if "ingest" in roles else None
        _print(call, settings, addresses)
        with _traffic(settings, addresses, demo=demo):
            supervisor.run()
    say("stopped" if len(asked) < 2 else "ended at once")
    return 0 if len(asked) < 2 else EXIT_INTERRUPTED


@contextmanager
def _stopping(supervisor: Supervisor) -> Iterator[list[int]]:
    """Have SIGINT and SIGTERM stop the service; the signals that came are in the list."""
    asked: list[int] = []

    def stop(number: int, _: object) -> None:
        asked.append(number)
        supervisor.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _order(call: Call, settings: Settings) -> Order:
    flags = dict(call.flags)
    if settings.log.format == "auto" and sys.stderr.isatty():
        flags["log.format"] = "human"  # which the process cannot know behind its pipe
    config = None if call.config is None else str(call.config)
    return Order(config=config, flags=flags)


def _traffic(
    settings: Settings, addresses: Addresses | None, *, demo: bool
) -> AbstractContextManager[None]:
    if not demo or addresses is None:
        return nullcontext()
    from calve.cli.demo import TOPIC, demo_traffic

    say(f"sending sample rows to the topic {TOPIC}")
    return demo_traffic(settings, addresses.flight)


def _print(call: Call, settings: Settings, addresses: Addresses | None) -> None:
    if call.as_json:
        print_json_line({} if addresses is None else msgspec.to_builtins(addresses))
        return
    if addresses is None:
        say(f"The pipeline of the lake in {settings.data} is ready. Ctrl-C stops it.")
        return
    click.echo(f"Flight  {addresses.flight}")
    click.echo(f"HTTP    {addresses.http}")
    if addresses.otlp_grpc and addresses.otlp_http:
        click.echo(f"OTLP    {addresses.otlp_grpc} (gRPC), {addresses.otlp_http} (HTTP)")
    say(
        f"""
The lake is in {settings.data}. Ctrl-C stops the service. To send a row, copy a line:

  echo '{{"id": 1}}' | calve produce events --data - --server {addresses.flight}
  curl --json '[{{"id": 2}}]' {addresses.http}/v1/topics/events/rows
  python -c 'import calve; calve.Client("{addresses.flight}").produce("events", [{{"id": 3}}])'
"""
    )
    say(_LOOK)
