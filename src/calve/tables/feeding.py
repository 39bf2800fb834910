"""Whether a topic feeds a table, and what is refused to everybody else then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyiceberg.schema import Schema

from calve.errors import InvalidRequest, NotFound
from calve.model import DEAD_LETTERS_SUFFIX, TableName
from calve.tables.columns import is_reserved

if TYPE_CHECKING:
    from pyiceberg.table import Table

TOPIC: Final = "calve.topic"
_LETTER_COLUMNS: Final = frozenset({"topic", "reason", "content_type", "original"})


def feeding_topic(table: Table) -> TableName | None:
    """The topic whose rows the table gets, if it is one's."""
    name = table.properties.get(TOPIC)
    return None if name is None else TableName.parse(name)


def holds_dead_letters(table: Table) -> bool:
    """Whether a topic sets rows aside into the table."""
    return feeding_topic(table) is not None and table.name()[-1].endswith(DEAD_LETTERS_SUFFIX)


def is_letter_column(table: Table, path: str) -> bool:
    """Whether it is a column without which dead letters would be none."""
    return path in _LETTER_COLUMNS and holds_dead_letters(table)


def topic_columns(table: Table) -> Schema:
    """The columns that a topic's rows have: the table's, without Calve's own."""
    return Schema(*(field for field in table.schema().fields if not is_reserved(field.name)))


def require_topic(table: Table, name: str) -> TableName:
    """The topic that feeds a table; NotFound if none does."""
    topic = feeding_topic(table)
    if topic is None:
        raise NotFound(
            f"there is no topic {name}: the table {name} is there, but no topic feeds it",
            hint="`calve table describe` shows the table",
        )
    return topic


def table_gone(topic: TableName) -> NotFound:
    """That a topic's table was there and is not any more."""
    return NotFound(
        f"the table of topic {topic} is gone: it was dropped or renamed",
        hint="give the table its name back, or restore the catalog; if the rows that were "
        f"in it are not wanted any more, `calve topic delete {topic}` and create the "
        f"topic again, without the table {topic.dead_letters} if there is one",
        context={"topic": str(topic)},
    )


def refuse_fed(table: Table, what: str, *, hint: str, force: bool) -> None:
    """Refuse what should be done to the topic instead, unless forced."""
    topic = feeding_topic(table)
    if topic is not None and not force:
        raise InvalidRequest(
            f"the topic {topic} feeds the table: {what}", hint=hint, context={"topic": str(topic)}
        )


def refuse_loss(table: Table, *, force: bool) -> None:
    """Refuse to take the table away from its topic."""
    hint = (
        "delete or alter the topic instead; --force (force=True) does it all the same, and "
        "the topic stops with an error"
    )
    if holds_dead_letters(table):
        hint = (
            "`calve dead-letter discard` removes what is in it; with --force (force=True) it is "
            "dropped, which is recorded, or renamed: then the topic stops with an error"
        )
    refuse_fed(table, "it would lose its table", hint=hint, force=force)
