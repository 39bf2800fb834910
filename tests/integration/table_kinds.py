"""Tables of every kind that decides who can read them, each with the engine that does.

The rows that a table has are written down beside it, and come from no engine.
"""

from __future__ import annotations

import datetime as dt
import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from calve.lake import Lake

Build = Callable[[Lake], Table]
Row = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    name: str
    engine: str
    build: Build
    rows: Sequence[Row]
    # What DuckDB does with it by itself: right, wrong, fails, or crashes with its whole process.
    duckdb: str = "right"


KINDS: list[Kind] = []


def kind(engine: str, rows: Sequence[Row], *, duckdb: str = "right") -> Callable[[Build], Build]:
    def keep(build: Build) -> Build:
        KINDS.append(Kind(build.__name__, engine, build, rows, duckdb))
        return build

    return keep


ID_NAME = pa.schema([("id", pa.int64()), ("name", pa.string())])
NAMED = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "name", StringType(), required=False),
)
BY_NAME = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))


PLAIN: list[Row] = [
    {"id": 0, "name": "n0"},
    {"id": 1, "name": None},
    {"id": 2, "name": "n2"},
    {"id": 3, "name": None},
]


def plain(lake: Lake, **properties: str) -> Table:
    named = {name.replace("_", "-"): value for name, value in properties.items()}
    table = lake.catalog.create_table("t", ID_NAME, properties=named)
    for first in (0, 2):
        table.append(pa.table({"id": [first, first + 1], "name": [f"n{first}", None]}))
    return table


def spark(lake: Lake, *statements: str) -> Table:
    session = lake.spark()
    for statement in statements:
        session.sql(statement)
    return lake.catalog.load_table("t")


