"""`calve table`: its snapshots, and the files that belong to none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from calve.cli.opened import confirm, destroying, opened
from calve.cli.options import Call, common_options
from calve.cli.output import counted, print_grid, print_json, say
from calve.cli.removal import print_removal

if TYPE_CHECKING:
    from calve.tables.rollback_plan import RollbackPlan


@click.command("list-snapshots")
@click.argument("table", metavar="TABLE")
@common_options
def list_all(call: Call, table: str) -> None:
    """List a table's snapshots, oldest first.

    \b
    Example: calve table list-snapshots users
    """
    with opened(call) as manager:
        found = manager.list_snapshots(table)
    if call.as_json:
        print_json(found)
    elif found:
        for grid in found.grids():
            print_grid(grid)
    else:
        say("the table has no snapshot yet")


@click.command()
@click.argument("table", metavar="TABLE")
@click.option("--snapshot", type=int, metavar="ID", required=True, help="Where to go back to.")
@click.option("--force", is_flag=True, help="Take any snapshot that is kept, not only ancestors.")
@click.option("--replay", is_flag=True, help="Have the topic's rows come again from its log.")
@click.option(
    "--log",
    "log",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The topic's log for --replay, else the lake's own; others as pipeline.logs says.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--yes", is_flag=True, help="For scripts: nothing is asked, as snapshots keep them.")
@common_options
def rollback(
    call: Call,
    table: str,
    snapshot: int,
    *,
    dry_run: bool,
    yes: bool,  # noqa: ARG001
    **how: Any,
) -> None:
    """Go back to an earlier snapshot. Nothing is deleted: going forward again needs --force.

    In a table that a topic feeds, the rows that go are recorded as removed; with --replay, the
    committed offset goes back too, if the log still holds them.

    \b
    Example: calve table rollback users --snapshot 12340
    """
    with opened(call) as manager:
        if dry_run:
            _print_plan(call, table, manager.plan_rollback(table, snapshot, **how))
            return
        now = manager.rollback(table, snapshot, **how)
    if call.as_json:
        print_json(now)
    else:
        rows = "" if now.total_rows is None else f", {now.total_rows:,} rows"
        say(f"{table} is at snapshot {now.id} from {now.timestamp:%Y-%m-%d %H:%M:%S} UTC{rows}")


def _print_plan(call: Call, table: str, plan: RollbackPlan) -> None:
    if call.as_json:
        print_json(plan)
        return
    if not plan.has_effect:
        say(f"nothing would change: {table} is at snapshot {plan.to_snapshot_id}")
        return
    grid = plan.partition_grid()
    if grid.rows:
        print_grid(grid)
    before = _told(plan.from_snapshot_id, plan.rows_before)
    say(f"{table} would go from {before} to {_told(plan.to_snapshot_id, plan.rows_after)}")


def _told(snapshot_id: int | None, rows: int | None) -> str:
    if snapshot_id is None:
        return "no snapshot"
    return f"snapshot {snapshot_id}" + ("" if rows is None else f" with {counted(rows, 'row')}")


@click.command("expire-snapshots")
@click.argument("table", metavar="TABLE")
@click.option(
    "--days", type=click.FloatRange(min=0), metavar="N", required=True, help="Keep the last N days."
)
@click.option("--force", is_flag=True, help="Also what followers of the table have yet to read.")
@destroying
@common_options
def expire(call: Call, table: str, *, days: float, force: bool, dry_run: bool, yes: bool) -> None:
    """Forget old snapshots, and delete the files that only they needed.

    What a branch or a tag leads to is kept, and what somebody who follows the table has yet to
    read. A script need not say --yes: the days say enough.

    \b
    Example: calve table expire-snapshots users --days 30
    """
    with opened(call) as manager:
        if not dry_run and not yes and sys.stdin.isatty():
            would = manager.expire_snapshots(table, days, dry_run=True, force=force)
            confirm(
                f"Forget {counted(len(would.snapshot_ids), 'snapshot')} and delete "
                f"{counted(len(would.files), 'file')}?",
                yes=False,
            )
        expired = manager.expire_snapshots(table, days, dry_run=dry_run, force=force)
    if call.as_json:
        print_json(expired)
        return
    for file in expired.files:
        click.echo(file)
    would_be = "would be " if dry_run else ""
    say(
        f"{counted(len(expired.snapshot_ids), 'snapshot')} {would_be}forgotten, "
        f"{counted(len(expired.files), 'file')} {would_be}deleted"
    )
    for kept in expired.kept:
        say(
            f"{counted(len(kept.snapshot_ids), 'snapshot')} kept for follower {kept.follower} "
            f"until {kept.until:%Y-%m-%d %H:%M:%S} UTC"
        )


@click.command()
@click.argument("table", metavar="TABLE")
@click.option("--from", "start", type=int, metavar="ID", required=True, help="The snapshot before.")
@click.option("--to", "end", type=int, metavar="ID", help="The snapshot after; the current one.")
@common_options
def changes(call: Call, table: str, start: int, end: int | None) -> None:
    """Show the data files that came and went between two snapshots.

    \b
    Example: calve table changes users --from 12340 --to 12345
    """
    with opened(call) as manager:
        current = manager.get_current_snapshot(table) if end is None else None
        plan = manager.plan_scan(table, start, current.id if current else end or 0)
    if call.as_json:
        print_json(plan)
        return
    if plan.added or plan.deleted:
        for grid in plan.grids():
            print_grid(grid)
    else:
        say("no file came or went")


@click.command("remove-orphans")
@click.argument("table", metavar="TABLE")
@click.option(
    "--days", type=click.FloatRange(min=0), default=3.0, show_default=True, metavar="N",
    help="Leave what is younger: somebody may be about to commit it.",
)  # fmt: skip
@destroying
@common_options
def remove_orphans(call: Call, table: str, *, days: float, dry_run: bool, yes: bool) -> None:
    """Delete files in the table's directory that nothing refers to.

    Work that was cut short leaves such files. They do no harm but take room.

    \b
    Example: calve table remove-orphans users --dry-run
    """
    with opened(call) as manager:
        if not dry_run:
            confirm(f"Delete what belongs to nothing in the directory of {table}?", yes=yes)
        removal = manager.remove_orphans(table, older_than_days=days, dry_run=dry_run)
    print_removal(call, removal)
