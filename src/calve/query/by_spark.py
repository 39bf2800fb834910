"""Rows of the tables that only Spark can read: of one snapshot, as a stream within bounds.

In memory are the rows of a few of Spark's partitions, never the table. A partition is a small part
of the table's files, or where that is larger, one row group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from calve.errors import InvalidRequest, MissingPart
from calve.parts import load_part
from calve.tables.columns_then import ColumnsThen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from calve.condition import Condition
    from calve.tables.engine_choice import Choice
    from calve.tables.views import TableView

_PARTITION_BYTES: Final = 16 << 20  # of files, which are compressed


def spark_batches(
    view: TableView,
    choice: Choice,
    spark: Callable[[], SparkSession] | None,
    *,
    condition: Condition | None = None,
    limit: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """The view's columns by Spark, with the rows left out that it can tell are not wanted.

    Where it can tell of all of them, it also stops after `limit` rows of each partition.
    """
    session = require_spark(choice, spark)()
    then = ColumnsThen(view)
    with load_part("spark", "calve.spark.translate").translating_spark():
        frame = _frame(session, view)
        text = _text(condition, then)
        if text is not None:
            frame = frame.where(text)
        picked = frame.select([_quoted(field.name) for field in then.schema.fields])
        is_exact = condition is None or text is not None
        yield from map(then.as_now, _streamed(picked, limit if is_exact else None))


def require_spark(
    choice: Choice, spark: Callable[[], SparkSession] | None
) -> Callable[[], SparkSession]:
    if spark is None:
        raise MissingPart(
            f"only Spark can read this table: {choice.reason}",
            hint="ask where Spark is: `lake.sql` in a program, or `calve sql` without --server; or "
            "have Spark rewrite its files: `rewrite_data_files` with remove-dangling-deletes",
        )
    return spark


def _frame(session: SparkSession, view: TableView) -> Any:
    """Of the snapshot that was planned, whatever is committed meanwhile."""
    assert view.snapshot is not None
    reader = session.read.option("versionAsOf", view.snapshot.snapshot_id)
    name = ".".join(map(_quoted, view.table.name()))
    return reader.option("split-size", _PARTITION_BYTES).table(name)


def _text(condition: Condition | None, then: ColumnsThen) -> str | None:
    """The condition for Spark, if it means the same there and of the snapshot's columns."""
    if condition is None or not then.has(tuple(condition.columns)):
        return None
    try:
        return condition.spark_sql()
    except InvalidRequest:
        return None


def _streamed(frame: Any, limit: int | None) -> Iterator[pa.RecordBatch]:
    """The frame's rows, partition after partition, as Arrow has made them in Spark's workers."""

    # Inside of a function it goes to the workers as it is: they need not have Calve.
    def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        left = limit
        for batch in batches:
            kept = batch if left is None else batch.slice(0, left)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, kept.schema) as writer:
                writer.write_batch(kept)
            yield pa.record_batch({"rows": [sink.getvalue().to_pybytes()]})
            if left is not None:
                left -= kept.num_rows
                if left <= 0:
                    return

    made = frame.mapInArrow(packed, "rows binary")
    # The next partition is worked on while this one is taken, unless it may not be needed.
    for row in made.toLocalIterator(prefetchPartitions=limit is None):
        with closing(pa.ipc.open_stream(row["rows"])) as reader:
            yield from reader


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