def rows_of(schema: pa.Schema, *rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


@kind("duckdb", PLAIN)
def version_1(lake: Lake) -> Table:
    return plain(lake, format_version="1")


@kind("duckdb", PLAIN)
def version_2(lake: Lake) -> Table:
    return plain(lake)


MERGE = "'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read'"
FILL = "INSERT INTO t SELECT id, concat('n', id) FROM range(0, 100, 1, 1)"
V2 = f"CREATE TABLE t (id BIGINT, name STRING) USING iceberg TBLPROPERTIES ('format-version'='2', {MERGE})"
V3 = V2.replace("'2'", "'3'")
FILLED: list[Row] = [{"id": n, "name": f"n{n}"} for n in range(100)]
WITHOUT_7: list[Row] = [row for row in FILLED if row["id"] % 7]
WITHOUT_7_AND_11: list[Row] = [row for row in WITHOUT_7 if row["id"] % 11]


@kind("duckdb", FILLED)
def version_3(lake: Lake) -> Table:
    return spark(lake, V3, FILL)


@kind("duckdb", [row | {"name": "u"} if row["id"] % 5 == 0 else row for row in WITHOUT_7])
def position_deletes(lake: Lake) -> Table:
    return spark(
        lake, V2, FILL, "DELETE FROM t WHERE id % 7 = 0", "UPDATE t SET name = 'u' WHERE id % 5 = 0"
    )


@kind("duckdb", WITHOUT_7_AND_11)
def deletion_vectors(lake: Lake) -> Table:
    return spark(
        lake, V3, FILL, "DELETE FROM t WHERE id % 7 = 0", "DELETE FROM t WHERE id % 11 = 0"
    )


@kind("duckdb", WITHOUT_7_AND_11)
def position_deletes_then_deletion_vectors(lake: Lake) -> Table:
    upgrade = "ALTER TABLE t SET TBLPROPERTIES ('format-version'='3')"
    return spark(
        lake, V2, FILL, "DELETE FROM t WHERE id % 7 = 0", upgrade, "DELETE FROM t WHERE id % 11 = 0"
    )


@kind("pyiceberg", WITHOUT_7, duckdb="fails")
def position_deletes_in_orc(lake: Lake) -> Table:
    v2 = V2.replace(MERGE, f"{MERGE}, 'write.delete.format.default'='orc'")
    return spark(lake, v2, FILL, "DELETE FROM t WHERE id % 7 = 0")


@kind("spark", WITHOUT_7, duckdb="fails")
def position_deletes_in_avro(lake: Lake) -> Table:
    v2 = V2.replace(MERGE, f"{MERGE}, 'write.delete.format.default'='avro'")
    return spark(lake, v2, FILL, "DELETE FROM t WHERE id % 7 = 0")


def delete_equal(
    lake: Lake, name: str, kept: pa.DataType, field_id: int, values: list[Any]
) -> Table:
    """Commit an equality delete, which Spark reads and does not write, through Iceberg's Java API."""
    session = lake.spark()
    jvm: Any = session._jvm
    java: Any = session._jsparkSession
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(java)
    full = f"{lake.settings.catalog.name}.default.default.t"
    table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(java, full)
    path = f"{table.location()}/data/{uuid.uuid4().hex}.parquet"
    file = Path(path.removeprefix("file:"))
    file.parent.mkdir(parents=True, exist_ok=True)
    field = pa.field(name, kept, metadata={b"PARQUET:field_id": str(field_id).encode()})
    pq.write_table(pa.table([pa.array(values, kept)], schema=pa.schema([field])), file)
    ids: Any = session.sparkContext._gateway.new_array(jvm.int, 1)  # type: ignore[union-attr]
    ids[0] = field_id
    made = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(table.spec()).ofEqualityDeletes(
        ids
    )
    made = made.withPath(path).withFormat("parquet").withRecordCount(len(values))
    table.newRowDelta().addDeletes(made.withFileSizeInBytes(file.stat().st_size).build()).commit()
    session.sql("REFRESH TABLE t")
    return lake.catalog.load_table("t")


SMALL = "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, NULL), (4, 'd')"
A: Row = {"id": 1, "name": "a"}
B: Row = {"id": 2, "name": "b"}
C: Row = {"id": 3, "name": None}
D: Row = {"id": 4, "name": "d"}
ABCD: list[Row] = [A, B, C, D]


@kind("spark", [C, D, {"id": 1, "name": "again"}])
def equality_deletes(lake: Lake) -> Table:
    spark(lake, V2, SMALL)
    delete_equal(lake, "id", pa.int64(), 1, [1, 2])
    return spark(lake, "INSERT INTO t VALUES (1, 'again')")


@kind("spark", [C, D], duckdb="wrong")
def equality_deletes_beside_null(lake: Lake) -> Table:
    spark(lake, V2, SMALL)
    delete_equal(lake, "id", pa.int64(), 1, [1])
    return delete_equal(lake, "name", pa.string(), 2, ["b"])


@kind("spark", [{"id": 2}, {"id": 3}, {"id": 4}], duckdb="crashes")
def equality_deletes_by_a_column_that_is_gone(lake: Lake) -> Table:
    spark(lake, V2, SMALL)
    delete_equal(lake, "name", pa.string(), 2, ["a"])
    return spark(lake, "ALTER TABLE t DROP COLUMN name")


@kind("pyiceberg", ABCD, duckdb="fails")
def orc_files(lake: Lake) -> Table:
    made = "CREATE TABLE t (id BIGINT, name STRING) USING iceberg TBLPROPERTIES ('write.format.default'='orc')"
    return spark(lake, made, SMALL)


@kind("spark", ABCD, duckdb="fails")
def avro_files(lake: Lake) -> Table:
    made = "CREATE TABLE t (id BIGINT, name STRING) USING iceberg TBLPROPERTIES ('write.format.default'='avro')"
    return spark(lake, made, SMALL)


@kind("pyiceberg", [*ABCD, *ABCD], duckdb="fails")
def parquet_and_orc_files(lake: Lake) -> Table:
    change = "ALTER TABLE t SET TBLPROPERTIES ('write.format.default'='orc')"
    return spark(lake, V2, SMALL, change, SMALL)


KEY = uuid.UUID(int=2**127 + 5)
TYPES = {
    "b": BooleanType(), "i": IntegerType(), "l": LongType(), "f": FloatType(), "d": DoubleType(),
    "dec": DecimalType(10, 2), "dec38": DecimalType(38, 10), "day": DateType(), "time": TimeType(),
    "ts": TimestampType(), "tz": TimestamptzType(), "s": StringType(), "u": UUIDType(), "fx": FixedType(5), "bin": BinaryType(),
    "st": StructType(NestedField(101, "u", UUIDType(), required=False), NestedField(102, "b", BooleanType(), required=False)),
    "li": ListType(103, UUIDType(), element_required=False),
    "ma": MapType(104, StringType(), 105, DecimalType(10, 2), value_required=False),
    "ls": ListType(106, StructType(NestedField(107, "q", BinaryType(), required=False)), element_required=False),
}  # fmt: skip
ALL = Schema(
    *(NestedField(n, name, each, required=False) for n, (name, each) in enumerate(TYPES.items(), 1))
)
VALUES = {
    "b": True, "i": -5, "l": 2**40, "f": 1.5, "d": math.nan, "dec": Decimal("12345678.90"),
    "dec38": Decimal("1234567890123456789012345678.0123456789"), "day": dt.date(1900, 1, 1), "time": dt.time(23, 59, 59, 999999),
    "ts": dt.datetime(1950, 1, 1, 1, 1, 1, 123456, tzinfo=dt.UTC).replace(tzinfo=None), "tz": dt.datetime(2262, 5, 1, tzinfo=dt.UTC),
    "s": 'süß\n"', "u": KEY.bytes, "fx": b"\0\1\2\3\xff", "bin": b"\xff\0", "st": {"u": KEY.bytes, "b": False},
    "li": [KEY.bytes, None], "ma": [("k", Decimal("1.50")), ("z", None)], "ls": [{"q": b"\0"}, None],
}  # fmt: skip


# Bytes become the ids that they are.
EVERYTHING: list[Row] = [
    VALUES | {"u": KEY, "st": {"u": KEY, "b": False}, "li": [KEY, None]},
    dict.fromkeys(VALUES),
]


def _stored(kept: pa.DataType) -> pa.DataType:
    if isinstance(kept, pa.UuidType):
        return pa.binary(16)
    if pa.types.is_struct(kept):
        return pa.struct([(field.name, _stored(field.type)) for field in kept])
    return pa.large_list(_stored(kept.value_type)) if pa.types.is_large_list(kept) else kept


def all_rows() -> pa.Table:
    made = schema_to_pyarrow(ALL, include_field_ids=False)
    return rows_of(
        pa.schema([(field.name, _stored(field.type)) for field in made]),
        VALUES,
        dict.fromkeys(VALUES),
    )


@kind("duckdb", EVERYTHING)
def every_type(lake: Lake) -> Table:
    table = lake.catalog.create_table("t", ALL)
    table.append(all_rows())
    return table


@kind("duckdb", EVERYTHING)
def every_transform(lake: Lake) -> Table:
    ids = {field.name: field.field_id for field in ALL.fields}
    transforms: tuple[tuple[str, Transform[Any, Any]], ...] = (("day", YearTransform()), ("ts", DayTransform()), ("dec", IdentityTransform()),
                  ("s", TruncateTransform(2)), ("u", BucketTransform(4)))  # fmt: skip
    spec = PartitionSpec(
        *(
            PartitionField(ids[name], 1000 + n, each, f"p{n}")
            for n, (name, each) in enumerate(transforms)
        )
    )
    table = lake.catalog.create_table("t", ALL, partition_spec=spec)
    table.append(all_rows())
    return table


@kind("pyiceberg", [row | {"extra": None} for row in ABCD], duckdb="fails")
def a_type_of_version_3(lake: Lake) -> Table:
    spark(lake, V3, SMALL)
    return add_java_column(lake, "UnknownType")


def add_java_column(lake: Lake, name: str, default: Any = None) -> Table:
    session = lake.spark()
    jvm: Any = session._jvm
    java: Any = session._jsparkSession
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(java)
    full = f"{lake.settings.catalog.name}.default.default.t"
    table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(java, full)
    made = getattr(jvm.org.apache.iceberg.types.Types, name).get()
    extra = [] if default is None else [jvm.org.apache.iceberg.expressions.Literal.of(default)]
    table.updateSchema().addColumn("extra", made, *extra).commit()
    session.sql("REFRESH TABLE t")
    return lake.catalog.load_table("t")


@kind("duckdb", [*(row | {"extra": 7} for row in ABCD), {"id": 9, "name": "z", "extra": 8}])
def default_values(lake: Lake) -> Table:
    spark(lake, V3, SMALL)
    add_java_column(lake, "IntegerType", 7)
    return spark(lake, "INSERT INTO t VALUES (9, 'z', 8)")


@kind(
    "duckdb", [*({"name": row["id"], "id": row["name"]} for row in PLAIN), {"name": 9, "id": "z"}]
)
def renamed_and_swapped(lake: Lake) -> Table:
    table = plain(lake)
    for old, new in (("id", "x"), ("name", "id"), ("x", "name")):
        with table.update_schema() as update:
            update.rename_column(old, new)
    table.append(pa.table({"name": [9], "id": ["z"]}))
    return table


@kind("duckdb", [*(row | {"name": None} for row in PLAIN), {"id": 9, "name": 4}])
def dropped_and_added_again(lake: Lake) -> Table:
    table = plain(lake)
    with table.update_schema() as update:
        update.delete_column("name")
    with table.update_schema() as update:
        update.add_column("name", IntegerType())
    table.append(pa.table({"id": [9], "name": pa.array([4], pa.int32())}))
    return table


@kind(
    "duckdb",
    [
        {"i": 1, "f": 0.10000000149011612, "d": Decimal("1.25"), "st": {"i": 4}},
        {"i": 2**40, "f": 0.1, "d": Decimal("123456789012345678.25"), "st": {"i": 2**40}},
    ],
)
def widened(lake: Lake) -> Table:
    narrow = pa.schema(
        [
            ("i", pa.int32()),
            ("f", pa.float32()),
            ("d", pa.decimal128(5, 2)),
            ("st", pa.struct([("i", pa.int32())])),
        ]
    )
    wide = pa.schema(
        [
            ("i", pa.int64()),
            ("f", pa.float64()),
            ("d", pa.decimal128(20, 2)),
            ("st", pa.struct([("i", pa.int64())])),
        ]
    )
    table = lake.catalog.create_table("t", narrow)
    table.append(rows_of(narrow, {"i": 1, "f": 0.1, "d": Decimal("1.25"), "st": {"i": 4}}))
    with table.update_schema() as update:
        update.update_column("i", LongType())
        update.update_column("f", DoubleType())
        update.update_column("d", DecimalType(20, 2))
        update.update_column(("st", "i"), LongType())
    table.append(
        rows_of(
            wide, {"i": 2**40, "f": 0.1, "d": Decimal("123456789012345678.25"), "st": {"i": 2**40}}
        )
    )
    return table


@kind(
    "duckdb",
    [
        {"id": 1, "st": {"bb": "x", "c": None}, "ls": [{"x": 1, "y": None}]},
        {"id": 2, "st": None, "ls": None},
        {"id": 3, "st": {"bb": "q", "c": "r"}, "ls": [{"x": 1, "y": "t"}]},
    ],
)
def nested_fields_changed(lake: Lake) -> Table:
    old = pa.schema(
        [
            ("id", pa.int64()),
            ("st", pa.struct([("a", pa.int32()), ("b", pa.string())])),
            ("ls", pa.list_(pa.struct([("x", pa.int32())]))),
        ]
    )
    new = pa.schema(
        [
            ("id", pa.int64()),
            ("st", pa.struct([("bb", pa.string()), ("c", pa.string())])),
            ("ls", pa.list_(pa.struct([("x", pa.int32()), ("y", pa.string())]))),
        ]
    )
    table = lake.catalog.create_table("t", old)
    table.append(
        rows_of(
            old,
            {"id": 1, "st": {"a": 1, "b": "x"}, "ls": [{"x": 1}]},
            {"id": 2, "st": None, "ls": None},
        )
    )
    with table.update_schema() as update:
        update.add_column(("st", "c"), StringType())
        update.rename_column(("st", "b"), "bb")
        update.delete_column(("st", "a"))
        update.add_column(("ls", "element", "y"), StringType())
    table.append(rows_of(new, {"id": 3, "st": {"bb": "q", "c": "r"}, "ls": [{"x": 1, "y": "t"}]}))
    return table


@kind("duckdb", [{"id": 1, "s": {"x": 1}}, {"id": 2, "s": None}])
def required_columns(lake: Lake) -> Table:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("s", pa.struct([pa.field("x", pa.int32(), nullable=False)])),
        ]
    )
    table = lake.catalog.create_table("t", schema)
    table.append(rows_of(schema, {"id": 1, "s": {"x": 1}}, {"id": 2, "s": None}))
    return table


