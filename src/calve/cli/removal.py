"""Which files were deleted, printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from calve.cli.options import Call
from calve.cli.output import print_json, say

if TYPE_CHECKING:
    from calve.tables.orphans import RemovedFiles


def print_removal(call: Call, removal: RemovedFiles) -> None:
    if call.as_json:
        print_json(removal)
        return
    for file in removal.files:
        click.echo(file)
    what = "would be deleted" if removal.is_dry_run else "deleted"
    say(f"{len(removal.files):,} files with {removal.bytes:,} bytes {what}")
