"""Whatever a writer is given, under whatever columns it comes, every engine gives it back.

Tables of all types, nested too, grow while they are written: columns and fields are added and types
made wider, in the same transactions as rows with the values on which engines differ.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema

from calve.lake import Lake
from calve.model import TableName
from calve.settings import load_settings
from calve.tables.inputs import open_input
from calve.tables.schemas import arrow_schema
from calve.writer import BatchOptimizationConfig, IcebergTableWriter
from tests.property.table_machine import _has_nested_uuid
from tests.property.table_model import (
    WIDER,
    Column,
    Columns,
    MapOf,
    Row,
    StructOf,
    changed,
    expected_rows,
    iceberg_field,
    named_row,
    seen_rows,
    walk,
)
from tests.property.table_strategies import (
    COLUMN_NAMES,
    FIELD_NAMES,
    VALUES,
    Columnist,
    rows,
)
from tests.property.test_manager_model import SPARK_TYPES, _nullable

QUIET: Any = {"deadline": None, "suppress_health_check": list(HealthCheck)}
DATA = st.data()
_tables = count()


class GrowingTable:
    """A table as its writer sees it: what it should hold, and the columns that rows come with."""

    def __init__(self, lake: Lake, data: st.DataObject, types: list[str]) -> None:
        self.name = f"t{next(_tables)}"
        self._columnist = Columnist(types)
        self._draw = data
        names = st.lists(st.sampled_from(COLUMN_NAMES), min_size=1, max_size=3, unique=True)
        is_made = data.draw(st.booleans(), "is made before")
        self.columns: Columns = tuple(
            self._columnist.column(data, name, optional=not is_made) for name in data.draw(names)
        )
        self.rows: list[Row] = []
        if is_made:
            lake.tables.create_table(self.name, Schema(*map(iceberg_field, self.columns)))

    def grow(self) -> None:
        """One change that rows may bring along."""
        if not self.rows:
            return
        change = self._draw.draw(st.sampled_from([self._add, self._add_inside, self._widen]))
        change()

    def batch(self) -> pa.Table:
        """Rows of the columns there are, some of the optional ones left out."""
        optional = [each for each in self.columns if not each.required]
        left_out = self._draw.draw(
            st.lists(st.sampled_from(optional), max_size=len(self.columns) - 1, unique=True)
            if optional
            else st.just([]),
            "left out",
        )
        present = tuple(each for each in self.columns if each not in left_out)
        shuffled = tuple(self._draw.draw(st.permutations(present), "order"))
        new = self._draw.draw(st.lists(rows(shuffled), min_size=1, max_size=4), "rows")
        self.rows += new
        schema = arrow_schema(Schema(*map(iceberg_field, shuffled)))
        listed = [named_row(row, shuffled) for row in new]
        return open_input(listed, schema=schema).read_all()

    def _add(self) -> None:
        taken = {each.name for each in self.columns}
        free = [name for name in COLUMN_NAMES if name not in taken]
        if free:
            name = self._draw.draw(st.sampled_from(free), "new column")
            added = self._columnist.column(self._draw, name, optional=True)
            self.columns = (*self.columns, added)

    def _add_inside(self) -> None:
        structs = [path[-1] for path in walk(self.columns) if isinstance(path[-1].type, StructOf)]
        if not structs:
            return
        parent = self._draw.draw(st.sampled_from(structs), "struct")
        assert isinstance(parent.type, StructOf)
        taken = {each.name for each in parent.type.fields}
        free = [name for name in FIELD_NAMES if name not in taken]
        if free:
            name = self._draw.draw(st.sampled_from(free), "new field")
            added = self._columnist.column(self._draw, name, depth=1, optional=True)
            grown = StructOf((*parent.type.fields, added))
            self.columns = changed(self.columns, parent.id, type=grown)

    def _widen(self) -> None:
        plain = [path[-1] for path in walk(self.columns) if path[-1].type in WIDER]
        keys = {
            path[-1].type.key.id for path in walk(self.columns) if isinstance(path[-1].type, MapOf)
        }
        narrow = [each for each in plain if each.id not in keys]
        if narrow:
            column: Column = self._draw.draw(st.sampled_from(narrow), "narrow")
            assert isinstance(column.type, str)
            wider = self._draw.draw(st.sampled_from(WIDER[column.type]), "wider")
            self.columns = changed(self.columns, column.id, type=wider)


def write(lake: Lake, data: st.DataObject, types: list[str]) -> GrowingTable:
    """A table after a few transactions, each of a few batches and changes."""
    table = GrowingTable(lake, data, types)
    config = BatchOptimizationConfig(max_rows_per_batch=2)
    name = TableName.parse(table.name)
    with IcebergTableWriter(lake._connections, name, batch=config) as writer:
        for _ in range(data.draw(st.integers(1, 3), "transactions")):
            with writer.transaction():
                for _ in range(data.draw(st.integers(1, 3), "batches")):
                    if data.draw(st.booleans(), "grows"):
                        table.grow()
                    writer.write_batch(table.batch())
    return table


def check_here(lake: Lake, table: GrowingTable) -> None:
    """DuckDB's answer, and PyIceberg's own."""
    columns = present_columns(lake, table)
    expected = expected_rows(table.rows, columns)
    answer = lake.tables.query_table(table.name)
    assert answer.engine in {"duckdb", None}
    assert seen_rows(answer.to_arrow().to_pylist(), columns) == expected
    if not _has_nested_uuid(columns):
        scanned = lake.catalog.load_table(table.name).scan().to_arrow()
        assert seen_rows(scanned.to_pylist(), columns) == expected


def present_columns(lake: Lake, table: GrowingTable) -> Columns:
    """The columns that the table has come to have: one that was always left out is not there."""
    known = lake.catalog.load_table(table.name).schema()
    given = {field.name: field for field in known.fields}
    assert set(given) <= {each.name for each in table.columns}
    present = tuple(each for each in table.columns if each.name in given)
    for column in table.columns:
        if column not in present:
            assert all(row.get(column.id) is None for row in table.rows)
    return tuple(replace(each, required=False) for each in present)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    data = str(tmp_path_factory.mktemp("values"))
    with Lake(load_settings(flags={"data": data}, environ={}).settings) as lake:
        yield lake


@settings(max_examples=40, **QUIET)
@given(data=DATA)
def test_what_is_written_is_read(lake: Lake, data: st.DataObject) -> None:
    check_here(lake, write(lake, data, list(VALUES)))


@pytest.mark.torture
@settings(max_examples=5_000, **QUIET)
@given(data=DATA)
def test_what_is_written_is_read_for_long(lake: Lake, data: st.DataObject) -> None:
    check_here(lake, write(lake, data, list(VALUES)))


@pytest.fixture(scope="module")
def with_spark(lake: Lake, spark_running: None) -> Lake:
    return lake


def check_in_spark(lake: Lake, table: GrowingTable) -> None:
    spark = lake.spark()
    columns = present_columns(lake, table)
    frame = spark.table(table.name)
    nullable = spark.createDataFrame([], _nullable(frame.schema))
    told = nullable.unionByName(frame).toArrow().to_pylist()
    assert seen_rows(told, columns) == expected_rows(table.rows, columns)


@settings(max_examples=8, **QUIET)
@given(data=DATA)
def test_spark_reads_what_is_written(with_spark: Lake, data: st.DataObject) -> None:
    check_in_spark(with_spark, write(with_spark, data, SPARK_TYPES))


@pytest.mark.torture
@settings(max_examples=400, **QUIET)
@given(data=DATA)
def test_spark_reads_what_is_written_for_long(with_spark: Lake, data: st.DataObject) -> None:
    check_in_spark(with_spark, write(with_spark, data, SPARK_TYPES))


def bits(column: pa.ChunkedArray) -> list[int]:
    return column.combine_chunks().to_numpy().view(np.uint64).tolist()  # type: ignore[no-any-return]


def test_every_bit_of_a_number_is_kept(with_spark: Lake) -> None:
    """NaN with a payload and a sign, subnormal numbers, and nanoseconds as whole numbers."""
    patterns = [0x7FF8000000000000, 0xFFF8000000000001, 0x7FF4DEADBEEF0001, 0x8000000000000000, 1]
    doubles = np.array(patterns, np.uint64).view(np.float64)
    nanos = [2**63 - 1, -(2**63), 1_700_000_000_123_456_789, -1, 0]
    given_rows = pa.table({"n": range(5), "d": doubles, "ns": pa.array(nanos, pa.int64())})
    with IcebergTableWriter(with_spark._connections, TableName.parse("bits")) as writer:
        writer.write_batch(given_rows)
    scanned = with_spark.catalog.load_table("bits").scan().to_arrow().sort_by("n")
    asked = with_spark.sql("SELECT * FROM bits ORDER BY n").to_arrow()
    told = with_spark.spark().sql("SELECT * FROM bits ORDER BY n").toArrow()
    for answer in (scanned, asked, told):
        assert bits(answer["d"]) == patterns
        assert answer["ns"].to_pylist() == nanos
    assert struct.pack("<d", doubles[3]) == struct.pack("<d", -0.0)