@kind(
    "duckdb",
    [
        *PLAIN,
        *({"id": 10 + n, "name": name} for n, name in enumerate(("a", "b", None))),
        *({"id": 20 + n, "name": name} for n, name in enumerate(("a/b?=%20 *[x]", None, ""))),
    ],
)
def partitioning_changed_and_null_partitions(lake: Lake) -> Table:
    table = plain(lake)
    with table.update_spec() as spec:
        spec.add_field("id", BucketTransform(4), "b")
    table.append(pa.table({"id": [10, 11, 12], "name": ["a", "b", None]}))
    with table.update_spec() as spec:
        spec.remove_field("b")
        spec.add_identity("name")
    table.append(pa.table({"id": [20, 21, 22], "name": ["a/b?=%20 *[x]", None, ""]}))
    return table


@kind("duckdb", [{"id": n, "name": name} for n, name in ((1, "a"), (2, None), (3, "b"), (4, None))])
def partition_field_voided(lake: Lake) -> Table:
    table = lake.catalog.create_table(
        "t", NAMED, partition_spec=BY_NAME, properties={"format-version": "1"}
    )
    table.append(pa.table({"id": [1, 2], "name": ["a", None]}))
    with table.update_spec() as spec:
        spec.remove_field("name")
    table.append(pa.table({"id": [3, 4], "name": ["b", None]}))
    return table


