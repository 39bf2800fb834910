"""Rows in bytes: what each format means, what is refused, and what is set aside."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calve.errors import CalveError, InvalidRequest, TooLarge
from calve.ingest.formats import KnownTypes, decode, decompressed
from calve.ingest.formats import blocks as cutting
from calve.ingest.formats.arrow_rows import ARROW
from calve.ingest.formats.csv_rows import CSV
from calve.ingest.formats.expansion import compressed_bytes
from calve.ingest.formats.json_rows import JSON, NDJSON
from calve.model import TableName
from calve.tables.schemas import SchemaSource
from calve.topics import Topic, TopicSpec
from calve.topics.define import define_topic

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BYTES_MAX = 1 << 20


def topic(columns: SchemaSource, **more: Any) -> Topic:
    return define_topic(TableName.parse("events"), TopicSpec(schema=columns, **more), now=NOW)


def types(columns: SchemaSource, **more: Any) -> KnownTypes:
    return KnownTypes.of(topic(columns, **more))


def rows(
    body: bytes, media_type: str = NDJSON, known: KnownTypes | None = None
) -> list[dict[str, Any]]:
    found = decode(body, media_type, known or KnownTypes(), sets_aside=False, bytes_max=BYTES_MAX)
    return [row for batch in found.batches for row in batch.to_pylist()]


def refused(body: bytes, media_type: str = NDJSON, known: KnownTypes | None = None) -> CalveError:
    with pytest.raises(CalveError) as raised:
        rows(body, media_type, known)
    return raised.value


def stream(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


ADA = {"id": 1, "name": "Ada"}
BOB = {"id": 2, "name": "Bob"}


@pytest.mark.parametrize(
    ("media_type", "body"),
    [
        (NDJSON, b'{"id":1,"name":"Ada"}\n{"id":2,"name":"Bob"}\n'),
        (NDJSON, b'\xef\xbb\xbf{"id":1,"name":"Ada"}\r\n\r\n{"name":"Bob","id":2}'),
        (JSON, b'[{"id":1,"name":"Ada"},{"id":2,"name":"Bob"}]'),
        (JSON, b' [ {"id":\n1,\r\n"name":"Ada"} ,\n\n{"id":2,"name":"Bob"} ] '),
        (CSV, b"id,name\n1,Ada\n2,Bob\n"),
        (CSV, b'\r\n"id",name\r\n1,"Ada"\r\n\r\n2,Bob'),
        (ARROW, stream(pa.Table.from_pylist([ADA, BOB]))),
        (ARROW, stream(pa.Table.from_pylist([ADA, BOB]), "zstd")),
        (ARROW, stream(pa.Table.from_pylist([ADA, BOB]), "lz4")),
    ],
)
def test_the_same_rows_in_every_format(media_type: str, body: bytes) -> None:
    assert rows(body, media_type) == [ADA, BOB]


def test_values_are_read_with_the_types_of_the_topic() -> None:
    known = types(
        {
            "id": "long",
            "at": "timestamptz",
            "price": "decimal(20, 4)",
            "data": "binary",
            "x": "double",
        }
    )
    expected = {
        "id": 9_007_199_254_740_993,
        "at": datetime(2026, 1, 31, 9, 0, tzinfo=UTC),
        "price": Decimal("1234567890123456.7891"),
        "data": b"\x00\xff",
        "x": 1.0,
    }
    as_json = (
        b'{"id":9007199254740993,"at":"2026-01-31T10:00:00+01:00",'
        b'"price":1234567890123456.7891,"data":"AP8=","x":1}'
    )
    assert rows(as_json, NDJSON, known) == [expected]
    assert rows(b"[" + as_json + b"]", JSON, known) == [expected]
    as_csv = (
        b"id,at,price,data,x\n9007199254740993,2026-01-31T10:00:00+01:00,"
        b"1234567890123456.7891,AP8=,1\n"
    )
    assert rows(as_csv, CSV, known) == [expected]


def test_a_new_column_gets_the_type_that_its_values_suggest_also_beside_decimals() -> None:
    known = types({"price": "decimal(10, 2)"})
    body = b'{"price":1.5,"weight":0.1,"day":"2026-01-31","at":"2026-01-31T10:00:00Z"}\n'
    found = decode(body, NDJSON, known, sets_aside=False, bytes_max=BYTES_MAX).batches[0]
    assert [str(found.schema.field(name).type) for name in ("weight", "day", "at")] == [
        "double",
        "date32[day]",
        "timestamp[us, tz=UTC]",
    ]
    assert found.column("price").to_pylist() == [Decimal("1.50")]


def test_a_renamed_column_may_come_under_its_old_name() -> None:
    renamed = topic({"id": "long", "moment": "timestamptz"})
    memory = renamed.memory.with_renamed(("at",), ("moment",))
    known = KnownTypes.of(renamed.with_memory(memory))
    moment = datetime(2026, 1, 31, 10, tzinfo=UTC)
    assert rows(b'{"id":1,"at":"2026-01-31 10:00:00"}', NDJSON, known) == [
        {"id": 1, "moment": moment}
    ]
    assert rows(b"id,at\n1,2026-01-31 10:00:00\n", CSV, known) == [{"id": 1, "moment": moment}]


@pytest.mark.parametrize(
    ("body", "media_type", "told"),
    [
        (b'{"id":1}\n{"id":"x"}\n', NDJSON, ("row 2", "'id'", "'x'")),
        (b'[{"id":1},{"id":"x"}]', JSON, ("row 2", "'id'", "'x'")),
        (b"id\n1\nx\n", CSV, ("row 2", "'id'", "'x'")),
        (b'{"id":1}\n{id:2}\n', NDJSON, ("row 2", "not JSON")),
        (b'{"id":1}\nnull\n', NDJSON, ("row 2", "not a row")),
        (b"[1]", JSON, ("row 1", "not a row")),
        (b'{"id":1} , ', JSON, ("not an array",)),
        (b'[{"id":1}', JSON, ("row 2",)),
        (b'[{"id":1}] x', JSON, ("more after the array",)),
        (b'[{"id":1},]', JSON, ("row 2",)),
        (b'{"id":NaN}', NDJSON, ("not JSON",)),
        (b'{"name":"\xff"}', NDJSON, ("not UTF-8",)),
        (b'[{"name":"\xff"}]', JSON, ("not UTF-8",)),
        (b"name\n\xff\n", CSV, ("not UTF-8",)),
        ("name\nAda\n".encode("utf-16"), CSV, ("UTF-16",)),
        (b"name\nAda\n\xff\n", CSV, ("row 2", "not UTF-8")),
        (b"name,id\nAda,1\nB\xff\n", CSV, ("row 2", "not UTF-8")),
        (b"id,name\n1\n", CSV, ("row 1", "1 cells")),
        (b'id,name\n1,"Ada\n', CSV, ("quote",)),
        (b"id,id\n1,2\n", CSV, ("twice",)),
        (b"id,\n1,2\n", CSV, ("no name",)),
        (b"", NDJSON, ("no rows",)),
        (b"\n\n", NDJSON, ("no rows",)),
        (b"[]", JSON, ("no rows",)),
        (b"id,name\n", CSV, ("no rows",)),
        (b"", CSV, ("header",)),
        (b"", ARROW, ("Arrow stream",)),
        (stream(pa.table({"id": [1]}))[:-40], ARROW, ("Arrow stream",)),
        (
            stream(pa.table({"naïve": [1]})).replace("naïve".encode(), b"na\xff\xffve"),
            ARROW,
            ("not UTF-8",),
        ),
        (
            stream(pa.table({"s": [{"naïve": 1}]})).replace("naïve".encode(), b"na\xff\xffve"),
            ARROW,
            ("not UTF-8",),
        ),
        (stream(pa.table({"id": pa.array([], pa.int64())})), ARROW, ("no rows",)),
        (b'{"":1}', NDJSON, ("no name",)),
        (b'{"' + b"x" * 2000 + b'":1}', NDJSON, ("2,000 characters",)),
        (b'{"a":{}}', NDJSON, ("struct without fields",)),
        (b"{}", NDJSON, ("no value",)),
        (b'{"a":' + b"9" * 5000 + b"}", NDJSON, ("row 1",)),
        (b'[{"a":' + b"9" * 5000 + b"}]", JSON, ("row 1",)),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(
    body: bytes, media_type: str, told: tuple[str, ...]
) -> None:
    known = types({"id": "long", "name": "string"})
    error = refused(body, media_type, known)
    assert isinstance(error, InvalidRequest)
    for words in told:
        assert words in str(error), error


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"a":' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"a":' + b'{"b":' * 300 + b"1" + b"}" * 300 + b"}",
    ],
)
@pytest.mark.parametrize("media_type", [NDJSON, JSON])
def test_what_is_nested_too_deeply_is_refused(media_type: str, body: bytes) -> None:
    whole = body if media_type == NDJSON else b"[" + body + b"]"
    assert "inside each other" in refused(whole, media_type).message


def test_a_body_that_becomes_far_larger_than_it_is_is_refused() -> None:
    sparse = b"".join(b'{"c%d":1}\n' % (n % 4000) for n in range(100_000))
    assert isinstance(refused(sparse), TooLarge)
    every = b"".join(b'{"c%d":1}\n' % n for n in range(100_000))
    assert "5,000 columns" in refused(every).message
    known = types({f"c{n}": "decimal(38, 2)" for n in range(1000)})
    header = b",".join(b"c%d" % n for n in range(1000))
    empty = header + b"\n" + (b"1" + b"," * 999 + b"\n") * 900
    assert len(empty) < BYTES_MAX
    assert isinstance(refused(empty, CSV, known), TooLarge)


def test_the_memory_of_rows_is_told_as_they_are_read() -> None:
    taken: list[int] = []
    body = b'{"id":1}\n' * 1000
    decode(body, NDJSON, KnownTypes(), sets_aside=False, bytes_max=BYTES_MAX, grow=taken.append)
    assert sum(taken) >= 8000


def test_of_two_keys_with_one_name_the_last_counts() -> None:
    assert rows(b'{"id":1,"id":2}') == rows(b'[{"id":1,"id":2}]', JSON) == [{"id": 2}]


def test_a_text_may_hold_any_character() -> None:
    assert rows(b'{"name":"\\u0000\\ud83d\\ude00\xc3\xa9"}') == [{"name": "\0😀é"}]


def test_bad_rows_are_set_aside_as_they_came() -> None:
    known = types({"id": "long"})
    body = b'{"id":1}\n{"id":"x"}\n{"id": 3}\n{id\nnull\n'
    found = decode(body, NDJSON, known, sets_aside=True, bytes_max=BYTES_MAX)
    assert [row for batch in found.batches for row in batch.to_pylist()] == [{"id": 1}, {"id": 3}]
    assert [bad.original for bad in found.rejected] == [b'{"id":"x"}', b"{id", b"null"]
    assert "row 2" in found.rejected[0].reason
    assert "row 5" in found.rejected[2].reason
    assert {bad.content_type for bad in found.rejected} == {NDJSON}


def test_bad_rows_of_csv_are_set_aside_below_their_header() -> None:
    known = types({"id": "long", "name": "string"})
    body = b'id,name\n1,Ada\nx,"B\nob"\n3\n4,Dan\n'
    found = decode(body, CSV, known, sets_aside=True, bytes_max=BYTES_MAX)
    assert [row["id"] for batch in found.batches for row in batch.to_pylist()] == [1, 4]
    assert [bad.original for bad in found.rejected] == [b'id,name\nx,"B\nob"', b"id,name\n3"]


def test_bad_rows_of_an_array_and_of_arrow_are_set_aside_too() -> None:
    known = types({"id": "long", "name": "string"}, on_unknown_column="refuse")
    found = decode(
        b'[{"id":1}, {"id": "x"}, {"id":2, "other":1}]', JSON, known, sets_aside=True, bytes_max=99
    )
    assert [bad.original for bad in found.rejected] == [b'{"id": "x"}', b'{"id":2, "other":1}']
    assert found.row_count == 1
    required = types(pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    table = pa.table({"id": [1, None, 3]})
    found = decode(stream(table), ARROW, required, sets_aside=True, bytes_max=BYTES_MAX)
    assert found.row_count == 2
    assert len(found.rejected) == 1


@pytest.mark.parametrize(
    ("media_type", "body"),
    [
        (NDJSON, b'{"id":1,"n":1}\n{"id":null,"n":2}\n'),
        (JSON, b'[{"id":1,"n":1},{"id":null,"n":2}]'),
        (CSV, b"id,n\n1,1\n,2\n"),
        (ARROW, stream(pa.table({"id": [1, None], "n": [1, 2]}))),
    ],
)
def test_rows_are_numbered_on_from_those_of_earlier_bodies(media_type: str, body: bytes) -> None:
    known = types(pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())]))
    found = decode(body, media_type, known, sets_aside=True, bytes_max=BYTES_MAX, before=1_000)
    assert [bad.reason for bad in found.rejected] == [
        "row 1,002, column 'id': a required value is missing"
    ]


def test_the_topic_may_want_rows_with_unknown_columns_set_aside() -> None:
    known = types({"id": "long"}, on_unknown_column="dead_letter")
    found = decode(
        b'{"id":1}\n{"id":2,"other":3}\n', NDJSON, known, sets_aside=False, bytes_max=BYTES_MAX
    )
    assert found.row_count == 1
    assert "other" in found.rejected[0].reason


def test_a_body_with_too_many_bad_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calve.ingest.formats.reading.REJECTED_MAX", 10)
    with pytest.raises(InvalidRequest, match="more than 10 rows"):
        decode(b"x\n" * 11, NDJSON, KnownTypes(), sets_aside=True, bytes_max=BYTES_MAX)


def test_a_long_body_is_read_in_blocks_and_numbered_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cutting, "BLOCK_BYTES", 64)
    lines = b"".join(b'{"id":%d,"name":"n\xc3\xa9%d"}\n' % (n, n) for n in range(100))
    assert [row["id"] for row in rows(lines)] == list(range(100))
    array = b"[" + lines.replace(b"\n", b",")[:-1] + b"]"
    assert rows(array, JSON) == rows(lines)
    cells = b"id,name\n" + b"".join(b'%d,"a\nb"\n' % n for n in range(100))
    assert [row["id"] for row in rows(cells, CSV)] == list(range(100))
    assert "row 101" in refused(lines + b'{"id":"x"}').message
    assert "row 101" in refused(cells + b"x,y\n", CSV).message
    found = decode(lines + b"!\n" + lines, NDJSON, KnownTypes(), sets_aside=True, bytes_max=9999)
    assert found.row_count == 200
    assert "row 101" in found.rejected[0].reason


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(-5, 5)), max_size=20))
def test_an_array_is_cut_where_its_elements_end(values: list[dict[str, int]]) -> None:
    import msgspec

    body = msgspec.json.format(msgspec.json.encode(values))
    cut = b"\n".join(cutting.array_blocks(body))
    assert [msgspec.json.decode(line) for line in cut.split(b"\n") if line] == values


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_compressed_body_is_unpacked_up_to_the_bound(encoding: str) -> None:
    zeros = bytes(64 << 20)
    body = gzip.compress(zeros) if encoding == "gzip" else pa.compress(zeros, "zstd", asbytes=True)
    taken: list[int] = []
    with pytest.raises(TooLarge, match="more than 1000000 bytes"):
        decompressed(body, encoding, bytes_max=1_000_000, grow=taken.append)
    assert sum(taken) <= 1_000_000
    with pytest.raises(InvalidRequest, match="not whole"):
        decompressed(body[:-9], encoding, bytes_max=1 << 30, grow=taken.append)
    with pytest.raises(InvalidRequest, match="not whole"):
        decompressed(b"no such thing", encoding, bytes_max=1 << 30, grow=taken.append)


MANY = 1 << 16


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"\0" * (4 << 20)], pa.large_binary()),
        pa.DictionaryArray.from_arrays(pa.array([0] * MANY, pa.int8()), ["x" * 100]),
        pa.RunEndEncodedArray.from_arrays(pa.array([MANY], pa.int32()), pa.array(["x" * 100])),
        pa.array(["x" * 100] * MANY, pa.string_view()),
        pa.StructArray.from_arrays(
            [pa.DictionaryArray.from_arrays(pa.array([0] * MANY, pa.int8()), ["x" * 100])], ["a"]
        ),
    ],
    ids=["compressed", "dictionary", "runs", "views", "inside a struct"],
)
def test_arrow_data_that_becomes_too_large_is_refused_before_it_does(column: pa.Array) -> None:
    body = stream(pa.table({"x": column}), "zstd")
    with pytest.raises(TooLarge):
        rows(body, ARROW)


def test_what_compressed_arrow_data_becomes_is_known_before_it_is_unpacked() -> None:
    zeros = pa.table({"x": pa.array([b"\0" * (8 << 20)], pa.large_binary())})
    packed = stream(zeros, "zstd")
    assert len(packed) < 1 << 16
    assert 8 << 20 <= compressed_bytes(packed) < 9 << 20
    words = pa.table({"x": pa.array(["x" * 1000]).dictionary_encode()})
    assert compressed_bytes(stream(words, "lz4")) >= 1000
    assert compressed_bytes(stream(zeros)) == 0


def test_arrow_data_in_these_encodings_is_taken_when_it_is_small() -> None:
    table = pa.table(
        {
            "d": pa.array(["a", "b", None]).dictionary_encode(),
            "r": pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), ["x", "y"]),
            "v": pa.array(["a", None, "c" * 20], pa.string_view()),
            "l": pa.array([[1], [], None], pa.list_view(pa.int64())),
            "m": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        }
    )
    assert rows(stream(table), ARROW) == table.to_pylist()


def test_arrow_data_that_lies_about_its_offsets_is_refused() -> None:
    offsets = pa.array([0, 1 << 20, 1], pa.int32()).buffers()[1]
    lying = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"x")])
    assert "Arrow stream" in refused(stream(pa.table({"x": lying})), ARROW).message
