"""The table of what a topic's table could not take: how it is made, fed and looked after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import calve
from calve.errors import Conflict, Corruption, InvalidRequest
from calve.lake import Lake
from calve.model import TableName
from calve.tables import feeding
from calve.tables.columns import OFFSET
from calve.tables.dead_letters import (
    DEAD_LETTER_SCHEMA,
    PendingDeadLetters,
    ensure_dead_letter_table,
    find_dead_letter_table,
    named_dead_letters,
    no_dead_letters,
)
from calve.tables.positions import committed_position
from calve.topics import TopicSpec
from tests.fakes.dead_letters import Letter, commit_main, commit_pending, set_aside
from tests.fakes.topic_table import make_topic_table

EVENTS = TableName.parse("events")


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with calve.open(tmp_path / "lake") as lake:
        make_topic_table(lake.catalog, "events")
        yield lake


def test_the_table_is_made_once_and_belongs_to_its_topic(lake: Lake) -> None:
    assert find_dead_letter_table(lake.catalog, EVENTS) is None
    made = ensure_dead_letter_table(lake.catalog, EVENTS)
    again = ensure_dead_letter_table(lake.catalog, EVENTS)
    assert made.metadata.table_uuid == again.metadata.table_uuid
    assert made.properties["calve.topic"] == "events"


def test_a_table_of_that_name_which_is_not_the_topics_is_left_alone(lake: Lake) -> None:
    lake.catalog.create_table(EVENTS.dead_letters, make_topic_table(lake.catalog, "x").schema())
    with pytest.raises(Conflict, match="lacks the columns"):
        ensure_dead_letter_table(lake.catalog, EVENTS)


def test_dead_letters_are_committed_from_the_footers_of_their_files(lake: Lake) -> None:
    commit_main(lake.catalog, EVENTS, [0, 2], {1: Letter(original="grün".encode()), 3: Letter()})
    commit_pending(lake.catalog, EVENTS)
    commit_pending(lake.catalog, EVENTS)
    table = ensure_dead_letter_table(lake.catalog, EVENTS)
    rows = table.scan().to_arrow().to_pylist()
    assert [(row[OFFSET], row["original"]) for row in rows] == [
        (1, "grün".encode()),
        (3, b'{"id": "x"}'),
    ]
    position = committed_position(table, 0)
    assert position is not None
    assert position.offset == 4
    assert [row[OFFSET] for row in table.scan(f"{OFFSET} > 2").to_arrow().to_pylist()] == [3]
    (file,) = table.inspect.files().to_pylist()
    assert file["readable_metrics"][OFFSET]["lower_bound"] == 1
    assert file["readable_metrics"][OFFSET]["upper_bound"] == 3


def test_files_are_described_also_when_the_table_was_partitioned_meanwhile(lake: Lake) -> None:
    commit_main(lake.catalog, EVENTS, [0], {1: Letter(reason="a"), 2: Letter(reason="b")})
    lake.tables.alter_partition("events__dead_letters", add=["reason"])
    commit_pending(lake.catalog, EVENTS)
    assert len(lake.sql("select * from events__dead_letters where reason = 'b'")) == 1


def test_what_is_pending_is_read_as_it_was_written() -> None:
    pending = PendingDeadLetters(start=3, end=9, operation="o", files=("file:///a b/ü.parquet",))
    assert named_dead_letters(pending.entry(2), 2) == pending
    assert named_dead_letters(pending.entry(2), 1) is None
    assert named_dead_letters(no_dead_letters(2), 2) is None


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[]",
        '{"start":1}',
        '{"start":5,"end":5,"operation":"o","files":[]}',
        '{"start":-1,"end":5,"operation":"o","files":[]}',
    ],
)
def test_pending_dead_letters_that_cannot_be_read_name_the_property_and_the_way_out(
    text: str,
) -> None:
    with pytest.raises(Corruption) as caught:
        named_dead_letters({"calve.dead_letters.0": text}, 0)
    assert caught.value.context["property"] == "calve.dead_letters.0"
    assert caught.value.hint
    assert "--orphans" in caught.value.hint


def test_both_commits_set_a_range_aside(lake: Lake) -> None:
    set_aside(lake.catalog, EVENTS, {0: Letter()}, rows=[1])
    set_aside(lake.catalog, EVENTS, {}, rows=[2])
    set_aside(lake.catalog, EVENTS, {4: Letter()}, rows=[3])
    table = ensure_dead_letter_table(lake.catalog, EVENTS)
    assert sorted(table.scan().to_arrow().column(OFFSET).to_pylist()) == [0, 4]


def test_people_cannot_put_dead_letters_in_or_take_the_table_away(lake: Lake) -> None:
    set_aside(lake.catalog, EVENTS, {0: Letter()}, rows=[1])
    rows = [{"topic": "events", "reason": "r", "content_type": "t", "original": b"o"}]
    tables = lake.tables
    refused: list[Callable[[], object]] = [
        lambda: tables.insert_data("events__dead_letters", rows),
        lambda: tables.upsert_data("events__dead_letters", rows, ["topic"]),
        lambda: tables.drop_table("events__dead_letters"),
        lambda: tables.rename_table("events__dead_letters", "x"),
        lambda: tables.drop_column("events__dead_letters", "reason"),
        lambda: tables.rename_column("events__dead_letters", "original", "o"),
        lambda: tables.drop_column("events__dead_letters", "_calve_offset"),
        lambda: tables.update_data("events__dead_letters", {"_calve_offset": 7}, flush=False),
        lambda: tables.rename_table("events", "other__dead_letters", force=True),
        lambda: tables.create_table("other__dead_letters", {"id": "long"}),
        lambda: lake.intake.create_topic(EVENTS.dead_letters, TopicSpec(bind_table=True)),
        lambda: lake.intake.create_topic(EVENTS.dead_letters, TopicSpec(schema={"id": "long"})),
        lambda: lake.produce("events__dead_letters", [{"id": 1}]),
    ]
    for number, attempt in enumerate(refused):
        with pytest.raises(InvalidRequest) as caught:
            attempt()
        assert caught.value.hint, number
    assert tables.verify_topic("events").is_sound
    tables.insert_data("events__dead_letters", rows, force=True)
    assert tables.verify_topic("events").is_sound
    assert lake.dead_letters("events").list().count == 1
    tables.add_column("events__dead_letters", "note", "string")
    set_aside(lake.catalog, EVENTS, {2: Letter()})
    assert tables.verify_topic("events").dead_letters == 2


def test_dead_letters_are_a_table_like_others_to_those_who_ask(lake: Lake) -> None:
    set_aside(lake.catalog, EVENTS, {0: Letter(reason="why")}, rows=[1])
    assert lake.tables.list_tables() == ["events", "events__dead_letters"]
    found = lake.sql("select topic, reason, decode(original) as sent from events__dead_letters")
    assert [dict(row) for row in found] == [
        {"topic": "events", "reason": "why", "sent": '{"id": "x"}'}
    ]
    joined = lake.sql("select count(*) as n from default.default.events__dead_letters")
    assert [dict(row) for row in joined] == [{"n": 1}]


def test_a_topic_that_is_deleted_leaves_its_dead_letters(lake: Lake) -> None:
    topic = lake.intake.create_topic(EVENTS, TopicSpec(bind_table=True))
    stream = topic.partitions[0].stream_id
    set_aside(lake.catalog, EVENTS, {0: Letter()}, rows=[1], log=stream)
    lake.intake.delete_topic(EVENTS)
    assert lake.dead_letters("events").list().count == 1
    again = lake.intake.create_topic(EVENTS, TopicSpec(bind_table=True))
    assert again.first_offsets == {0: 2}
    assert lake.dead_letters("events").list().count == 1


def test_the_columns_of_dead_letters_are_known_by_name() -> None:
    own = {name for name in DEAD_LETTER_SCHEMA.column_names if not name.startswith("_calve_")}
    assert own == feeding._LETTER_COLUMNS
