"""The table of a topic's dead letters, dropped on purpose: the topic's own table says so first.

Its offsets then count as removed, and the topic makes a new table for the next rows that it sets
aside: not before the one that was recorded is gone, or they would go with it. Whoever dies between
the two leaves rows that wait, until the same is done again. Without that record a table of dead
letters that is gone stops its topic. Of one that somebody else has dropped nobody knows the
offsets: the topic goes on, and they count as missing, because rows that were lost otherwise look
the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec
from pyiceberg.table.refs import MAIN_BRANCH

from calve.errors import Conflict
from calve.model import TableName
from calve.tables.commit import Committed, TableCommit
from calve.tables.dead_letters import (
    PendingDeadLetters,
    as_reached,
    awaits_letters,
    is_going,
    let_go_entry,
    let_go_table,
    named_dead_letters,
    named_partitions,
    no_dead_letters,
    reached_letters,
)
from calve.tables.feeding import feeding_topic, refuse_loss
from calve.tables.neighbours import require_deletable
from calve.tables.orphans import RemovedFiles, drop_and_purge
from calve.tables.own_files import are_there
from calve.tables.positions import committed_positions
from calve.tables.removals import Removals
from calve.tables.staging import Edit

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from calve.tables.catalog import LakeCatalog


def drop_table(
    catalog: LakeCatalog, name: str, *, purge: bool, dry_run: bool, force: bool
) -> RemovedFiles:
    """Drop a table; that of a topic only with `force`, and that of dead letters after a record."""
    accepted = _accepted(catalog, name, force=force, purge=purge, dry_run=dry_run)
    if purge and not accepted.is_gone:
        return drop_and_purge(catalog, name, dry_run=dry_run, only=accepted.only)
    if not accepted.is_gone and not dry_run:
        catalog.drop_table(name, only=accepted.only)
    return RemovedFiles((), 0, dry_run)


@dataclass(frozen=True, slots=True)
class _Accepted:
    """That a table may be dropped: `only` that one, if it has a topic's dead letters.

    `is_gone` if nothing is left to be dropped: dead letters that are gone, which is now recorded.
    """

    is_gone: bool = False
    only: UUID | None = None


def _accepted(
    catalog: LakeCatalog, name: str, *, force: bool, purge: bool, dry_run: bool
) -> _Accepted:
    """Refuse to drop a topic's table, unless forced; that of dead letters is recorded then."""
    fed = _fed(catalog, name)
    letters = catalog.find_table(name)
    is_awaited = fed is not None and awaits_letters(fed.properties)
    is_gone = letters is None and is_awaited and force
    if not is_gone:
        refuse_loss(catalog.load_table(name), force=force)
    is_own = letters is not None and feeding_topic(letters) is not None
    if fed is None or not (is_awaited or is_own) or dry_run:
        return _Accepted(is_gone)
    if purge and letters is not None:
        # Refused after the record, it would leave a table into which nothing is put any more.
        require_deletable(catalog, letters)
    recorded = _Record(catalog, name, fed).commit()
    return _Accepted(is_gone or recorded is None, recorded)


def allow_rename(catalog: LakeCatalog, name: str, *, force: bool) -> None:
    """Refuse to rename a topic's table, unless forced.

    Dead letters of an earlier topic make room for those of the one of now, which is recorded.
    """
    table = catalog.load_table(name)
    refuse_loss(table, force=force)
    fed = _fed(catalog, name)
    if fed is not None and _is_earlier(fed, table):
        _Record(catalog, name, fed).commit()


def _fed(catalog: LakeCatalog, name: str) -> Table | None:
    """The table of the topic whose dead letters have that name."""
    parsed = TableName.parse(name)
    table = catalog.find_table(parsed.topic) if parsed.is_dead_letters else None
    return table if table is not None and feeding_topic(table) == parsed.topic else None


class _Record:
    """The commit to a topic's table that says that its dead letters are let go of.

    It is made even where nothing was ever set aside: a range that is on its way with rows for the
    table that is about to go must not be committed on top of what it was prepared for.
    """

    def __init__(self, catalog: LakeCatalog, name: str, fed: Table) -> None:
        self._catalog = catalog
        self._name = name
        self._commit = TableCommit(fed)
        self._there: dict[int | None, Removals] = {}

    def commit(self) -> UUID | None:
        """Which table is let go; None if none is there any more."""
        return let_go_table(self._commit.repeat(self._attempt).table.properties)

    def _attempt(self) -> Committed:
        from calve.tables.recording import with_record

        fed = self._commit.table
        # After the topic's table: what comes into it later fails the attempt.
        letters = self._catalog.find_table(self._name)
        edit = Edit(
            properties=_let_go(fed, letters),
            stamp=lambda snapshot_id: let_go_entry(snapshot_id, letters),
        )
        removals = Removals()
        if letters is not None and not _is_earlier(fed, letters):
            removals = Removals.parse(letters.properties).merged(self._offsets(letters))
        return self._commit.attempt(with_record(fed, edit, removals, branch=MAIN_BRANCH))

    def _offsets(self, letters: Table) -> Removals:
        """Those of a snapshot are read once, however often the topic's table moves on."""
        # They load what reads data files, which whoever drops another table need not wait for.
        from calve.tables.offset_scan import offset_files, read_offsets

        snapshot_id = letters.metadata.current_snapshot_id
        if snapshot_id not in self._there:
            files = offset_files(letters, snapshot_id)
            self._there[snapshot_id] = Removals.of_runs(read_offsets(letters, files))
        return self._there[snapshot_id]


def _let_go(fed: Table, letters: Table | None) -> dict[str, str]:
    """The properties besides. Files that the table has are not named any more.

    Conflict if it is about to get some.
    """
    found: dict[str, str] = {}
    for partition in named_partitions(fed.properties):
        found |= as_reached(None, partition)
    if letters is not None and (_is_earlier(fed, letters) or is_going(letters, fed)):
        return found  # It takes nothing more: what waits is for the next.
    for partition in named_partitions(fed.properties):
        found |= _let_go_of(fed, letters, partition)
    return found


def _let_go_of(fed: Table, letters: Table | None, partition: int) -> dict[str, str]:
    named = named_dead_letters(fed.properties, partition)
    if letters is None:
        return _left(fed, named, partition)
    position = committed_positions(letters).get(partition)
    reached = position.offset if position else 0
    if reached < reached_letters(fed.properties, partition):
        return {}  # It was set back, and takes nothing more: what waits for it is for the next.
    if named and reached < named.end:
        raise Conflict(
            f"rows are on their way into {'.'.join(letters.name())}",
            hint="try again when the pipeline has brought them there",
        )
    return no_dead_letters(partition)


def _left(fed: Table, named: PendingDeadLetters | None, partition: int) -> dict[str, str]:
    """What is still named where the table is gone: whether that had the files, nobody knows.

    Those that are there come into the next one, rather than that rows are lost.
    """
    files = tuple(each for each in named.files if are_there(fed.io, [each])) if named else ()
    if named is None or not files:
        return no_dead_letters(partition)
    return msgspec.structs.replace(named, files=files).entry(partition)


def _is_earlier(fed: Table, letters: Table) -> bool:
    """Whether they are those of an earlier topic of that name, which stop the one of now."""
    reached = committed_positions(fed)
    for partition, position in committed_positions(letters).items():
        now = reached.get(partition)
        named = named_dead_letters(fed.properties, partition)
        if now is not None and now.log != position.log:
            begins_at = named.start if named else now.offset
            return position.offset > begins_at
    return False
