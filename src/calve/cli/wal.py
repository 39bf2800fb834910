"""`calve wal`: look at the write-ahead log, verify it, and repair it after damage."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING

import click

from calve.audit import Trail
from calve.audit.actions import WAL_REPAIR
from calve.cli.opened import confirm
from calve.cli.options import Call, common_options
from calve.cli.output import counted, print_json, print_json_line, print_table, say
from calve.clock import SystemClock
from calve.errors import Corruption, InvalidRequest, NotFound
from calve.model import TableName
from calve.query.cells import json_rows
from calve.wal import Entry, Kind, LogReader, OsFiles
from calve.wal.files import translating
from calve.wal.inspect import LogDescription, describe_log, require_log
from calve.wal.layout import LogLayout
from calve.wal.repair import (
    AcceptedLoss,
    Hole,
    LeftOut,
    RepairReport,
    adopt,
    give_up,
    is_recorded,
    parse_loss,
    repair,
    rewrite_durable,
    rewrite_identity,
)
from calve.wal.survey import Damage, LostRange, Survey, survey

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from calve.wal import Stream
    from calve.wal.files import Files

_FILES: Files = OsFiles()
_NAMES_SHOWN = 10
_PARTITION = re.compile(r"\d{1,10}", re.ASCII)


@click.group()
def wal() -> None:
    """Look at the write-ahead log, verify and repair it."""


@wal.command()
@click.option("--quick", is_flag=True, help="Do not read the frames: damage in them is not seen.")
@common_options
def inspect(call: Call, *, quick: bool) -> None:
    """Show the log's identity, its segments and what is damaged in them, its topics and offsets.

    \b
    Example: calve wal inspect
    """
    layout = _layout(call)
    with translating(layout.root, "read"), _told_in_json(call, path=layout.root):
        description = describe_log(_FILES, layout, check=not quick)
    if call.as_json:
        print_json(description)
    else:
        _print_log(description)
    if description.problem or any(each.problem for each in description.segments):
        say("damaged: `calve wal verify` says which offsets are affected, and what to do")


@wal.command()
@common_options
def verify(call: Call) -> int:
    """Check every frame of the log, and say which offsets damage affects.

    Ends with exit code 7 if anything is damaged. The log may be written meanwhile: then only
    what is durable is checked, and the writer is not held up.

    \b
    Example: calve wal verify
    """
    layout = _layout(call)
    with translating(layout.root, "read"), _told_in_json(call, is_whole=False):
        require_log(_FILES, layout)
        found = survey(_FILES, layout)
    if call.as_json:
        print_json(_verification(found))
    else:
        _print_damages(found)
    return Corruption.exit_code if found.damages else 0


@wal.command()
@click.argument("topic", metavar="TOPIC")
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="The topic's partition.",
)
@click.option(
    "--from",
    "start",
    type=click.IntRange(min=0),
    help="The first offset; the log's first if not given.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="How many rows at most.",
)
@common_options
def dump(call: Call, topic: str, partition: int, start: int | None, limit: int) -> None:
    """Print rows of a topic as they lie in the log, rejected ones and holes too.

    \b
    Example: calve wal dump orders --from 1000 --limit 10
    """
    layout = _layout(call)
    with translating(layout.root, "read"):
        require_log(_FILES, layout)
    rows = _rows(layout, TableName.parse(topic), partition, start, limit)
    if call.as_json:
        for row in rows:
            print_json_line(row)
    else:
        print_table(
            ("OFFSET", "KIND", "INGESTED AT", "VALUE"),
            [(row["offset"], row["kind"], row["ingested_at"], row["value"]) for row in rows],
        )


@wal.command("repair")
@click.argument("topic", metavar="[TOPIC]", required=False)
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="The topic's partition.",
)
@click.option(
    "--accept-loss",
    "losses",
    metavar="A..B",
    multiple=True,
    help="Offsets of TOPIC to give up, from A up to, not including, B; "
    "or TOPIC/PARTITION:A..B, as `verify` prints it. May be given several times.",
)
@click.option(
    "--accept-unknown",
    is_flag=True,
    help="Give up the oldest or newest segment, or a part of it, although nobody knows which "
    "offsets of which topics it held.",
)
@click.option("--durable", is_flag=True, help="Write the file `durable` again.")
@click.option("--identity", is_flag=True, help="Write the file `log.json` again.")
@click.option("--adopt", is_flag=True, help="Let a copy take its original's place.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
def repair_log(
    call: Call,
    *,
    topic: str | None,
    partition: int,
    losses: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    **switches: bool,
) -> None:
    """Bring a damaged log back to work, giving up only what is accepted by name.

    Damaged segments are kept aside and written anew; lost offsets become holes, which everybody
    downstream reports as known loss. Without --accept-loss, only damage that takes no rows is
    repaired. Nobody may write the log meanwhile.

    \b
    Example: calve wal repair orders --accept-loss 1200..1250 --dry-run
    """
    layout = _layout(call)
    with translating(layout.root, "repaired"):
        require_log(_FILES, layout)
    accept_unknown = switches.pop("accept_unknown")
    if any(switches.values()):
        if topic is not None or losses or accept_unknown:
            raise click.UsageError(
                "--durable, --identity and --adopt write files again and give up no offsets: "
                "repair those in a second call, with --accept-loss"
            )
        _rewrite_files(call, layout, switches, dry_run=dry_run, yes=yes)
        return
    if topic is not None and not losses:
        raise click.UsageError(
            f"say with --accept-loss which offsets of {topic} to give up; without a topic, what "
            "can be repaired without loss is, and with --accept-unknown what nothing tells of"
        )
    accepted = [_accepted(text, topic, partition) for text in losses]
    if accepted and not _is_damaged(layout):
        _give_up(call, layout, accepted, dry_run=dry_run, yes=yes)
        return
    run = partial(repair, _FILES, layout, accepted, accept_unknown=accept_unknown)
    report = run(dry_run=True)
    if not dry_run and report.rewritten:
        confirm(f"Rewrite {counted(len(report.rewritten), 'segment')} of {layout.root}?", yes=yes)
        details = {
            "accepted": [str(one) for one in accepted],
            "accept_unknown": accept_unknown,
            "holes": [str(hole) for hole in report.holes],
        }
        with _recorded(call, layout, **details):
            report = run(dry_run=False)
    _print_report(call, report, dry_run=dry_run)


@contextmanager
def _told_in_json(call: Call, **known: object) -> Iterator[None]:
    """Damage that leaves nothing else to tell is told to those who read JSON too."""
    try:
        yield
    except Corruption as error:
        if call.as_json:
            print_json({**known, "error": {"message": error.message, "hint": error.hint}})
        raise


def _is_damaged(layout: LogLayout) -> bool:
    with translating(layout.root, "repaired"):
        return bool(survey(_FILES, layout).damages)


def _rewrite_files(
    call: Call, layout: LogLayout, switches: dict[str, bool], *, dry_run: bool, yes: bool
) -> None:
    written = []
    if switches["identity"] or switches["adopt"]:
        written.append(layout.identity.name)
    if switches["durable"]:
        written.append(layout.durable.name)
    if dry_run:
        say(f"would write again: {', '.join(written)}")
    else:
        confirm(f"Write {', '.join(written)} of {layout.root} again?", yes=yes)
        with _recorded(call, layout, **switches):
            _write_again(layout, switches)
        say("done; `calve wal verify` checks the rest")
    if call.as_json:
        print_json({"dry_run": dry_run, "written": written})


def _write_again(layout: LogLayout, switches: dict[str, bool]) -> None:
    if switches["identity"]:
        rewrite_identity(_FILES, layout, SystemClock().now())
    if switches["adopt"]:
        adopt(_FILES, layout)
    if switches["durable"]:
        rewrite_durable(_FILES, layout)


def _recorded(call: Call, layout: LogLayout, **details: object) -> AbstractContextManager[object]:
    trail = Trail.of(call.load().settings)
    return trail.recording(WAL_REPAIR, str(layout.root), details)


def _give_up(
    call: Call, layout: LogLayout, accepted: list[AcceptedLoss], *, dry_run: bool, yes: bool
) -> None:
    already = [one for one in accepted if is_recorded(_FILES, layout, one)]
    if already:
        say(f"recorded as lost already: {', '.join(map(str, already))}")
    new = [one for one in accepted if one not in already]
    if new:
        _record_losses(call, layout, new, dry_run=dry_run, yes=yes)
    if call.as_json:
        holes = [Hole(one.name, one.first, one.end) for one in accepted]
        _print_report(call, RepairReport(holes=holes), dry_run=dry_run)


def _record_losses(
    call: Call, layout: LogLayout, accepted: list[AcceptedLoss], *, dry_run: bool, yes: bool
) -> None:
    named = ", ".join(map(str, accepted))
    give_up(_FILES, layout, accepted, dry_run=True)
    if dry_run:
        say(f"would record as lost: {named}")
        return
    confirm(f"Nothing is damaged; record {named} as lost?", yes=yes)
    with _recorded(call, layout, lost=named):
        give_up(_FILES, layout, accepted, dry_run=False)
    say(f"recorded as lost: {named}")


def _accepted(text: str, topic: str | None, partition: int) -> AcceptedLoss:
    name, first, end = parse_loss(text)
    if name is not None:
        topic, slash, number = name.partition("/")
        if slash and not _PARTITION.fullmatch(number):
            raise InvalidRequest(
                f"--accept-loss {text} names no partition", hint="write TOPIC/PARTITION:A..B"
            )
        partition = int(number) if slash else partition
    if topic is None:
        raise InvalidRequest(
            f"--accept-loss {text} names no topic", hint=f"write TOPIC/PARTITION:{text}"
        )
    return AcceptedLoss(TableName.parse(topic), partition, first, end)


def _layout(call: Call) -> LogLayout:
    path = call.settings().wal.path
    assert path is not None
    return LogLayout(path)


def _rows(
    layout: LogLayout, topic: TableName, partition: int, start: int | None, limit: int
) -> Iterator[dict[str, object]]:
    """One after the other, so that the first are there before the last are read."""
    with translating(layout.root, "read"), LogReader(layout.root, files=_FILES) as reader:
        stream = _stream(reader, topic, partition)
        offsets = reader.offsets(stream)
        first = offsets.first if start is None else start
        if first >= offsets.durable:
            say(f"{stream.name} ends at offset {offsets.durable}")
        for entry in reader.read(stream, first, min(first + limit, offsets.durable)):
            for offset, value in enumerate(_values(entry), entry.first_offset):
                yield {
                    "partition": partition,
                    "offset": offset,
                    "ingested_at": entry.ingested_at.isoformat(timespec="microseconds"),
                    "kind": entry.kind.name.lower(),
                    "value": value,
                }


def _stream(reader: LogReader, topic: TableName, partition: int) -> Stream:
    try:
        return reader.stream(topic, partition)
    except NotFound as error:
        held = ", ".join(sorted(each.name for each in reader.streams)[:_NAMES_SHOWN])
        raise NotFound(error.message, hint=f"it has {held or 'none'}") from error


def _values(entry: Entry) -> Iterable[object]:
    if entry.kind == Kind.HOLE or entry.batch is None:
        return repeat(None, entry.end_offset - entry.first_offset)
    return json_rows(entry.batch)


def _print_log(description: LogDescription) -> None:
    print_table(
        ("TOPIC", "PARTITION", "FIRST", "DURABLE", "STREAM"),
        [
            (s.topic, s.partition, s.first_offset, s.durable_offset, s.stream_id)
            for s in description.streams
        ],
    )
    click.echo()
    print_table(
        ("SEGMENT", "BYTES", "STATE"),
        [
            (s.file, s.bytes, s.problem or ("sealed" if s.is_sealed else "open"))
            for s in description.segments
        ],
    )
    click.echo()
    shown = {
        "log": description.log_id,
        "made": description.created_at.isoformat(timespec="seconds"),
        "format": f"v{description.format_version}",
        "bytes": description.bytes,
        "writer": "yes" if description.has_writer else "no",
        "problem": description.problem,
    }
    print_table(("ABOUT", str(description.path)), list(shown.items()))


def _verification(found: Survey) -> dict[str, object]:
    return {
        "is_whole": not found.damages,
        "segments": len(found.segments),
        "frames": sum(len(segment.frames) for segment in found.segments),
        "torn_tail_bytes": sum(segment.torn_bytes for segment in found.segments),
        "damages": [
            {
                "file": str(damage.path),
                "begin": damage.begin,
                "end": damage.end,
                "reason": damage.reason,
                "lost": [_lost(found, lost) for lost in damage.lost],
                "doubtful": [_lost(found, one) for one in damage.doubtful],
                "nameless_streams": len(damage.nameless),
                "is_loss_known": damage.is_loss_known,
            }
            for damage in found.damages
        ],
        "lost": [_lost(found, lost) for lost in found.lost],
    }


def _lost(found: Survey, lost: LostRange) -> dict[str, object]:
    stream = found.names[lost.stream]
    return {
        "topic": str(stream.topic),
        "partition": stream.partition,
        "name": stream.name,
        "first": lost.first,
        "end": lost.end,
    }


def _print_damages(found: Survey) -> None:
    if not found.damages:
        frames = sum(len(segment.frames) for segment in found.segments)
        say(f"whole: {counted(frames, 'frame')} in {counted(len(found.segments), 'segment')}")
        return
    print_table(
        ("FILE", "BYTE", "REASON", "LOST"),
        [
            (damage.path.name, damage.begin, damage.reason, _lost_text(found, damage))
            for damage in found.damages
        ],
    )
    say(f"damaged: {counted(len(found.damages), 'place')}")
    command = " ".join(("calve wal repair", *found.flags))
    say(f"hint: bring the files back from a copy, or `{command}`")


def _lost_text(found: Survey, damage: Damage) -> str:
    named = [found.describe(one) for one in damage.lost]
    if damage.doubtful:
        count = counted(len(damage.doubtful), "other topic")
        named.append(f"and maybe rows of {count}: nothing tells")
    if damage.nameless:
        named.append(f"the names of {counted(len(damage.nameless), 'topic')}")
    elif not damage.is_loss_known and not damage.doubtful:
        named.append("what else is not known")
    return ", ".join(named) or "no rows"


def _print_report(call: Call, report: RepairReport, *, dry_run: bool) -> None:
    if call.as_json:
        holes = [hole._asdict() for hole in report.holes]
        print_json(
            {
                "dry_run": dry_run,
                "rewritten": report.rewritten,
                "kept_aside": report.kept_aside,
                "holes": holes,
                "left_out": report.left_out._asdict(),
            }
        )
    elif not report.rewritten:
        say("nothing is damaged")
    else:
        verb = "would rewrite" if dry_run else "rewrote"
        say(f"{verb} {', '.join(path.name for path in report.rewritten)}")
        aside = counted(len(report.kept_aside), "file")
        say(f"{'would keep' if dry_run else 'kept'} {aside} aside")
        for hole in report.holes:
            say(f"{'would record' if dry_run else 'recorded'} as lost: {hole}")
        if report.left_out.streams:
            _say_left_out(report.left_out, dry_run=dry_run)


def _say_left_out(left: LeftOut, *, dry_run: bool) -> None:
    rows = f"{counted(left.rows, 'row')} in {counted(left.frames, 'frame')}"
    topics = f"{counted(left.streams, 'topic')} whose name is destroyed"
    where = "only in the file kept aside"
    say(f"{rows} of {topics} {'would be' if dry_run else 'are now'} {where}")
    say(
        "hint: the service names such a topic: it has no stream in the log any more, and "
        "`calve topic alter TOPIC --new-log` has it go on where its table ends"
    )