@kind("pyiceberg", [{"id": n} for n in (1, 2, 3, 4)], duckdb="crashes")
def partitioned_by_a_column_that_is_gone(lake: Lake) -> Table:
    table = lake.catalog.create_table("t", NAMED, partition_spec=BY_NAME)
    table.append(pa.table({"id": [1, 2], "name": ["a", None]}))
    with table.update_spec() as spec:
        spec.remove_field("name")
    with table.update_schema() as update:
        update.delete_column("name")
    table.append(pa.table({"id": [3, 4]}))
    return table


@kind("duckdb", [A])
def a_partition_column_that_is_not_in_the_files(lake: Lake) -> Table:
    table = lake.catalog.create_table("t", NAMED, partition_spec=BY_NAME)
    table.append(pa.table({"id": [1], "name": ["a"]}))
    (task,) = table.scan().plan_files()
    path = task.file.file_path.removeprefix("file://")
    pq.write_table(pq.ParquetFile(path).read().select(["id"]), path)
    return table


ODD_NAMES = [
    'a"b',
    "a b",
    "ünï",
    "select",
    "a.b",
    "it's",
    "1a",
    "a;b",
    "{x}",
    "😀",
    "%",
    "a\\b",
    "*",
    "filename",
    "file_row_number",
]


@kind("duckdb", [{name: n for n, name in enumerate(ODD_NAMES)}])
def odd_names(lake: Lake) -> Table:
    table = lake.catalog.create_table("t", pa.schema([(name, pa.int64()) for name in ODD_NAMES]))
    table.append(pa.table({name: [n] for n, name in enumerate(ODD_NAMES)}))
    return table


