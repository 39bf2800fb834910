"""`calve topic verify`: the proof that a topic and its table agree, printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from calve.cli.opened import opened
from calve.cli.options import Call, common_options
from calve.cli.output import counted, print_json, print_table, say
from calve.cli.place import client_of, server_option
from calve.errors import Corruption
from calve.maintenance.removed import removed_with_snapshots
from calve.maintenance.verification import PartitionReport, Verification
from calve.tables.ranges import Range

_COLUMNS: Final = (
    "PARTITION", "COMMITTED", "ROWS", "DEAD LETTERS",
    "MISSING", "DOUBLED", "BEYOND", "REMOVED", "LOST",
)  # fmt: skip


@click.command()
@click.argument("topic", metavar="TOPIC")
@click.option(
    "--log",
    "log",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The log to hold the table against; the lake's own, if it has the topic.",
)
@click.option("--orphans", is_flag=True, help="List data files that no snapshot refers to.")
@server_option("admin")
@common_options
def verify(call: Call, topic: str, *, log: Path | None, orphans: bool, server: str | None) -> int:
    """Prove that each offset of a topic is in its table once, or among its dead letters.

    Tells what is missing or doubled from what was removed on purpose, and by which snapshot, and
    from known loss. Ends with exit code 7 if there is a defect. Others may go on writing. Without
    --server it looks at the lake itself; a service looks at its own log, one topic at a time.

    \b
    Example: calve topic verify orders
    """
    if log is not None and server is not None:
        raise click.UsageError(
            "--log is for the lake itself, and a service looks at its own log: leave out --log, "
            f"or --server {server} (CALVE_SERVER)"
        )
    found = _verified(call, topic, log, server, orphans=orphans)
    if call.as_json:
        print_json(found)
    else:
        _print(found)
    return 0 if found.is_sound else Corruption.exit_code


def _verified(
    call: Call, topic: str, log: Path | None, server: str | None, *, orphans: bool
) -> Verification:
    """Whoever takes rows in is spared the work, unless it was asked for."""
    if server is None:
        with opened(call) as manager:
            return manager.verify_topic(topic, log=log, orphans=orphans)
    say(f"through the service at {server}")
    with client_of(call.settings(), server) as client:
        return client.verify(topic, orphans=orphans)


def _print(found: Verification) -> None:
    if found.partitions:
        print_table(
            _COLUMNS,
            [_counts(each) for each in found.partitions],
        )
    ranges = [row for each in found.partitions for row in _ranges(each)]
    if ranges:
        click.echo()
        print_table(("WHAT", "PARTITION", "OFFSETS", "COUNT", "BY"), ranges)
    if found.orphans:
        click.echo()
        print_table(
            ("ORPHAN", "BYTES", "CHANGED (UTC)"),
            [(o.path, f"{o.bytes:,}", f"{o.changed_at:%Y-%m-%d %H:%M:%S}") for o in found.orphans],
        )
    elif found.orphans is not None:
        say("no orphans: some snapshot refers to every data file")
    for problem in _problems(found):
        say(f"problem: {problem}")
    if found.unnumbered_rows:
        say(f"inserted by hand, without an offset: {counted(found.unnumbered_rows, 'row')}")
    if found.pending_dead_letters:
        say(f"not in their table yet: {counted(found.pending_dead_letters, 'dead letter')}")
    say(f"{found.topic}: {_verdict(found)}")


def _verdict(found: Verification) -> str:
    if not found.has_table:
        if all(each.log is None or each.log.durable is None for each in found.partitions):
            return "NOT SOUND: there is no table, and its log is missing"
        said = "nothing was committed yet, and its log" if found.is_sound else "NOT SOUND: its log"
        return f"{said} holds {counted(_offsets_in_log(found), 'offset')}; there is no table"
    said = "every offset is there once, or removed on purpose" if found.is_sound else "NOT SOUND"
    aside = f" and {counted(found.dead_letters, 'dead letter')}" if found.dead_letters else ""
    return f"{said} ({counted(found.rows, 'row')}{aside}, snapshot {found.snapshot_id})"


def _offsets_in_log(found: Verification) -> int:
    states = (each.log for each in found.partitions if each.log)
    return sum((each.durable or 0) - (each.first or 0) for each in states)


def _counts(report: PartitionReport) -> tuple[object, ...]:
    listed = (report.missing, report.doubled, report.beyond, report.removed, report.known_loss)
    counts = (f"{sum(each.count for each in ranges):,}" for ranges in listed)
    kept = (report.committed, report.rows, report.dead_letters)
    return (report.partition, *(f"{each:,}" for each in kept), *counts)


def _ranges(report: PartitionReport) -> Iterator[tuple[object, ...]]:
    plain = {
        "missing": report.missing,
        "doubled": report.doubled,
        "beyond": report.beyond,
        "lost": report.known_loss,
    }
    for what, ranges in plain.items():
        for each in ranges:
            yield _row(what, report, each, None)
    for each, snapshot_ids in removed_with_snapshots(report.removed, report.removed_by):
        named = ", ".join(f"snapshot {number}" for number in snapshot_ids)
        yield _row("removed", report, each, named or None)


def _row(what: str, report: PartitionReport, each: Range, by: str | None) -> tuple[object, ...]:
    return (what, report.partition, f"{each.first}-{each.end}", f"{each.count:,}", by)


def _problems(found: Verification) -> Iterator[str]:
    yield from found.problems
    for each in found.partitions:
        yield from each.problems
        yield from each.log.problems if each.log else ()
