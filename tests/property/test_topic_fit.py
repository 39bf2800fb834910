"""What fits a topic can be appended, and is read back equal by name, for any schemas and rows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calve.errors import InvalidRequest
from calve.ingest import Intake
from calve.model import TableName
from calve.settings import load_settings
from calve.tables.inputs.conform import conform
from calve.tables.types import is_bytes, is_text
from calve.topics import TopicSpec
from calve.topics.fit import schema_of_first

TOPIC = TableName.parse("t")

PLAIN = st.sampled_from(
    [
        pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(),
        pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary(),
        pa.large_binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("ms", "UTC"),
        pa.time64("us"), pa.decimal128(9, 2), pa.decimal128(20, 4), pa.binary(3), pa.null(),
    ]
)  # fmt: skip
NAMES = st.sampled_from(["a", "b", "c", "été", "naïve col", "名前", "d.e", "A"])


def structs(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    typed = inner.filter(lambda kind: not pa.types.is_null(kind))  # the oracle knows no such field
    fields = st.lists(st.tuples(NAMES, typed), min_size=1, max_size=3, unique_by=lambda f: f[0])
    return fields.map(pa.struct)


KINDS = st.recursive(
    PLAIN,
    lambda inner: (
        inner.map(pa.list_)
        | inner.map(pa.large_list)
        | structs(inner)
        | inner.map(lambda kind: pa.map_(pa.string(), kind))
    ),
    max_leaves=4,
)
SCHEMAS = st.lists(
    st.tuples(NAMES, KINDS), min_size=1, max_size=4, unique_by=lambda field: field[0]
).map(pa.schema)


def value(kind: pa.DataType, seed: int) -> Any:
    """A value of the type that follows from a number; none for some numbers."""
    if seed % 5 == 0 or pa.types.is_null(kind):
        return None
    if pa.types.is_struct(kind):
        return {field.name: value(field.type, seed // 2 + n) for n, field in enumerate(kind.fields)}
    if pa.types.is_map(kind):
        return [(f"k{n}", value(kind.item_type, seed // 3 + n)) for n in range(seed % 3)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [value(kind.value_type, seed // 2 + n) for n in range(seed % 4)]
    return plain_value(kind, seed)


def plain_value(kind: pa.DataType, seed: int) -> Any:
    if is_text(kind):
        return "ü" * (seed % 4)
    if is_bytes(kind):
        return b"\xff" * (seed % 4)
    if pa.types.is_fixed_size_binary(kind):
        return b"abc"
    return seed % 2 == 0 if pa.types.is_boolean(kind) else seed % 100


def rows_of(schema: pa.Schema, seeds: list[int]) -> pa.RecordBatch:
    arrays = []
    for place, field in enumerate(schema):
        values = [value(field.type, seed + place) for seed in seeds]
        arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@contextmanager
def new_intake() -> Iterator[Intake]:
    with tempfile.TemporaryDirectory() as directory:
        flags = {"data": str(Path(directory) / "lake"), "wal.sync_mode": "none"}
        with Intake(load_settings(flags=flags, environ={}).settings) as intake:
            yield intake


def known_values(batch: pa.RecordBatch, target: pa.Schema) -> list[dict[str, Any]]:
    """The rows as the topic's columns hold them; whatever is not sent is null."""
    names = set(target.names)
    kept = batch.select([f.name for f in batch.schema if f.name in names])
    rows: list[dict[str, Any]] = conform([kept], target).read_all().to_pylist()
    return rows


def sent(intake: Intake, batch: pa.RecordBatch) -> bool:
    """Whether the batch fits; if not, nothing has changed."""
    before = intake.topics.find(TOPIC)
    try:
        if before is None:  # not by the batch itself: that would ask a catalog
            intake.topics.create(TOPIC, TopicSpec(schema=schema_of_first(batch.schema)))
        intake.submit(TOPIC, batch)
    except InvalidRequest:
        assert before is None or intake.topics.find(TOPIC) == before
        return False
    return True


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    batches=st.lists(
        st.tuples(SCHEMAS, st.lists(st.integers(0, 1000), min_size=1, max_size=5)),
        min_size=1,
        max_size=4,
    )
)
def test_what_fits_is_read_back_equal_by_name(
    batches: list[tuple[pa.Schema, list[int]]],
) -> None:
    with new_intake() as intake:
        accepted = []
        for schema, seeds in batches:
            batch = rows_of(schema, seeds)
            if sent(intake, batch):
                accepted.append(batch)
        if not accepted:
            return
        intake.log.flush()
        target = intake.topics.topic(TOPIC).arrow_schema
        stored = [entry.batch for entry in intake.read(TOPIC, 0)]
        assert [each.num_rows for each in stored if each] == [each.num_rows for each in accepted]
        for given_batch, kept in zip(accepted, stored, strict=True):
            assert kept is not None
            assert known_values(kept, target) == known_values(given_batch, target)
