"""The table of what a topic could not take into its own: each row as it came, and why.

Its rows have offsets of the topic's log. An offset is in the topic's table or in this one: the
commit to the topic's table names the files with the rows that were set aside in its range, in the
property `calve.dead_letters.<partition>`, and they are committed to this table after it. Once that
property is there, even empty, this table must be; `calve.dead_letters.let_go` says that it was
dropped on purpose, and names the snapshot that recorded it and the table. That is recorded before
the table is dropped: while it is still there, nothing is put into it any more. How far it had come
when the next range was committed is in `calve.dead_letters.reached.<partition>`: it never has less,
unless somebody has set it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final
from uuid import UUID

import msgspec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from calve.errors import Conflict, Corruption, NotFound, Unavailable
from calve.model import TableName
from calve.tables.catalog import LakeCatalog
from calve.tables.columns import OFFSET, PARTITION
from calve.tables.feeding import TOPIC, feeding_topic
from calve.tables.positions import Position, committed_position

INGESTED_AT: Final = "_calve_ingested_at"
DEAD_LETTER_SCHEMA: Final = Schema(
    NestedField(1, "topic", StringType(), required=True),
    NestedField(2, "reason", StringType(), required=True),
    NestedField(3, "content_type", StringType(), required=True),
    NestedField(4, "original", BinaryType(), required=True),
    NestedField(5, PARTITION, IntegerType()),
    NestedField(6, OFFSET, LongType()),
    NestedField(7, INGESTED_AT, TimestamptzType()),
)
_PENDING: Final = "calve.dead_letters."
_REACHED: Final = "calve.dead_letters.reached."
LET_GO: Final = "calve.dead_letters.let_go"


def dead_letter_properties(topic: TableName) -> dict[str, str]:
    """What makes a table the one of a topic's dead letters, and lets readers prune by offset."""
    return {
        TOPIC: str(topic),
        f"write.metadata.metrics.column.{OFFSET}": "full",
        # Nobody looks for an original by its first bytes.
        "write.metadata.metrics.column.original": "none",
        # A file is written anew for each few that are replayed or discarded.
        "write.target-file-size-bytes": str(64 * 1024 * 1024),
    }


def find_dead_letter_table(catalog: LakeCatalog, topic: TableName) -> Table | None:
    """The table of a topic's dead letters, if anything was ever set aside."""
    table = catalog.find_table(topic.dead_letters)
    if table is not None:
        _require_own(table, topic)
    return table


def require_dead_letters_kept(topic: TableName, fed: Table) -> None:
    """NotFound if the topic's table says that there were dead letters, and their table is gone."""
    if not had_dead_letters(fed.properties):
        return
    name = topic.dead_letters
    raise NotFound(
        f"the table {name} is gone, which has the rows that topic {topic} has set aside: it was "
        "dropped or renamed",
        hint="give the table its name back, or restore the catalog; `calve table drop --force "
        f"{name}` says that its rows are not wanted any more, and the topic goes on",
        context={"table": str(name), "topic": str(topic)},
    )


def ensure_dead_letter_table(
    catalog: LakeCatalog, topic: TableName, fed: Table | None = None
) -> Table:
    """The table of a topic's dead letters; made if it is not there.

    Given the topic's own table, it is not made anew where that one says that it was there, and
    Unavailable while one is there that is about to be dropped.
    """
    found = find_dead_letter_table(catalog, topic)
    if found is not None and fed is not None and is_going(found, fed):
        raise _going(topic)
    if found is not None:
        return found
    if fed is not None:
        require_dead_letters_kept(topic, fed)
    try:
        return catalog.create_table(
            topic.dead_letters, DEAD_LETTER_SCHEMA, properties=dead_letter_properties(topic)
        )
    except Conflict:
        # Somebody else was faster.
        table = catalog.load_table(topic.dead_letters)
        _require_own(table, topic)
        return table


def _going(topic: TableName) -> Unavailable:
    name = topic.dead_letters
    return Unavailable(
        f"the table {name} is being dropped or renamed: the rows that topic {topic} sets aside "
        "wait for a new one",
        hint="they come when that has ended. If it was interrupted, do it again: `calve table drop "
        f"--force {name}`, or `calve table rename --force {name}` to keep what is in it",
        context={"table": str(name), "topic": str(topic)},
    )


def _require_own(table: Table, topic: TableName) -> None:
    missing = {*DEAD_LETTER_SCHEMA.column_names} - {*table.schema().column_names}
    if feeding_topic(table) != topic or missing:
        lacks = f"lacks the columns {', '.join(sorted(missing))}" if missing else "is not its"
        raise Conflict(
            f"the dead letters of {topic} go into the table {topic.dead_letters}, which {lacks}",
            hint="rename that table, or bring its columns and its property `calve.topic` back",
            context={"table": str(topic.dead_letters)},
        )


def require_earlier(letters: Table, partition: int, position: Position, *, begins_at: int) -> None:
    """Refuse a table with dead letters of another stream, unless a stream goes on where it ended.

    Then two rows would have one offset, and nobody could tell which of them is meant.
    """
    if position.offset <= begins_at:
        return
    name = ".".join(letters.name())
    raise Conflict(
        f"the dead letters in {name} are those of an earlier topic of that name: it came to offset "
        f"{position.offset} of partition {partition}, and the topic of now begins at {begins_at}",
        hint=f"`calve table rename --force {name} NEW_NAME` keeps them under another name, and "
        f"`calve table drop --force {name}` lets them go; the rows of the topic wait until then",
        context={"table": name, "expected": str(position.log)},
    )


