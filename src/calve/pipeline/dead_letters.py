"""Brings what was set aside into the table of dead letters, once the topic's own table says so.

The commit of a range to the topic's table names the files; they are committed here after it, and
before the partition's next range. Whoever comes after a crash finds them by that name, also of a
partition whose log is away. Files of a range that was not committed are never named, and never come
in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calve.errors import Conflict
from calve.pipeline.waits import BRIEF_RETRY
from calve.tables.dead_letters import (
    LET_GO,
    PendingDeadLetters,
    as_reached,
    ensure_dead_letter_table,
    find_dead_letter_table,
    named_dead_letters,
    named_partitions,
    no_dead_letters,
    require_earlier,
    require_not_set_back,
)
from calve.tables.footers import described_files
from calve.tables.lineage import is_unbroken
from calve.tables.offsets import LogRange, commit_range
from calve.tables.positions import committed_position
from calve.tables.staging import Edit

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from calve.pipeline.feed import Parcel
    from calve.tables.catalog import LakeCatalog
    from calve.topics.topic import Topic


class DeadLetterCommits:
    def __init__(self, catalog: LakeCatalog) -> None:
        self._catalog = catalog

    def settle_all(self, topic: Topic, table: Table, *, but: Container[int] = ()) -> None:
        """Commit what the topic's table names of any partition, also of one that is not its now.

        No log is needed for it, and its own may never come back. A partition of which the table
        was set back or edited is left alone: whoever goes on with it says so.
        """
        named = [
            each
            for each in named_partitions(table.properties)
            if each not in but and named_dead_letters(table.properties, each)
        ]
        # Most often all of them are in, which one look tells of however many partitions.
        letters = find_dead_letter_table(self._catalog, topic.name) if named else None
        for partition in named:
            position = committed_position(table, partition)
            is_in = letters is not None and _has_named(letters, table, partition)
            if not is_in and is_unbroken(table, partition, position):
                self.settle(topic, table, partition)

    def settle(
        self, topic: Topic, table: Table, partition: int, parcel: Parcel | None = None
    ) -> None:
        """Commit the files that the topic's table names, unless they are in.

        `parcel` is the one that was just committed, which need not be looked into.
        """
        named = named_dead_letters(table.properties, partition)
        reached = committed_position(table, partition)
        if named is None or reached is None:
            return
        letters = ensure_dead_letter_table(self._catalog, topic.name, table)
        require_not_set_back(letters, table, partition)
        position = committed_position(letters, partition)
        if position is not None and position.log != reached.log:
            # Those of a log that this one has taken over from have all come before.
            require_earlier(letters, partition, position, begins_at=named.start)
        elif position is not None and position.offset >= named.end:
            return
        is_known = parcel is not None and parcel.operation_id == named.operation
        files: Sequence[DataFile] = (
            parcel.dead_letters
            if parcel is not None and is_known
            else described_files(letters, named.files)
        )
        start = position.offset if position else 0
        commit_range(
            letters,
            LogRange(partition, reached.log, start, named.end, ""),
            Edit(added=files),
            operation_id=named.operation,
            replaces=position.log if position else None,
            retry=BRIEF_RETRY,
        )


def _has_named(letters: Table, table: Table, partition: int) -> bool:
    """Whether the dead letters that a topic's table names of a partition are in theirs."""
    named = named_dead_letters(table.properties, partition)
    reached, position = (committed_position(each, partition) for each in (table, letters))
    if named is None or reached is None or position is None:
        return False
    return position.log == reached.log and position.offset >= named.end


def naming(table: Table, parcel: Parcel) -> dict[str, str]:
    """The properties with which the commit of a range names what it sets aside.

    What the range before it has set aside is in the table of dead letters by now. Conflict if that
    was dropped since the range was written for it: its files may have gone with it.
    """
    rows = parcel.rows
    before = named_dead_letters(table.properties, rows.partition)
    reached = as_reached(before.end, rows.partition) if before else {}
    let_go = table.properties.get(LET_GO, "")
    if let_go not in {"", parcel.let_go} and (parcel.dead_letters or before):
        raise Conflict(
            f"the dead letters of {'.'.join(table.name())} were dropped while rows were written "
            "for them",
            hint="the pipeline writes the rows again, for a new table of dead letters",
        )
    anew = {LET_GO: ""} if let_go and (parcel.dead_letters or before) else {}
    if parcel.dead_letters:
        named = PendingDeadLetters(
            start=rows.start,
            end=rows.end,
            operation=parcel.operation_id,
            files=tuple(file.file_path for file in parcel.dead_letters),
        )
        return {**named.entry(rows.partition), **reached, **anew}
    nothing = no_dead_letters(rows.partition)
    return {**{name: "" for name in nothing if table.properties.get(name)}, **reached, **anew}
