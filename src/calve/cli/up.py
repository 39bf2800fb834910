"""`calve up`: the service, in the foreground, until it is told to stop."""

from __future__ import annotations

import shlex
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
    return demo_traffic(settings, addresses.from_here().flight)


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
    sending = _sending(settings, addresses)
    say(f"\nThe lake is in {settings.data}. Ctrl-C stops the service. {sending}")
    say(_LOOK)


def _sending(settings: Settings, addresses: Addresses) -> str:
    if settings.ingest.tls_client_ca is not None:
        return (
            "Who sends rows shows a certificate\nthat `calve tls init --client NAME` makes; "
            "docs/operating/security.md tells how.\n"
        )
    lines = "\n".join(f"  {line}" for line in _lines_that_send(settings, addresses))
    which = "the first line and another" if settings.auth.required else "a line"
    return f"To send a row, copy {which}:\n\n{lines}\n"


def _lines_that_send(settings: Settings, addresses: Addresses) -> Iterator[str]:
    """Which work as they stand, in a shell of this machine."""
    at = addresses.from_here()
    command = header = authority = keywords = module = ""
    if settings.auth.required:
        lake = shlex.quote(str(settings.data))
        yield f"export CALVE_TOKEN=$(calve token create me --scope produce --data {lake})"
        header = '-H "Authorization: Bearer $CALVE_TOKEN" '
        keywords, module = ', token=os.environ["CALVE_TOKEN"]', ", os"
    if settings.ingest.tls_cert is not None:
        file = str(settings.ingest.trusted)
        command = " --set " + shlex.quote(f"ingest.tls_ca={file}")
        authority = f"--cacert {shlex.quote(file)} "
        keywords += f', tls_root_certs=open({_text(file)}, "rb").read()'
    program = (
        f"import calve{module}; "
        f'calve.Client({_text(at.flight)}{keywords}).produce("events", [{{"id": 3}}])'
    )
    yield f"echo '{{\"id\": 1}}' | calve produce events --data - --server {at.flight}{command}"
    yield f"curl {authority}{header}--json '[{{\"id\": 2}}]' {at.http}/v1/topics/events/rows"
    yield f"python -c {shlex.quote(program)}"


def _text(value: str) -> str:
    return msgspec.json.encode(value).decode()
