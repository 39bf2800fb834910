"""Spark SQL reads and changes every kind of table that the pipeline makes, which goes on after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from calve.model import TableName
from calve.topics import StreamMessage
from calve.topics.messages import message_batch
from calve.wal import Rejected
from tests.integration.spark_site import SparkSite

TOPIC = TableName.parse("events")
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_MERGE_ON_READ = {f"write.{what}.mode": "merge-on-read" for what in ("delete", "update", "merge")}


@dataclass(frozen=True)
class Kind:
    """A kind of table: what its topic is like, what is sent, and a column of text."""

    send: Callable[[range], Any]
    topic: Mapping[str, Any] = field(default_factory=dict)
    table: str = "events"
    text: str = "name"
    more: str = ""  # what else an inserted row has to have


def plain(ids: range) -> pa.RecordBatch:
    return pa.record_batch({"id": list(ids), "name": [f"n{each}" for each in ids]})


def dated(ids: range) -> pa.RecordBatch:
    times = [_BEGIN + timedelta(hours=each) for each in ids]
    return plain(ids).append_column("at", pa.array(times, pa.timestamp("us", tz="UTC")))


def nested(ids: range) -> pa.RecordBatch:
    kinds = pa.struct(
        [
            ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
            ("tags", pa.list_(pa.struct([("k", pa.string()), ("v", pa.list_(pa.int64()))]))),
            ("counts", pa.map_(pa.string(), pa.struct([("n", pa.int64())]))),
        ]
    )
    values = [
        {
            "place": {"city": f"c{each}", "zip": each},
            "tags": [{"k": "a", "v": [each, None]}, {"k": "b", "v": []}],
            "counts": [("x", {"n": each})],
        }
        for each in ids
    ]
    return plain(ids).append_column("deep", pa.array(values, kinds))


def messages(ids: range) -> pa.RecordBatch:
    sent = [
        StreamMessage(f"p{each}".encode(), key=f"n{each}", attributes={"n": "1"}, schema="a/1")
        for each in ids
    ]
    return message_batch(sent, now=_BEGIN)


def bad_rows(ids: range) -> list[Rejected]:
    return [Rejected(b'{"id": %d}' % each, "application/x-ndjson", f"n{each}") for each in ids]


DATED = {"id": "long", "name": "string", "at": "timestamptz"}
KINDS = {
    "plain": Kind(plain),
    "partitioned": Kind(dated, {"schema": DATED, "partition_by": ["day(at)"]}),
    "sorted, merge on read": Kind(
        dated, {"schema": DATED, "sort_by": ["name desc", "id"], "properties": _MERGE_ON_READ}
    ),
    "nested": Kind(nested),
    "messages": Kind(messages, {"kind": "messages"}, text="key", more="x'00' AS payload"),
    "dead letters": Kind(
        bad_rows,
        {"schema": {"id": "long"}},
        table="events__dead_letters",
        text="reason",
        more="'events' AS topic, 'text/csv' AS content_type, x'00' AS original",
    ),
}


def sent(both: SparkSite, kind: Kind, ids: range) -> Any:
    rows = kind.send(ids)
    both.site.intake.submit(TOPIC, [rows]).wait()
    return rows


def change_everything(both: SparkSite, table: str, kind: Kind) -> None:
    """An insert, an update, a merge that updates, inserts and deletes, a delete, a compaction."""
    row = f"'by hand' AS {kind.text}" + (f", {kind.more}" if kind.more else "")
    names = [each.rpartition(" AS ")[2] for each in row.split(", ")]
    both.sql(f"INSERT INTO {table} ({', '.join(names)}) SELECT {row}")
    both.sql(f"UPDATE {table} SET {kind.text} = 'updated' WHERE _calve_offset = 5")
    merged = row.replace("by hand", "merged")
    both.sql(
        f"MERGE INTO {table} t USING (SELECT stack(3, 6, 7, -1) AS n, {merged}) s "
        "ON t._calve_offset = s.n "
        f"WHEN MATCHED AND s.n = 6 THEN UPDATE SET {kind.text} = s.{kind.text} "
        "WHEN MATCHED THEN DELETE "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) "
        f"VALUES ({', '.join(f's.{name}' for name in names)})"
    )
    both.sql(f"DELETE FROM {table} WHERE _calve_offset = 8")
    (done,) = both.sql(
        f"CALL system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))"
    )
    assert done["rewritten_data_files_count"] > 1


@pytest.mark.parametrize("name", KINDS)
def test_spark_does_with_a_table_of_the_pipeline_what_it_does_with_any(
    both: SparkSite, name: str
) -> None:
    kind = KINDS[name]
    if kind.topic:
        both.site.create("events", **kind.topic)
    pipeline = both.pipeline()
    table = f"default.default.{kind.table}"
    for start in range(0, 40, 20):
        sent(both, kind, range(start, start + 20))
        assert pipeline.drain(60)
    found = both.sql(f"SELECT {kind.text} FROM {table} ORDER BY _calve_offset")
    assert [row[0] for row in found] == [f"n{each}" for each in range(40)]
    change_everything(both, table, kind)
    last = sent(both, kind, range(40, 50))
    assert pipeline.drain(60)
    found = both.sql(f"SELECT _calve_offset, {kind.text} FROM {table} ORDER BY 1, 2")
    expected = [(each, f"n{each}") for each in range(50) if each not in {7, 8}]
    expected[5:7] = [(5, "updated"), (6, "merged")]
    assert [tuple(row) for row in found] == [(None, "by hand"), (None, "merged"), *expected]
    if isinstance(last, pa.RecordBatch):
        assert both.site.rows(kind.table)[-10:] == last.to_pylist()
    verified = both.lake.tables.verify_topic("events", log=both.site.intake.log.directory)
    assert verified.is_sound, verified
    assert [str(each) for each in verified.partitions[0].removed] == ["7-9"]