def require_not_set_back(letters: Table, fed: Table, partition: int) -> None:
    """Corruption if the dead letters have less than the topic's table, `fed`, knows them to."""
    reached = reached_letters(fed.properties, partition)
    position = committed_position(letters, partition)
    found = position.offset if position else 0
    if found >= reached:
        return
    topic = feeding_topic(letters)
    assert topic is not None
    name = topic.dead_letters
    raise Corruption(
        f"the table {name} was set back: its dead letters of partition {partition} reach offset "
        f"{found}, and {topic} knows that they had come to {reached}",
        hint="if an older copy of it was restored, bring the newer one back: the topic goes on by "
        f"itself. If that is lost, `calve table drop --force {name}` lets go of what is left, and "
        f"the topic goes on with a new one; `calve topic verify {topic}` says which rows are "
        "missing",
        context={"table": str(name), "found": str(found), "expected": str(reached)},
    )


def reached_letters(properties: Mapping[str, str], partition: int) -> int:
    """How far the dead letters of a partition have come at least."""
    text = properties.get(f"{_REACHED}{partition}", "")
    return int(text) if text.isdecimal() else 0


def as_reached(offset: int | None, partition: int) -> dict[str, str]:
    """The property that says so; None where nothing is known any more."""
    return {f"{_REACHED}{partition}": "" if offset is None else str(offset)}


class PendingDeadLetters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files with what was set aside of a range that the topic's table has, as it names them."""

    start: Annotated[int, msgspec.Meta(ge=0)]
    end: Annotated[int, msgspec.Meta(ge=0)]
    operation: str
    files: tuple[str, ...]

    def entry(self, partition: int) -> dict[str, str]:
        """The property of the topic's table."""
        return {f"{_PENDING}{partition}": msgspec.json.encode(self).decode()}


def no_dead_letters(partition: int) -> dict[str, str]:
    """The property of the topic's table after a range of which every row was taken."""
    return {f"{_PENDING}{partition}": ""}


def named_dead_letters(properties: Mapping[str, str], partition: int) -> PendingDeadLetters | None:
    """The files that the last range of a partition set aside; the dead-letter table may have them.

    None if it set nothing aside. Corruption if it cannot be read.
    """
    name = f"{_PENDING}{partition}"
    text = properties.get(name, "")
    if not text:
        return None
    try:
        found = msgspec.json.decode(text, type=PendingDeadLetters)
        if found.start >= found.end:
            raise msgspec.ValidationError(f"{found.start}-{found.end} is no range")
    except msgspec.MsgspecError as error:
        raise Corruption(
            f"{name}, which names the files with dead letters, is unreadable: {error}",
            hint="set the table's property to what the metadata file before this one says; the "
            "files are below the dead-letter table, `calve topic verify --orphans` lists them",
            context={"property": name, "value": text},
        ) from error
    return found


def named_partitions(properties: Mapping[str, str]) -> list[int]:
    """Those of which the topic has ever set rows aside."""
    names = (name.removeprefix(_PENDING) for name in properties if name.startswith(_PENDING))
    return [int(name) for name in names if name.isdecimal()]


def are_let_go(properties: Mapping[str, str]) -> bool:
    """Whether the dead letters of a topic were dropped on purpose, and none came since."""
    return bool(properties.get(LET_GO))


def let_go_entry(snapshot_id: int, letters: Table | None) -> dict[str, str]:
    """The property that says so, of a table that is about to go, or is gone."""
    named = "" if letters is None else f" {letters.metadata.table_uuid}"
    return {LET_GO: f"{snapshot_id}{named}"}


def let_go_table(properties: Mapping[str, str]) -> UUID | None:
    """Which table of dead letters was let go, where that is known: an earlier Calve named none."""
    _, _, text = properties.get(LET_GO, "").partition(" ")
    try:
        return UUID(text) if text else None
    except ValueError:
        return None


def is_going(letters: Table, fed: Table) -> bool:
    """Whether the topic's table, `fed`, says that this very one is about to be dropped.

    What is put into it from then on would go with it, and nothing would say that it was there.
    """
    return letters.metadata.table_uuid == let_go_table(fed.properties)


def had_dead_letters(properties: Mapping[str, str]) -> bool:
    """Whether the topic's table says that a table with dead letters must be there."""
    return bool(named_partitions(properties)) and not are_let_go(properties)


def awaits_letters(properties: Mapping[str, str]) -> bool:
    """Whether the topic's table knows anything of dead letters that were not let go."""
    return had_dead_letters(properties) or any(
        properties.get(f"{_PENDING}{each}") or reached_letters(properties, each)
        for each in named_partitions(properties)
    )


def files_named_by(table: Table) -> set[str]:
    """The files with dead letters that a topic's table names, committed or not."""
    found: set[str] = set()
    for partition in named_partitions(table.properties):
        pending = named_dead_letters(table.properties, partition)
        found.update(pending.files if pending else ())
    return found


def files_awaited_by(catalog: LakeCatalog, letters: str) -> set[str]:
    """The files that a table is about to get, because its topic's table names them."""
    name = TableName.parse(letters)
    if not name.is_dead_letters:
        return set()
    table = catalog.find_table(name.topic)
    return set() if table is None else files_named_by(table)