@kind("pyiceberg", [{"a": 1, "A": 2, "b": 3}], duckdb="wrong")
def names_that_differ_in_case(lake: Lake) -> Table:
    table = lake.catalog.create_table(
        "t", pa.schema([("a", pa.int64()), ("A", pa.int64()), ("b", pa.int64())])
    )
    table.append(pa.table([[1], [2], [3]], names=["a", "A", "b"]))
    return table


@kind("pyiceberg", [{"st": {"a": 1, "A": 2}}], duckdb="wrong")
def fields_that_differ_in_case(lake: Lake) -> Table:
    schema = pa.schema([("st", pa.struct([("a", pa.int64()), ("A", pa.int64())]))])
    table = lake.catalog.create_table("t", schema)
    struct = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "A"])
    table.append(pa.table([struct], schema=schema))
    return table


@kind("duckdb", [])
def emptied(lake: Lake) -> Table:
    table = plain(lake)
    table.delete("id >= 0")
    return table


@kind(
    "duckdb",
    [
        *({"id": row["id"], "full_name": row["name"]} for row in PLAIN),
        {"id": 77, "full_name": "brought"},
    ],
)
def files_without_field_ids(lake: Lake) -> Table:
    table = plain(lake)
    file = f"{lake.settings.data}/brought.parquet"
    pq.write_table(pa.table({"name": ["brought"], "id": [77]}), file)
    table.add_files([f"file://{file}"])
    with table.update_schema() as update:
        update.rename_column("name", "full_name")
    return table


@kind("duckdb", [{"d": value} for value in (1.0, math.nan, math.nan, None)])
def not_a_number(lake: Lake) -> Table:
    table = lake.catalog.create_table("t", pa.schema([("d", pa.float64())]))
    table.append(pa.table({"d": [1.0, math.nan]}))
    table.append(pa.table({"d": [math.nan, None]}))
    return table


@kind("duckdb", ABCD)
def compressed_metadata(lake: Lake) -> Table:
    made = "CREATE TABLE t (id BIGINT, name STRING) USING iceberg TBLPROPERTIES ('write.metadata.compression-codec'='gzip')"
    return spark(lake, made, SMALL)
