"""How batches fit a topic: uncopied, converted, grown, set aside or refused with every reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from calve.errors import InvalidRequest
from calve.model import TableName
from calve.topics import Fitter, Topic, TopicChange, TopicSpec, fit
from calve.topics.alter import altered
from calve.topics.define import define_topic
from calve.topics.fit import ARROW_CONTENT_TYPE, schema_of_first
from calve.topics.limits import FIELDS_MAX

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def topic_of(columns: Mapping[str, str] | pa.Schema, **policies: Any) -> Topic:
    spec = TopicSpec(schema=columns, **policies)
    return define_topic(TableName.parse("t"), spec, now=NOW)


def batch_of(**columns: Sequence[Any] | pa.Array) -> pa.RecordBatch:
    return pa.record_batch(dict(columns))


def names(topic: Topic) -> list[str]:
    return [field.name for field in topic.schema.fields]


def type_of(topic: Topic, column: str) -> str:
    return str(topic.schema.find_field(column).field_type)


def fitted(topic: Topic, batch: pa.RecordBatch) -> pa.RecordBatch:
    return fit(topic, batch.schema).batch(batch)


@pytest.mark.parametrize(
    "batch",
    [
        batch_of(a=pa.array([1], pa.int64()), s=pa.array(["x"], pa.large_string())),
        batch_of(s=pa.array(["x"], pa.string()), a=pa.array([1], pa.int64())),
        batch_of(a=pa.array([1], pa.int64())),
        batch_of(l=pa.array([["x"]], pa.list_(pa.string()))),
        batch_of(r=pa.array([{"y": "z"}], pa.struct([("y", pa.string())]))),
        batch_of(b=pa.array([b"x"], pa.binary())),
    ],
)
def test_columns_that_the_topic_has_go_in_uncopied(batch: pa.RecordBatch) -> None:
    topic = topic_of(
        {
            "a": "long",
            "s": "string",
            "b": "binary",
            "l": "list<string>",
            "r": "struct<x: int, y: string>",
        }
    )
    found = fit(topic, batch.schema)
    assert found.is_plain
    assert found.topic is topic
    assert found.batch(batch) is batch


@pytest.mark.parametrize(
    ("kind", "values", "column"),
    [
        ("long", pa.array([1, None], pa.int32()), [1, None]),
        ("long", pa.array([1, 2], pa.uint32()), [1, 2]),
        ("int", pa.array([1, -2], pa.int8()), [1, -2]),
        ("double", pa.array([1.5], pa.float32()), [1.5]),
        ("double", pa.array([3], pa.int32()), [3.0]),
        ("decimal(38,2)", pa.array([3], pa.int64()), [Decimal("3.00")]),
        ("decimal(12,4)", pa.array([Decimal("1.25")], pa.decimal128(5, 2)), [Decimal("1.2500")]),
        ("decimal(20,0)", pa.array([2**64 - 1], pa.uint64()), [Decimal(2**64 - 1)]),
        ("string", pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        ("string", pa.array(["a"], pa.string_view()), ["a"]),
        ("string", pa.array([None], pa.null()), [None]),
        ("list<long>", pa.array([[], None], pa.list_(pa.null())), [[], None]),
        ("timestamp", pa.array([1000], pa.timestamp("ns")), [datetime.fromisoformat("1970-01-01T00:00:00.000001")]),
        ("struct<x: long>", pa.array([{"x": 1}, None], pa.struct([("x", pa.int8())])), [{"x": 1}, None]),
        ("map<string, long>", pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())), [[("k", 1)]]),
        ("long", pa.ExtensionArray.from_storage(pa.opaque(pa.int64(), "x", "y"), pa.array([5])), [5]),
    ],
)  # fmt: skip
def test_a_type_that_can_lose_nothing_is_converted(
    kind: str, values: pa.Array, column: list[Any]
) -> None:
    topic = topic_of({"c": kind})
    found = fit(topic, pa.schema([("c", values.type)]))
    assert found.topic is topic
    made = found.batch(pa.record_batch({"c": values}))
    assert made.schema.field("c").type == topic.arrow_schema.field("c").type
    assert made.column("c").to_pylist() == column


@pytest.mark.parametrize(
    ("kind", "sent", "words"),
    [
        ("long", pa.string(), "'c' is long, and string was sent"),
        ("long", pa.float64(), "'c' is long, and double was sent"),
        ("double", pa.int64(), "'c' is double, and long was sent"),
        ("date", pa.string(), "'c' is date, and string was sent"),
        ("timestamp", pa.timestamp("us", "UTC"), "'c' is timestamp, and timestamptz was sent"),
        ("decimal(5,2)", pa.decimal128(5, 3), r"'c' is decimal\(5,2\), and decimal\(5,3\) was sent"),
        ("struct<x: long>", pa.struct([("x", pa.string())]), "'c.x' is long, and string was sent"),
        ("list<long>", pa.list_(pa.string()), "'c.element' is long, and string was sent"),
        ("map<string, long>", pa.map_(pa.string(), pa.string()), "'c.value' is long"),
        ("map<string, long>", pa.map_(pa.int32(), pa.int64()), "'c.key' is string, and int"),
        ("list<long>", pa.int64(), "'c' is list<long>, and long was sent"),
    ],
)  # fmt: skip
def test_a_type_that_could_lose_something_clashes(kind: str, sent: pa.DataType, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        fit(topic_of({"c": kind}), pa.schema([("c", sent)]))


def test_every_column_that_clashes_is_named() -> None:
    topic = topic_of(pa.schema([("a", pa.int64()), ("b", pa.string()), pa.field("r", pa.int32(), nullable=False)]))  # fmt: skip
    with pytest.raises(InvalidRequest) as raised:
        fit(topic, pa.schema([("a", pa.string()), ("b", pa.int64())]))
    message = raised.value.message
    assert "'a' is long, and string was sent" in message
    assert "'b' is string, and long was sent" in message
    assert "'r' is required and missing" in message
    assert raised.value.context["columns"] == "a, b, r"


def test_new_columns_and_fields_make_the_topic_grow_as_optional_ones() -> None:
    topic = topic_of({"a": "long", "r": "struct<x: int>"})
    sent = pa.schema(
        [
            pa.field("ключ 🔑", pa.string(), nullable=False),
            ("r", pa.struct([("x", pa.int64()), ("y", pa.bool_())])),
            ("a", pa.int64()),
        ]
    )
    grown = fit(topic, sent).topic
    assert names(grown) == ["a", "r", "ключ 🔑"]
    assert not grown.schema.find_field("ключ 🔑").required
    assert type_of(grown, "r") == "struct<3: x: optional long, 4: y: optional boolean>"
    assert fit(grown, sent).topic is grown


def test_a_wider_type_widens_the_topic_and_a_narrower_one_does_not() -> None:
    topic = topic_of({"i": "int", "f": "float", "d": "decimal(5,2)"})
    sent = pa.schema([("i", pa.int64()), ("f", pa.float64()), ("d", pa.decimal128(9, 2))])
    grown = fit(topic, sent).topic
    assert [type_of(grown, each) for each in "ifd"] == ["long", "double", "decimal(9, 2)"]
    narrow = pa.schema([("i", pa.int32()), ("f", pa.float32()), ("d", pa.decimal128(5, 2))])
    assert fit(grown, narrow).topic is grown


def test_a_topic_that_ignores_new_columns_leaves_them_out_also_inside() -> None:
    topic = topic_of({"a": "long", "r": "struct<x: long>"}, on_unknown_column="ignore")
    inner = pa.struct([("x", pa.int64()), ("z", pa.string())])
    batch = batch_of(
        a=[1, 2, 3], new=["x", "y", "z"], r=pa.array([{"x": 1, "z": "q"}, None, {"x": 2}], inner)
    )
    found = fit(topic, batch.schema)
    assert found.topic is topic
    assert found.batch(batch).to_pylist() == [
        {"a": 1, "r": {"x": 1}},
        {"a": 2, "r": None},
        {"a": 3, "r": {"x": 2}},
    ]


def test_fields_are_left_out_inside_lists_and_maps_of_slices_too() -> None:
    topic = topic_of(
        {"l": "list<struct<x: long>>", "m": "map<string, struct<x: long>>"},
        on_unknown_column="ignore",
    )
    inner = pa.struct([("x", pa.int64()), ("z", pa.string())])
    batch = pa.record_batch(
        {
            "l": pa.array([[{"x": 0}], [{"x": 1, "z": "a"}, None], None, []], pa.list_(inner)),
            "m": pa.array([[], [("k", {"x": 1, "z": "b"})], [("j", None)], None], pa.map_(pa.string(), inner)),
        }
    ).slice(1)  # fmt: skip
    assert fitted(topic, batch).to_pylist() == [
        {"l": [{"x": 1}, None], "m": [("k", {"x": 1})]},
        {"l": None, "m": [("j", None)]},
        {"l": [], "m": None},
    ]


def test_a_topic_that_refuses_new_columns_names_them_all() -> None:
    topic = topic_of({"r": "struct<x: int>"}, on_unknown_column="refuse")
    sent = pa.schema(
        [("new", pa.int64()), ("r", pa.struct([("x", pa.int32()), ("y", pa.int32())]))]
    )
    with pytest.raises(InvalidRequest, match=r"no column 'new', 'r\.y'"):
        fit(topic, sent)


def test_a_topic_that_sets_aside_new_columns_keeps_the_other_rows() -> None:
    topic = topic_of({"a": "long"}, on_unknown_column="dead_letter")
    batch = batch_of(a=[1, 2, 3], new=["x", None, "z"])
    good, rejected = fit(topic, batch.schema).split(batch)
    assert good is not None
    assert good.to_pylist() == [{"a": 2}]
    assert [row.reason for row in rejected] == ["the topic has no column 'new'"] * 2
    assert rejected[0].content_type == ARROW_CONTENT_TYPE
    kept = [pa.ipc.open_stream(row.original).read_all().to_pylist() for row in rejected]
    assert kept == [[{"a": 1, "new": "x"}], [{"a": 3, "new": "z"}]]


def test_rows_of_unknown_columns_alone_are_all_set_aside() -> None:
    topic = topic_of({"a": "long"}, on_unknown_column="dead_letter")
    batch = batch_of(new=["x", None])
    good, rejected = fit(topic, batch.schema).split(batch)
    assert good is None
    assert len(rejected) == 2


def test_bad_rows_are_named_or_set_aside_as_the_topic_wants() -> None:
    required = pa.schema([pa.field("a", pa.int64(), nullable=False), ("t", pa.timestamp("us"))])
    batch = batch_of(
        a=[1, None, 3, 4, None],
        t=pa.array([1000, 2000, 3001, 4000, 5000], pa.timestamp("ns")),
    )
    with pytest.raises(InvalidRequest, match="row 2, column 'a': a required value is missing"):
        fitted(topic_of(required), batch)
    patient = topic_of(required, on_bad_row="dead_letter")
    good, rejected = fit(patient, batch.schema).split(batch)
    assert good is not None
    assert good.column("a").to_pylist() == [1, 4]
    assert len(rejected) == 3
    assert rejected[0].reason == "row 2, column 'a': a required value is missing"
    assert "microseconds" in rejected[1].reason
    _, later = fit(patient, batch.schema).split(batch, before=100)
    assert [row.reason.partition(",")[0] for row in later] == ["row 102", "row 103", "row 105"]


def test_a_bad_row_keeps_its_number_beside_rows_with_unknown_columns() -> None:
    required = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    topic = topic_of(required, on_unknown_column="dead_letter", on_bad_row="dead_letter")
    batch = batch_of(a=[1, 2, None], new=["x", None, None])
    _, rejected = fit(topic, batch.schema).split(batch)
    assert [row.reason for row in rejected] == [
        "the topic has no column 'new'",
        "row 3, column 'a': a required value is missing",
    ]


def test_a_required_column_that_comes_as_nullable_is_checked_but_not_copied() -> None:
    topic = topic_of(pa.schema([pa.field("a", pa.int64(), nullable=False)]))
    batch = batch_of(a=[1, 2])
    found = fit(topic, batch.schema)
    assert found.batch(batch) is batch
    with pytest.raises(InvalidRequest, match="row 2, column 'a': a required value is missing"):
        found.batch(batch_of(a=pa.array([1, None], pa.int64())))


def test_a_required_field_inside_is_checked() -> None:
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    topic = topic_of(pa.schema([("r", inner)]))
    loose = pa.struct([("x", pa.int64())])
    assert fitted(topic, batch_of(r=pa.array([{"x": 1}, None], loose))).num_rows == 2
    with pytest.raises(InvalidRequest, match="'x' is missing"):
        fitted(topic, batch_of(r=pa.array([{"x": None}], loose)))
    with pytest.raises(InvalidRequest, match=r"'r\.x' is required and missing"):
        fit(topic, pa.schema([("r", pa.struct([("y", pa.int64())]))]))


def test_dropped_columns_stay_away_and_renamed_ones_get_their_new_name() -> None:
    topic = altered(
        topic_of({"gone": "long", "old": "long", "b": "long"}),
        TopicChange(drop_columns=["gone"], rename_columns={"old": "new"}),
    )
    batch = batch_of(gone=[1], old=[2], b=[3])
    found = fit(topic, batch.schema)
    assert found.topic is topic
    assert found.batch(batch).to_pylist() == [{"new": 2, "b": 3}]
    with pytest.raises(InvalidRequest, match="'new' is there twice"):
        fit(topic, batch_of(old=[1], new=[2]).schema)


def test_dropped_and_renamed_fields_inside_follow_too() -> None:
    topic = topic_of({"r": "struct<x: long, n: long>"})
    memory = topic.memory.with_dropped(("r", "gone")).with_renamed(("r", "old"), ("r", "n"))
    sent = pa.struct([("x", pa.int64()), ("gone", pa.string()), ("old", pa.int64())])
    batch = batch_of(r=pa.array([{"x": 1, "gone": "q", "old": 5}], sent))
    assert fitted(topic.with_memory(memory), batch).to_pylist() == [{"r": {"x": 1, "n": 5}}]


@pytest.mark.parametrize("policy", ["refuse", "dead_letter"])
def test_a_dropped_column_is_unknown_to_a_topic_that_takes_none(policy: str) -> None:
    topic = altered(
        topic_of({"gone": "long", "b": "long"}, on_unknown_column=policy),
        TopicChange(drop_columns=["gone"]),
    )
    batch = batch_of(gone=[1, None], b=[1, 2])
    if policy == "refuse":
        with pytest.raises(InvalidRequest, match="no column 'gone'"):
            fit(topic, batch.schema)
    else:
        good, rejected = fit(topic, batch.schema).split(batch)
        assert good is not None
        assert (good.num_rows, len(rejected)) == (1, 1)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (pa.schema([]), "no column"),
        (pa.schema([("_calve_offset", pa.int64())]), "reserved"),
        (pa.schema([("_file", pa.string())]), "reserved"),
        (pa.schema([("a", pa.int64()), ("a", pa.int64())]), "twice"),
        (pa.schema([("A", pa.int64())]), "differ in case only"),
        (pa.schema([("d", pa.duration("s"))]), "no type for Arrow"),
        (pa.schema([("x", pa.null())]), "no column"),
        (pa.schema([("r.x", pa.int64())]), "same path"),
        (pa.schema([(f"c{n}", pa.int8()) for n in range(FIELDS_MAX + 1)]), "at most"),
        (pa.schema([(f"c{n}", pa.int8()) for n in range(FIELDS_MAX)]), "at most"),
    ],
)
def test_what_no_topic_can_take_is_refused(schema: pa.Schema, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        fit(topic_of({"a": "long", "r": "struct<x: long>"}), schema)


def test_a_reserved_name_is_refused_also_where_new_columns_are_ignored() -> None:
    topic = topic_of({"a": "long"}, on_unknown_column="ignore")
    with pytest.raises(InvalidRequest, match="reserved"):
        fit(topic, pa.schema([("a", pa.int64()), ("_calve_offset", pa.int64())]))


def test_a_column_without_any_type_adds_nothing() -> None:
    topic = topic_of({"a": "long"})
    batch = batch_of(a=[1], unknown=pa.nulls(1))
    found = fit(topic, batch.schema)
    assert found.topic is topic
    assert found.batch(batch).to_pylist() == [{"a": 1}]


def test_a_fit_is_found_again_for_the_same_schema() -> None:
    fitter = Fitter(topic_of({"a": "long"}))
    kinds = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()]
    first = [fitter.fit(pa.schema([("a", kind)])) for kind in kinds]
    again = [fitter.fit(pa.schema([("a", kind)])) for kind in kinds]
    assert len(set(map(id, first))) == len(kinds)
    assert all(one is other for one, other in zip(first, again, strict=True))


def test_a_first_batch_gives_optional_columns_and_leaves_out_those_without_a_type() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("n", pa.null())])
    assert schema_of_first(schema) == pa.schema([("a", pa.int64())])
    with pytest.raises(InvalidRequest, match="no column"):
        schema_of_first(pa.schema([("n", pa.null())]))
