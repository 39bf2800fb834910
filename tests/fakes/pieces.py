"""Pieces of a topic's log for tests of the pipeline's tasks, with the tables that they go to."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, NestedField, TimestamptzType

from calve.lake import Lake
from calve.model import TableName
from calve.pipeline.shapes import shape_of
from calve.pipeline.work import Piece, PieceDone
from calve.protocol import error_of
from calve.sources.place import LogPlace
from calve.tables.data_files import new_operation_id
from calve.tables.letter_columns import DEAD_LETTER_COLUMNS
from calve.tables.offsets import LogRange, RangeCommit, commit_range
from calve.tables.ranges import Ranges
from calve.tables.schemas import schema_from_arrow
from calve.tables.staging import Edit
from calve.tables.transforms import partition_spec, sort_order
from calve.topics import Topic, TopicSpec


def make_topic(lake: Lake, name: str, columns: Any, **options: Any) -> Topic:
    return lake.intake.create_topic(TableName.parse(name), TopicSpec(schema=columns, **options))


def topic_of(lake: Lake, name: str) -> Topic:
    return lake.intake.topics.topic(TableName.parse(name))


def with_places(schema: Schema) -> Schema:
    ids = range(schema.highest_field_id + 1, schema.highest_field_id + 4)
    kinds = (IntegerType(), LongType(), TimestamptzType())
    names = ("_calve_partition", "_calve_offset", "_calve_ingested_at")
    more = [NestedField(*each) for each in zip(ids, names, kinds, strict=True)]
    return Schema(*schema.fields, *more)


def make_table(lake: Lake, topic: Topic, properties: dict[str, str] | None = None) -> Table:
    """The table of a topic as that is now."""
    schema = with_places(topic.schema)
    return lake.catalog.iceberg.create_table(
        _identifier(lake, topic.name),
        schema,
        partition_spec=partition_spec(topic.partition_by, schema),
        sort_order=sort_order(topic.sort_by, schema),
        properties={"calve.topic": str(topic.name), **(properties or {})},
    )


def make_dead_letters(lake: Lake, topic: Topic) -> Table:
    schema = with_places(schema_from_arrow(DEAD_LETTER_COLUMNS))
    return lake.catalog.iceberg.create_table(_identifier(lake, topic.name.dead_letters), schema)


def _identifier(lake: Lake, name: TableName) -> tuple[str, ...]:
    lake.catalog.iceberg.create_namespace_if_not_exists(name.namespace)
    return (*name.namespace, name.name)


class Feed:
    """A topic with its tables, of whose log pieces can be made."""

    def __init__(self, lake: Lake, topic: Topic, properties: dict[str, str] | None = None) -> None:
        self.lake = lake
        self.topic = topic
        self.table = make_table(lake, topic, properties)
        self.letters = make_dead_letters(lake, topic)

    @classmethod
    def of(cls, lake: Lake, name: str, columns: Any, **options: Any) -> Feed:
        properties = options.pop("table_properties", None)
        return cls(lake, make_topic(lake, name, columns, **options), properties)

    def produce(self, rows: Any) -> None:
        self.lake.produce(str(self.topic.name), rows)
        self.topic = topic_of(self.lake, str(self.topic.name))

    @property
    def end(self) -> int:
        return self.lake.intake.offsets(self.topic.name).durable

    def piece(
        self,
        start: int = 0,
        end: int | None = None,
        *,
        number: int = 0,
        schema: Schema | None = None,
        directory: str | None = None,
        flight: str | None = None,
    ) -> Piece:
        binding = self.topic.partitions[0]
        wal = directory or str(self.lake.settings.wal.path)
        place = LogPlace(
            log_id=binding.log_id, stream_id=binding.stream_id, directory=wal, flight=flight
        )
        return Piece(
            number=number,
            topic=self.topic,
            partition=0,
            place=place,
            start=start,
            end=self.end if end is None else end,
            table=shape_of(self.table, schema),
            dead_letters=shape_of(self.letters),
            operation_id=new_operation_id(f"offsets-0-{start}"),
            file_bytes=0,
        )

    def commit(self, pieces: list[Piece], done: list[PieceDone]) -> RangeCommit:
        """The pieces, which follow each other, as one commit of the table."""
        lost = Ranges.exact(*(hole for each in done for hole in each.lost))
        rows = LogRange(
            0,
            pieces[0].place.log_id,
            pieces[0].start,
            pieces[-1].end,
            done[-1].checksum,
            lost,
        )
        edit = Edit(added=files_of(done))
        committed = commit_range(self.table, rows, edit, operation_id=pieces[0].operation_id)
        self.table = committed.table
        return committed

    def rows(self) -> list[dict[str, Any]]:
        """What the table holds, in the order of the log."""
        found: pa.Table = self.table.refresh().scan().to_arrow()
        return found.sort_by("_calve_offset").to_pylist()  # type: ignore[no-any-return]


def files_of(done: Iterable[PieceDone]) -> list[DataFile]:
    return [file for each in succeeded(done) for file in pickle.loads(each.files)]


def letters_of(done: Iterable[PieceDone]) -> list[DataFile]:
    return [file for each in succeeded(done) for file in pickle.loads(each.dead_letters)]


def succeeded(done: Iterable[PieceDone]) -> list[PieceDone]:
    """The outcomes, or the error of the first that failed."""
    found = list(done)
    for each in found:
        if each.problem is not None:
            raise error_of(each.problem)
    return found
