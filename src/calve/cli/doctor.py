"""`calve doctor`: check this machine, and bundle a report for those who help."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from calve.bundle import write_bundle
from calve.cli.options import Call, common_options
from calve.cli.output import print_json, say
from calve.clock import SystemClock
from calve.doctor import Check, Status, examine

_MARKS = {Status.OK: "ok", Status.WARNING: "warn", Status.FAILED: "FAIL", Status.SKIPPED: "skip"}


@click.command()
@click.option(
    "--bundle",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write a report to this zip file, with secrets masked.",
)
@common_options
def doctor(call: Call, bundle: Path | None) -> int:
    """Check everything that Calve needs on this machine.

    \b
    Example: calve doctor --bundle report.zip
    """
    loaded = call.load()
    checks = []
    for check in examine(loaded.settings, SystemClock()):
        checks.append(check)
        if not call.as_json:
            _print(check)
    if call.as_json:
        print_json({"checks": [asdict(check) for check in checks]})
    if bundle is not None:
        write_bundle(bundle, loaded, checks)
        say(f"wrote {bundle}")
    failed = [check for check in checks if check.status is Status.FAILED]
    if not call.as_json:
        say(f"{len(failed)} of {len(checks)} checks failed" if failed else "everything is fine")
    return failed[0].exit_code if failed else 0


def _print(check: Check) -> None:
    first, *rest = check.detail.splitlines()
    click.echo(f"{_MARKS[check.status]:<5} {check.name:<15} {first}")
    for line in rest:
        click.echo(f"{'':<22}{line}")
    if check.hint:
        click.echo(f"{'':<22}hint: {check.hint}")
