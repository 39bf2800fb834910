"""Branches and tags, printed."""

from __future__ import annotations

from collections.abc import Sequence

from calve.cli.options import Call
from calve.cli.output import print_json, print_table, say
from calve.tables.references import Reference


def print_reference(call: Call, reference: Reference) -> None:
    if call.as_json:
        print_json(reference)
    else:
        say(f"{reference.kind} {reference.name} is at snapshot {reference.snapshot_id}")


def print_references(call: Call, found: Sequence[Reference], *, none: str) -> None:
    if call.as_json:
        print_json(list(found))
    elif found:
        print_table(("NAME", "SNAPSHOT"), [(each.name, each.snapshot_id) for each in found])
    else:
        say(none)


def print_forgotten(call: Call, reference: Reference, *, dry_run: bool) -> None:
    if call.as_json:
        print_json(reference)
    else:
        what = "would be" if dry_run else "is"
        say(f"{reference.kind} {reference.name} {what} forgotten")
