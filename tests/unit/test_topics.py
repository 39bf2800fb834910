"""Topics: made once, changed without losing anything, refused where nobody could write them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from calve.clock import SystemClock
from calve.errors import CalveError, Conflict, Corruption, InvalidRequest, NotFound
from calve.model import TableName
from calve.state.sqlite import SqliteState
from calve.topics import (
    MESSAGE_SCHEMA,
    StreamMessage,
    Topic,
    TopicChange,
    TopicRegistry,
    TopicSpec,
    change_of,
    document_of,
    message_batch,
    messages_of,
    spec_of,
)
from calve.topics.fit import fit
from calve.topics.limits import DEPTH_MAX, FIELDS_MAX

ORDERS = TableName.parse("orders")
SPEC = TopicSpec(schema={"id": "long", "at": "timestamptz"}, partition_by=["day(at)"])
NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[SqliteState]:
    state = SqliteState(tmp_path / "state.db", clock=SystemClock())
    yield state
    state.close()


@pytest.fixture
def registry(state: SqliteState) -> TopicRegistry:
    return TopicRegistry(state)


def column_names(topic: Topic) -> list[str]:
    return [field.name for field in topic.schema.fields]


def test_a_topic_comes_back_as_it_was_made(registry: TopicRegistry) -> None:
    spec = TopicSpec(
        schema={"id": "long", "at": "timestamptz"},
        partition_by=["day(at)"],
        sort_by=["id desc"],
        properties={"owner": "me"},
        retention_seconds=3600,
        on_unknown_column="ignore",
        on_bad_row="dead_letter",
    )
    made = registry.create(ORDERS, spec)
    assert registry.topic(ORDERS) == made
    assert column_names(made) == ["id", "at"]
    assert (made.partition_by, made.sort_by) == (("day(at)",), ("id desc",))
    assert (made.properties, made.retention_seconds) == ({"owner": "me"}, 3600)
    assert (made.on_unknown_column, made.on_bad_row) == ("ignore", "dead_letter")
    assert (made.kind, made.is_bound, made.partitions) == ("rows", False, {})


def test_the_schema_may_come_from_a_file_with_its_partitioning(
    registry: TopicRegistry, tmp_path: Path
) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"columns": [{"name": "at", "type": "date"}], "partition_by": ["month(at)"]}')
    assert registry.create(ORDERS, TopicSpec(schema=str(file))).partition_by == ("month(at)",)


def test_the_same_request_finds_the_topic_also_after_it_grew(registry: TopicRegistry) -> None:
    made = registry.create(ORDERS, SPEC)
    assert registry.create(ORDERS, SPEC) == made
    grown = registry.alter(ORDERS, TopicChange(add_columns={"name": "string"}))
    assert registry.create(ORDERS, SPEC) == grown


@pytest.mark.parametrize(
    "other",
    [
        TopicSpec(schema={"id": "int", "at": "timestamptz"}, partition_by=["day(at)"]),
        TopicSpec(schema={"id": "long", "at": "timestamptz"}),
        TopicSpec(kind="messages"),
        TopicSpec(schema=SPEC.schema, partition_by=["day(at)"], on_bad_row="dead_letter"),
    ],
)
def test_another_request_for_the_name_is_a_conflict(
    registry: TopicRegistry, other: TopicSpec
) -> None:
    registry.create(ORDERS, SPEC)
    with pytest.raises(Conflict, match="not what was asked for"):
        registry.create(ORDERS, other)


def test_a_name_that_is_not_there_gets_the_one_that_was_meant(registry: TopicRegistry) -> None:
    registry.create(ORDERS, SPEC)
    with pytest.raises(NotFound, match="did you mean 'orders'"):
        registry.topic(TableName.parse("order"))
    assert registry.find(TableName.parse("order")) is None


def test_topics_are_listed_by_tenant(registry: TopicRegistry) -> None:
    for name in ("b.d.x", "a.d.y"):
        registry.create(TableName.parse(name), SPEC)
    assert [str(topic.name) for topic in registry.list()] == ["a.d.y", "b.d.x"]
    assert [str(topic.name) for topic in registry.list("b")] == ["b.d.x"]


def test_a_topic_made_again_is_another_one(registry: TopicRegistry) -> None:
    first = registry.create(ORDERS, SPEC)
    assert registry.delete(ORDERS) == first
    assert registry.find(ORDERS) is None
    second = registry.create(ORDERS, SPEC)
    assert second.id != first.id
    with pytest.raises(NotFound, match="made again"):
        registry.evolve(ORDERS, lambda topic: topic, topic_id=first.id)


BAD_SPECS: dict[str, tuple[TopicSpec, str]] = {
    "no schema": (TopicSpec(), "needs a schema"),
    "own column": (TopicSpec(schema={"_calve_offset": "long"}), "reserved"),
    "own column, upper case": (TopicSpec(schema={"_CALVE_x": "long"}), "reserved"),
    "iceberg's column": (TopicSpec(schema={"_partition": "long"}), "reserved"),
    "identity(uuid)": (TopicSpec(schema={"u": "uuid"}, partition_by=["u"]), "cannot be"),
    "bucket(time)": (TopicSpec(schema={"t": "time"}, partition_by=["bucket(4, t)"]), "cannot be"),
    "truncate(binary)": (
        TopicSpec(schema={"b": "binary"}, partition_by=["truncate(4, b)"]),
        "cannot be",
    ),
    "no such column": (TopicSpec(schema={"a": "int"}, partition_by=["b"]), "no column 'b'"),
    "a type that Iceberg lacks": (
        TopicSpec(schema=pa.schema([("d", pa.duration("s"))])),
        "no type for Arrow",
    ),
    "nanoseconds": (TopicSpec(schema={"t": "timestamp_ns"}), "needs a table of format"),
    "kind": (TopicSpec(kind="files"), "kind is"),  # type: ignore[arg-type]
    "policy": (TopicSpec(schema={"a": "int"}, on_bad_row="drop"), "on_bad_row"),  # type: ignore[arg-type]
    "other policy": (TopicSpec(schema={"a": "int"}, on_unknown_column="x"), "on_unknown"),  # type: ignore[arg-type]
    "retention": (TopicSpec(schema={"a": "int"}, retention_seconds=0), "retention_seconds"),
    "property": (TopicSpec(schema={"a": "int"}, properties={"calve.topic": "x"}), "Calve's own"),
    "messages with columns": (TopicSpec(kind="messages", schema={"a": "int"}), "of its own"),
    "too many columns": (
        TopicSpec(schema={f"c{n}": "int" for n in range(FIELDS_MAX + 1)}),
        "at most 5,000",
    ),
}


@pytest.mark.parametrize("case", BAD_SPECS)
def test_what_nobody_could_write_is_refused_at_creation(registry: TopicRegistry, case: str) -> None:
    spec, reason = BAD_SPECS[case]
    with pytest.raises(InvalidRequest, match=reason):
        registry.create(ORDERS, spec)
    assert registry.list() == []


def nested(depth: int) -> pa.DataType:
    kind = pa.int32()
    for _ in range(depth - 1):
        kind = pa.struct([("inner", kind)])
    return kind


def test_a_topic_cannot_have_the_name_of_anothers_dead_letters(registry: TopicRegistry) -> None:
    with pytest.raises(InvalidRequest, match="Calve makes itself"):
        registry.create(ORDERS.dead_letters, SPEC)


def test_types_may_lie_inside_each_other_only_so_deep(registry: TopicRegistry) -> None:
    registry.create(ORDERS, TopicSpec(schema=pa.schema([("a", nested(DEPTH_MAX))])))
    with pytest.raises(InvalidRequest, match="inside each other"):
        registry.create(
            TableName.parse("deep"), TopicSpec(schema=pa.schema([("a", nested(DEPTH_MAX + 1))]))
        )


def test_policies_and_properties_can_be_changed(registry: TopicRegistry) -> None:
    registry.create(ORDERS, TopicSpec(schema={"a": "int"}, properties={"x": "1", "y": "2"}))
    changed = registry.alter(
        ORDERS,
        TopicChange(
            on_bad_row="dead_letter",
            on_unknown_column="refuse",
            retention_seconds=60,
            properties={"x": None, "z": "3"},
        ),
    )
    assert (changed.on_bad_row, changed.on_unknown_column) == ("dead_letter", "refuse")
    assert (changed.retention_seconds, changed.properties) == (60, {"y": "2", "z": "3"})
    assert registry.alter(ORDERS, TopicChange()).retention_seconds == 60
    assert registry.alter(ORDERS, TopicChange(retention_seconds=None)).retention_seconds is None


def test_columns_can_be_added_dropped_and_renamed_and_are_remembered(
    registry: TopicRegistry,
) -> None:
    registry.create(ORDERS, TopicSpec(schema={"a": "int", "b": "int", "c": "int"}))
    changed = registry.alter(
        ORDERS,
        TopicChange(add_columns={"d": "string"}, drop_columns=["c"], rename_columns={"b": "bb"}),
    )
    assert column_names(changed) == ["a", "bb", "d"]
    assert changed.dropped_columns == (("c",),)
    assert changed.renamed_columns == ((("b",), ("bb",)),)
    ids = [field.field_id for field in changed.schema.fields]
    assert ids == [1, 2, 4]
    again = registry.alter(ORDERS, TopicChange(add_columns={"c": "string"}))
    assert again.dropped_columns == ()
    assert again.schema.find_field("c").field_id == 5


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (TopicChange(drop_columns=["x"]), "no column 'x'"),
        (TopicChange(rename_columns={"id": "at"}), "twice"),
        (TopicChange(rename_columns={"id": "_calve_x"}), "reserved"),
        (TopicChange(drop_columns=["at"]), "no column 'at'"),
        (TopicChange(drop_columns=["id", "at"]), "only column"),
        (TopicChange(on_bad_row="x"), "on_bad_row"),  # type: ignore[arg-type]
        (TopicChange(properties={"calve.x": "1"}), "Calve's own"),
        (TopicChange(retention_seconds=-1), "retention"),
    ],
)
def test_a_change_that_cannot_be_is_refused_whole(
    registry: TopicRegistry, change: TopicChange, reason: str
) -> None:
    before = registry.create(ORDERS, SPEC)
    with pytest.raises(InvalidRequest, match=reason):
        registry.alter(ORDERS, change)
    assert registry.topic(ORDERS) == before


def test_the_columns_of_messages_stay(registry: TopicRegistry) -> None:
    registry.create(ORDERS, TopicSpec(kind="messages"))
    with pytest.raises(InvalidRequest, match="stay as they are"):
        registry.alter(ORDERS, TopicChange(drop_columns=["key"]))


def test_many_that_add_columns_at_once_lose_none(tmp_path: Path, registry: TopicRegistry) -> None:
    registry.create(ORDERS, SPEC)

    def add(number: int) -> None:
        mine = SqliteState(tmp_path / "state.db", clock=SystemClock())
        for each in range(5):
            column = {f"c{number}_{each}": "int"}
            TopicRegistry(mine).alter(ORDERS, TopicChange(add_columns=column))
        mine.close()

    threads = [threading.Thread(target=add, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    topic = registry.topic(ORDERS)
    assert len(column_names(topic)) == 32
    ids = [field.field_id for field in topic.schema.fields]
    assert len(set(ids)) == len(ids)
    assert topic.last_column_id == max(ids)


def test_of_many_that_create_one_topic_differently_one_wins(
    tmp_path: Path, registry: TopicRegistry
) -> None:
    outcomes: list[Topic | CalveError] = []

    def create(number: int) -> None:
        mine = SqliteState(tmp_path / "state.db", clock=SystemClock())
        try:
            spec = TopicSpec(schema={f"c{number}": "int"})
            outcomes.append(TopicRegistry(mine).create(ORDERS, spec))
        except Conflict as error:
            outcomes.append(error)
        mine.close()

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [each for each in outcomes if isinstance(each, Topic)]
    assert winners == [registry.topic(ORDERS)]
    assert len(outcomes) == 8


def test_a_record_that_cannot_be_read_is_an_error(
    state: SqliteState, registry: TopicRegistry
) -> None:
    state.create_topic(ORDERS, b'{"id": "nonsense"}')
    with pytest.raises(Corruption, match="the record of topic orders"):
        registry.topic(ORDERS)


def test_a_topic_can_be_shown(registry: TopicRegistry) -> None:
    shown = document_of(registry.create(ORDERS, SPEC))
    assert shown["name"] == "orders"
    assert shown["columns"] == [
        {"name": "id", "type": "long", "required": False},
        {"name": "at", "type": "timestamptz", "required": False},
    ]
    assert (shown["partition_by"], shown["on_bad_row"]) == (["day(at)"], "refuse")
    assert msgspec.json.encode(shown)


def test_a_topic_is_asked_for_in_a_document_as_a_table_is_in_a_file(
    registry: TopicRegistry,
) -> None:
    document = {
        "columns": [
            {"name": "id", "type": "long", "required": True},
            {"name": "at", "type": "date"},
        ],
        "partition_by": ["month(at)"],
        "properties": {"owner": "me"},
        "on_unknown_column": "ignore",
        "retention_seconds": 60,
    }
    topic = registry.create(ORDERS, spec_of(document))
    assert topic.schema.find_field("id").required
    assert (topic.partition_by, topic.properties) == (("month(at)",), {"owner": "me"})
    assert (topic.on_unknown_column, topic.retention_seconds) == ("ignore", 60)
    assert registry.create(ORDERS, spec_of(document)) == topic
    assert spec_of({"kind": "messages"}) == TopicSpec(kind="messages")
    keyed = {"kind": "messages", "partition_by": ["bucket(4, key)"], "properties": {"a": "b"}}
    assert registry.create(TableName.parse("m"), spec_of(keyed)).properties == {"a": "b"}
    assert spec_of({"bind_table": True}) == TopicSpec(bind_table=True)


def test_a_change_is_asked_for_in_a_document(registry: TopicRegistry) -> None:
    registry.create(ORDERS, TopicSpec(schema={"a": "int", "b": "int"}, retention_seconds=9))
    change = change_of(
        {
            "add_columns": [{"name": "c", "type": "string"}],
            "drop_columns": ["a"],
            "rename_columns": {"b": "d"},
            "retention_seconds": None,
            "properties": {"x": "1", "y": None},
        }
    )
    topic = registry.alter(ORDERS, change)
    assert column_names(topic) == ["d", "c"]
    assert (topic.retention_seconds, topic.properties) == (None, {"x": "1"})
    assert change_of({}) == TopicChange()


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "not an object"),
        ({"columns": []}, "'columns' is not a list"),
        ({"colums": [], "kind": "rows"}, "did you mean 'columns'"),
        ({"columns": [{"name": "a", "type": "int"}], "kind": 7}, "kind"),
        ({"columns": [{"name": "a", "type": "int"}], "retention_seconds": "1 day"}, "retention_seconds"),
        ({"columns": [{"name": "a", "type": "number"}]}, "no type 'number'"),
    ],
)  # fmt: skip
def test_a_document_that_asks_for_no_topic_is_refused(document: Any, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        spec_of(document)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("x", "not an object"),
        ({"kind": "rows"}, "no key 'kind'"),
        ({"drop_columns": "a"}, "drop_columns"),
        ({"add_columns": []}, "'columns' is not a list"),
    ],
)
def test_a_document_that_changes_nothing_known_is_refused(document: Any, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        change_of(document)


def test_messages_go_into_their_topic_as_they_are_and_come_back(registry: TopicRegistry) -> None:
    topic = registry.create(ORDERS, TopicSpec(kind="messages"))
    sent = [
        StreamMessage(b"\x00\xff", key="k", attributes={"a": "b", "schema": "v1"}, sequence=4),
        StreamMessage(b"", publish_time=NOW, producer="p", content_type="text/plain", schema="s/1"),
    ]
    batch = message_batch(sent, now=NOW)
    assert fit(topic, batch.schema).is_plain
    assert batch.schema == MESSAGE_SCHEMA
    first, second = messages_of(batch, ORDERS, 7)
    assert (first.payload, first.key, first.offset) == (b"\x00\xff", "k", 7)
    assert (first.attributes, first.sequence) == ({"a": "b", "schema": "v1"}, 4)
    assert (first.publish_time, first.topic) == (NOW, "orders")
    assert (second.payload, second.producer, second.offset) == (b"", "p", 8)
    assert (second.content_type, second.schema, second.attributes) == ("text/plain", "s/1", {})


@pytest.mark.parametrize(
    "message",
    [
        StreamMessage(7),  # type: ignore[arg-type]
        StreamMessage(b"", key=b"\xff"),  # type: ignore[arg-type]
        StreamMessage(b"", sequence=1 << 70),
        StreamMessage(b"", attributes={"a": 1}),  # type: ignore[dict-item]
    ],
)
def test_what_is_no_message_is_refused(message: StreamMessage) -> None:
    with pytest.raises(InvalidRequest, match="a message cannot be stored"):
        message_batch([message], now=NOW)
