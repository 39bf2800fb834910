"""What a table may be made from, and what is refused before there is one."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from calve.errors import InvalidRequest, NotFound
from calve.lake import Lake
from calve.tables.columns import ICEBERG_COLUMNS
from calve.tables.inputs import open_input
from calve.tables.schemas import TableDefinition, define_table
from calve.tables.types import type_name

ODD_NAMES = [
    'a "quoted" name',
    "it's",
    "select",
    "with space",
    "größe",
    "日本語",
    "🦊",
    "a.b",
    "back`tick",
    "100%",
    "-",
    "; drop table x",
    "_own",
    "calve_x",
    "a\\b",
]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[object], Path]:
    def write(content: object) -> Path:
        path = tmp_path / "schema.json"
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(text, "utf-8")
        return path

    return write


def columns(definition: TableDefinition) -> list[tuple[str, str, bool, str | None]]:
    return [(f.name, type_name(f.field_type), f.required, f.doc) for f in definition.schema.fields]


def partitions(definition: TableDefinition) -> list[tuple[str, str]]:
    return [(f.name, str(f.transform)) for f in definition.partition_spec.fields]


def sorting(definition: TableDefinition) -> list[str]:
    return [str(field) for field in definition.sort_order.fields]


FRIENDLY: dict[str, Any] = {
    "columns": [
        {"name": "id", "type": "long", "required": True, "doc": "the key"},
        {"name": "country", "type": "string"},
        {"name": "created_at", "type": "timestamptz"},
        {"name": "place", "type": "struct<lat: double not null, lon: double not null>"},
    ],
    "partition_by": ["day(created_at)", "bucket(16, id)", "country"],
    "sort_by": ["created_at desc nulls last", "id"],
    "properties": {"owner": "me", "write.parquet.row-limit": 1000, "flag": True},
}


def test_the_friendly_file_says_everything(write: Callable[[object], Path]) -> None:
    definition = define_table(write(FRIENDLY))
    assert columns(definition) == [
        ("id", "long", True, "the key"),
        ("country", "string", False, None),
        ("created_at", "timestamptz", False, None),
        ("place", "struct<lat: double not null, lon: double not null>", False, None),
    ]
    assert partitions(definition) == [
        ("created_at_day", "day"),
        ("id_bucket", "bucket[16]"),
        ("country", "identity"),
    ]
    assert sorting(definition) == ["3 DESC NULLS LAST", "1 ASC NULLS FIRST"]
    assert dict(definition.properties) == {
        "owner": "me",
        "write.parquet.row-limit": "1000",
        "flag": "true",
    }


def test_what_is_given_comes_before_what_the_file_says(write: Callable[[object], Path]) -> None:
    definition = define_table(
        write(FRIENDLY), partition_by=["country"], sort_by=["id desc"], properties={"owner": "you"}
    )
    assert partitions(definition) == [("country", "identity")]
    assert sorting(definition) == ["1 DESC NULLS LAST"]
    assert definition.properties["owner"] == "you"
    assert definition.properties["flag"] == "true"


def test_icebergs_own_schema_file_is_understood(write: Callable[[object], Path]) -> None:
    schema = define_table(write(FRIENDLY)).schema
    again = define_table(write(schema.model_dump_json(by_alias=True)))
    assert again.schema == schema


def test_a_column_of_the_friendly_file_may_have_icebergs_type(
    write: Callable[[object], Path],
) -> None:
    nested = {"type": "list", "element-id": 7, "element": "int", "element-required": True}
    definition = define_table(write({"columns": [{"name": "l", "type": nested}]}))
    assert columns(definition) == [("l", "list<int not null>", False, None)]


def test_other_sources_of_a_schema_agree() -> None:
    expected = [("id", "long", False, None), ("name", "string", False, None)]
    for source in (
        {"id": "bigint", "name": pa.large_string()},
        {"id": LongType(), "name": "text"},
        pa.schema([("id", pa.int64()), ("name", pa.string())]),
        Schema(NestedField(7, "id", LongType()), NestedField(9, "name", StringType())),
    ):
        assert columns(define_table(source)) == expected


def test_required_and_docs_of_arrow_are_kept() -> None:
    field = pa.field("id", pa.int64(), nullable=False, metadata={"doc": "the key"})
    assert columns(define_table(pa.schema([field]))) == [("id", "long", True, "the key")]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "not a JSON object"),
        ({}, "'columns' is not a list"),
        ({"colums": []}, "no key 'colums' \\(did you mean 'columns'\\?\\)"),
        ({"columns": []}, "'columns' is not a list"),
        ({"columns": [1]}, "column 1 is not an object"),
        ({"columns": [{"name": "a", "typ": "int"}]}, "no key 'typ' \\(did you mean 'type'"),
        ({"columns": [{"name": "a"}]}, "column 'a' has no 'type'"),
        ({"columns": [{"type": "int"}]}, "column 1 has no 'name'"),
        ({"columns": [{"name": 5, "type": "int"}]}, "column 1: 'name' is not text"),
        ({"columns": [{"name": "a", "type": 5}]}, "column 'a': 'type' is not"),
        ({"columns": [{"name": "a", "type": "strng"}]}, "column 'a': type 'strng'.*'string'"),
        ({"columns": [{"name": "a", "type": {"type": "lst"}}]}, "column 'a': not a type"),
        ({"columns": [{"name": "a", "type": "int", "required": "yes"}]}, "true or false"),
        ({"columns": [{"name": "a", "type": "int"}], "partition_by": "a"}, "list of texts"),
        ({"columns": [{"name": "a", "type": "int"}], "properties": []}, "not an object"),
        ({"columns": [{"name": "a", "type": "int"}], "properties": {"a": []}}, "neither"),
        ({"type": "struct", "fields": [{"id": 1}]}, "not a schema of Iceberg"),
        ({"type": "struct", "fields": []}, "at least one column"),
    ],
)
def test_a_mistake_in_the_file_is_named(
    write: Callable[[object], Path], content: object, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        define_table(write(content))


@pytest.mark.parametrize(
    ("column", "hint"),
    [
        ({"name": "a", "type": "int", "required": "yes"}, 'write "required": true, without quotes'),
        ({"name": "a", "type": "int", "required": 1}, 'write "required": true'),
        ({"name": "a", "type": "int", "doc": 5}, 'write "doc": "who it is"'),
        ({"name": "a", "type": 5}, 'write "type": "long"'),
        ({"name": 5, "type": "int"}, 'write "name": "id"'),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_what_to_write(
    write: Callable[[object], Path], column: object, hint: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        define_table(write({"columns": [column]}))
    assert refused.value.hint == hint


def test_a_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no file"):
        define_table(tmp_path / "nothing.json")
    with pytest.raises(InvalidRequest, match="cannot be read"):
        define_table(tmp_path)


@pytest.mark.parametrize("name", [*sorted(ICEBERG_COLUMNS), "_calve_offset", "_CALVE_x", "_File"])
def test_reserved_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="reserved") as caught:
        define_table({name: "int"})
    assert caught.value.context["column"] == name


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["a", "a"], "there twice"),
        (["Name", "nAME"], "differ in case only"),
        (["straße", "STRASSE"], "differ in case only"),
        (["a", ""], "column 2 has no name"),
        (["a", "  "], "column 2 has no name"),
        (["a\nb"], "control character"),
        (["a\x00"], "control character"),
        (["x" * 2000], "2,000 characters"),
    ],
)
def test_names_that_break_a_table_are_refused(names: list[str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        define_table(pa.schema([(name, pa.int64()) for name in names]))


def test_a_dot_that_reads_like_a_field_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="same path"):
        define_table({"a": "struct<b: int>", "a.b": "int"})


def test_nested_names_are_checked_too() -> None:
    with pytest.raises(InvalidRequest, match="differ in case only"):
        define_table(pa.schema([("s", pa.list_(pa.struct([("x", pa.int8()), ("X", pa.int8())])))]))


@pytest.mark.parametrize("kind", ["timestamp_ns", "list<timestamptz_ns>"])
def test_types_that_need_format_3_are_refused(kind: str) -> None:
    with pytest.raises(InvalidRequest, match=r"column 'at'.*format 3"):
        define_table({"at": kind})


def test_any_other_name_works_from_definition_to_rows(lake: Lake) -> None:
    definition = define_table(
        dict.fromkeys(ODD_NAMES, "long"),
        partition_by=[f'bucket(4, "{name}")' for name in ODD_NAMES[4:6]],
        sort_by=["with space desc"],
    )
    table = lake.catalog.create_table(
        "odd", definition.schema, partition_spec=definition.partition_spec
    )
    rows = [dict.fromkeys(ODD_NAMES, number) for number in range(3)]
    table.append(open_input(rows, schema=table.schema()).read_all())
    assert sorted(table.scan().to_arrow().to_pylist(), key=str) == rows


@given(st.text(max_size=30))
def test_a_column_name_is_taken_as_it_is_or_refused(name: str) -> None:
    try:
        definition = define_table({name: "int"}, partition_by=[name], sort_by=[name])
    except InvalidRequest as error:
        assert error.hint  # noqa: PT017
    else:
        assert definition.schema.fields[0].name == name
        ((named, transform),) = partitions(definition)
        assert transform == "identity"
        assert named == name or named.isascii()


SCHEMA = {"id": "long", "at": "timestamp", "name": "string", "at_day": "int", "s": "struct<x: int>"}


@pytest.mark.parametrize(
    ("expression", "name", "transform"),
    [
        ("year(at)", "at_year", "year"),
        ("MONTHS( at )", "at_month", "month"),
        ("day(at)", "at_day_part", "day"),
        ("hour(`at`)", "at_hour", "hour"),
        ("bucket(16, id)", "id_bucket", "bucket[16]"),
        ("bucket(id, 16)", "id_bucket", "bucket[16]"),
        ("bucket[16](id)", "id_bucket", "bucket[16]"),
        ("truncate(4, name)", "name_trunc", "truncate[4]"),
        ("identity(name)", "name", "identity"),
        ('"name"', "name", "identity"),
        (" name ", "name", "identity"),
    ],
)
def test_a_partition_expression_is_read(expression: str, name: str, transform: str) -> None:
    assert partitions(define_table(SCHEMA, partition_by=[expression])) == [(name, transform)]


@pytest.mark.parametrize(
    ("expressions", "says"),
    [
        (["nmae"], "no column 'nmae' \\(did you mean 'name'\\?\\)"),
        (["dy(at)"], "no transform 'dy' \\(did you mean 'day'\\?\\)"),
        (["day(name)"], "day does not work on column 'name', which is string"),
        (["bucket(id)"], "bucket needs a number"),
        (["bucket(0, id)"], "bucket needs a number"),
        (["day(3, at)"], "takes no number"),
        (["s"], "identity does not work on column 's'"),
        (["s.x"], "lies inside another column"),
        (["id", "id"], "partitioned by identity already"),
        (["day(at)", "hour(at)"], "partitioned by day already"),
        (["bucket(4294967296, id)"], "bucket needs a number"),
        ([""], "no column ''"),
    ],
)
def test_a_wrong_partition_expression_is_named(expressions: list[str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        define_table(SCHEMA, partition_by=expressions)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("expression", "field"),
    [
        ("id", "1 ASC NULLS FIRST"),
        ("id asc", "1 ASC NULLS FIRST"),
        ("id DESC", "1 DESC NULLS LAST"),
        ("id nulls last", "1 ASC NULLS LAST"),
        ("id desc  nulls  first", "1 DESC NULLS FIRST"),
        ("bucket(4, id) desc", "bucket[4](1) DESC NULLS LAST"),
        ("day(at)", "day(2) ASC NULLS FIRST"),
    ],
)
def test_a_sort_expression_is_read(expression: str, field: str) -> None:
    assert sorting(define_table(SCHEMA, sort_by=[expression])) == [field]


@pytest.mark.parametrize(
    ("expressions", "says"),
    [
        (["id downwards"], "no column 'id downwards'"),
        (["id", "id desc"], "sorted by this already"),
        (["s"], "does not work on column 's'"),
    ],
)
def test_a_wrong_sort_expression_is_named(expressions: list[str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        define_table(SCHEMA, sort_by=expressions)


def test_a_column_named_like_a_sort_expression_is_itself() -> None:
    assert sorting(define_table({"a desc": "int"}, sort_by=["a desc"])) == ["1 ASC NULLS FIRST"]


def test_one_text_is_not_a_list_of_expressions() -> None:
    with pytest.raises(InvalidRequest, match="partition_by is one text"):
        define_table(SCHEMA, partition_by="id")


VALUES: dict[str, object] = {
    "boolean": True,
    "int": 7,
    "long": 7,
    "float": 1.5,
    "double": 1.5,
    "decimal(10,2)": Decimal("1.25"),
    "date": date(2024, 2, 29),
    "time": time(10, 30),
    "timestamp": datetime(2024, 2, 29, 10),  # noqa: DTZ001
    "timestamptz": datetime(2024, 2, 29, 10, tzinfo=UTC),
    "string": "ä/ö %",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "binary": b"\x00\xff",
    "fixed[4]": b"abcd",
}
UNWRITABLE = {("identity", "uuid"), ("bucket(4, c)", "time"), ("truncate(3, c)", "binary")}


@pytest.mark.parametrize("kind", VALUES)
def test_every_partitioning_that_is_accepted_can_be_written(lake: Lake, kind: str) -> None:
    for number, expression in enumerate(
        [
            "identity(c)",
            "year(c)",
            "month(c)",
            "day(c)",
            "hour(c)",
            "bucket(4, c)",
            "truncate(3, c)",
        ]
    ):
        try:
            definition = define_table({"c": kind}, partition_by=[expression])
        except InvalidRequest:
            continue
        assert (expression.replace("identity(c)", "identity"), kind) not in UNWRITABLE
        table = lake.catalog.create_table(
            f"t{number}", definition.schema, partition_spec=definition.partition_spec
        )
        rows = open_input([{"c": VALUES[kind]}, {"c": None}], schema=table.schema()).read_all()
        table.append(rows)
        found = table.scan().to_arrow()["c"].to_pylist()
        assert sorted(map(str, found)) == sorted(map(str, rows["c"].to_pylist()))


@pytest.mark.parametrize(("expression", "kind"), sorted(UNWRITABLE))
def test_what_cannot_be_written_is_refused(expression: str, kind: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be written yet"):
        define_table({"c": kind}, partition_by=[expression.replace("identity", "identity(c)")])


def test_a_definition_is_complete() -> None:
    defined = define_table({"id": "long"}, sort_by=["id desc"])
    assert define_table(defined) is defined
    with pytest.raises(InvalidRequest, match="already"):
        define_table(defined, partition_by=["id"])
