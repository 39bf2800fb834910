"""What a pipeline's task makes of a piece: rows of the table, dead letters, known loss, or a reason."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType

from calve.errors import CalveError, Conflict, NotFound, Unavailable
from calve.lake import Lake
from calve.model import TableName
from calve.pipeline.shapes import table_of
from calve.pipeline.task import work_on
from calve.pipeline.work import Piece, PieceDone
from calve.protocol import error_of
from calve.settings import Settings
from calve.sources.entries import Sources
from calve.tables.column_memory import ColumnMemory
from calve.tables.schemas import without
from calve.topics import TopicChange
from tests.conftest import MakeSettings
from tests.fakes.pieces import Feed, files_of, letters_of
from tests.servers.s3 import S3

ARROW = "application/vnd.apache.arrow.stream"


def work(*pieces: Piece) -> list[PieceDone]:
    with Sources() as sources:
        return [work_on(piece, sources) for piece in pieces]


def problem(piece: Piece) -> CalveError:
    (done,) = work(piece)
    assert done.problem is not None
    assert (done.files, done.dead_letters) == (b"", b"")
    return error_of(done.problem)


def rows_of(table: Table, files: list[DataFile]) -> list[dict[str, Any]]:
    """What is in files that nobody has committed."""
    tables = [
        pa.parquet.read_table(pa.BufferReader(table.io.new_input(file.file_path).open().read()))
        for file in files
    ]
    found: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist() if tables else []
    return sorted(found, key=lambda row: row["_calve_offset"])


def set_aside(feed: Feed, done: list[PieceDone]) -> list[dict[str, Any]]:
    return rows_of(feed.letters, letters_of(done))


def row_of(letter: dict[str, Any]) -> dict[str, Any]:
    """The row that a dead letter keeps as an Arrow stream."""
    assert letter["content_type"] == ARROW
    (row,) = pa.ipc.open_stream(letter["original"]).read_all().to_pylist()
    return dict(row)


def on_disk(lake: Lake) -> list[Path]:
    return list(Path(lake.settings.data).rglob("*.parquet"))


def values(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def test_rows_of_any_age_go_under_the_names_that_topic_and_table_have_now(lake: Lake) -> None:
    place = {"place": pa.struct([("city", pa.string()), ("zip", pa.int32())])}
    columns = pa.schema({"id": pa.int64(), "name": pa.string(), "old": pa.string()} | place)
    feed = Feed.of(lake, "t", columns)
    row = {"id": 1, "name": "a", "old": "x", "place": {"city": "Bern", "zip": 3000}}
    feed.produce(pa.Table.from_pylist([row], schema=columns))
    change = TopicChange(rename_columns={"name": "full_name"}, drop_columns=("old",))
    feed.topic = lake.intake.alter_topic(TableName.parse("t"), change)
    feed.produce([{"id": 2, "full_name": "b", "place": {"city": "Genf", "zip": 1200}}])
    memory = ColumnMemory().with_renamed(("full_name",), ("who",)).with_dropped(("place", "zip"))
    memory = memory.with_renamed(("place", "city"), ("place", "town"))
    with feed.table.update_schema() as update:
        update.rename_column("name", "who").delete_column("old")
        update.delete_column("place.zip").rename_column("place.city", "town")
    feed.table.transaction().set_properties(memory.entries()).commit_transaction()
    feed.table.refresh()
    piece = feed.piece()
    (done,) = work(piece)
    assert (done.problem, done.rows, done.dead_letter_rows) == (None, 2, 0)
    feed.commit([piece], [done])
    expected = [(1, "a", {"town": "Bern"}), (2, "b", {"town": "Genf"})]
    assert values(feed.rows(), "id", "who", "place") == expected


def narrower(schema: Schema) -> Schema:
    """The same columns, with `id` an int."""
    fields = [
        field.model_copy(update={"field_type": IntegerType()}) if field.name == "id" else field
        for field in schema.fields
    ]
    return Schema(*fields, schema_id=schema.schema_id)


def test_a_row_whose_value_does_not_fit_is_set_aside_alone(lake: Lake) -> None:
    feed = Feed.of(lake, "t", {"id": "long", "name": "string"})
    rows = [{"id": 2**40 if n in {3, 70} else n, "name": f"n{n}"} for n in range(100)]
    feed.produce(rows)
    done = work(feed.piece(schema=narrower(feed.table.schema())))
    assert [(each.problem, each.rows, each.dead_letter_rows) for each in done] == [(None, 98, 2)]
    kept = rows_of(feed.table, files_of(done))
    assert [row["_calve_offset"] for row in kept] == [n for n in range(100) if n not in {3, 70}]
    assert all(row["id"] == row["_calve_offset"] for row in kept)
    letters = set_aside(feed, done)
    assert values(letters, "topic", "_calve_offset", "_calve_partition") == [
        ("t", 3, 0),
        ("t", 70, 0),
    ]
    assert "'id'" in letters[0]["reason"]
    assert [row_of(letter) for letter in letters] == [rows[3], rows[70]]


def required(schema: Schema, name: str) -> Schema:
    fields = [
        field.model_copy(update={"required": True}) if field.name == name else field
        for field in schema.fields
    ]
    return Schema(*fields, schema_id=schema.schema_id)


def test_a_required_value_that_is_missing_sets_its_row_aside(lake: Lake) -> None:
    feed = Feed.of(lake, "t", {"id": "long", "name": "string"})
    feed.produce([{"id": 0, "name": "a"}, {"id": 1, "name": None}, {"id": 2, "name": "c"}])
    feed.produce(pa.table({"id": [3, 4]}))
    done = work(feed.piece(schema=required(feed.table.schema(), "name")))
    assert [row["id"] for row in rows_of(feed.table, files_of(done))] == [0, 2]
    letters = set_aside(feed, done)
    assert [row_of(letter)["id"] for letter in letters] == [1, 3, 4]
    assert all("required" in letter["reason"] for letter in letters)


@pytest.mark.parametrize("policy", ["add", "ignore", "dead_letter", "refuse"])
def test_a_column_that_somebody_dropped_is_left_out(lake: Lake, policy: str) -> None:
    feed = Feed.of(lake, "t", {"id": "long", "name": "string"})
    feed.produce([{"id": 0, "name": "a"}, {"id": 1, "name": None}])
    with feed.table.update_schema() as update:
        update.delete_column("name")
    feed.topic = msgspec.structs.replace(feed.topic, on_unknown_column=policy)
    done = work(feed.piece())
    assert [row["id"] for row in rows_of(feed.table, files_of(done))] == [0, 1]
    assert set_aside(feed, done) == []


@pytest.mark.parametrize("policy", ["add", "ignore", "dead_letter", "refuse"])
def test_a_column_that_rows_are_written_without_is_left_out_only_where_that_was_asked_for(
    lake: Lake, policy: str
) -> None:
    feed = Feed.of(lake, "t", {"id": "long", "name": "string"})
    feed.produce([{"id": 0, "name": "a"}, {"id": 1, "name": None}])
    feed.topic = msgspec.structs.replace(feed.topic, on_unknown_column=policy)
    done = work(feed.piece(schema=without(feed.table.schema(), "name")))
    kept = rows_of(feed.table, files_of(done))
    letters = set_aside(feed, done)
    if policy == "ignore":
        assert ([row["id"] for row in kept], letters) == ([0, 1], [])
    else:
        assert [row["id"] for row in kept] == [1]
        assert [row_of(letter) for letter in letters] == [{"id": 0, "name": "a"}]
        assert letters[0]["reason"] == "the table has no column 'name'"


def test_rejected_rows_are_dead_letters_as_they_were_sent(lake: Lake) -> None:
    options = {"on_unknown_column": "dead_letter", "on_bad_row": "dead_letter"}
    feed = Feed.of(lake, "t", {"id": "int"}, **options)
    feed.produce(pa.table({"id": pa.array([1, 2], pa.int32()), "more": ["x", None]}))
    done = work(feed.piece())
    assert [row["id"] for row in rows_of(feed.table, files_of(done))] == [2]
    (letter,) = set_aside(feed, done)
    assert row_of(letter) == {"id": 1, "more": "x"}
    assert "more" in letter["reason"]
    assert letter["_calve_ingested_at"] is not None
    assert [each.dead_letter_rows for each in done] == [1]


def test_holes_of_the_log_are_told_as_lost(lake: Lake) -> None:
    feed = Feed.of(lake, "t", {"id": "long"})
    feed.produce([{"id": 0}])
    log = lake.intake.log
    log.record_hole(log.stream(feed.topic.name), 1, 5)
    feed.produce([{"id": 5}])
    piece = feed.piece()
    done = work(piece)
    assert [(each.lost, each.rows) for each in done] == [(((1, 5),), 2)]
    feed.commit([piece], done)
    assert values(feed.rows(), "id", "_calve_offset") == [(0, 0), (5, 5)]


def test_many_small_appends_make_few_row_groups(lake: Lake) -> None:
    feed = Feed.of(lake, "t", {"id": "long", "name": "string"})
    batches = [pa.RecordBatch.from_pylist([{"id": n, "name": f"n{n}"}]) for n in range(500)]
    appended = [lake.intake.submit(feed.topic.name, batch) for batch in batches]
    lake.intake.log.flush()
    assert len(appended) == feed.end == 500
    done = work(feed.piece(100, 400))
    (file,) = files_of(done)
    assert [row["id"] for row in rows_of(feed.table, [file])] == list(range(100, 400))
    content = feed.table.io.new_input(file.file_path).open().read()
    assert pa.parquet.ParquetFile(pa.BufferReader(content)).num_row_groups == 1


def test_a_range_read_from_a_service_is_the_same_as_from_the_directory(
    make_settings: MakeSettings,
) -> None:
    settings = make_settings(ingest__flight_port=0, ingest__http_port=0, wal__free_bytes_min=0)
    with Lake(settings) as lake, lake.serve() as serving:
        options = {"on_unknown_column": "dead_letter", "on_bad_row": "dead_letter"}
        feed = Feed.of(lake, "t", {"id": "long", "tags": "list<string>"}, **options)
        for start in range(0, 300, 100):
            feed.produce([{"id": n, "tags": ["a"] * (n % 3)} for n in range(start, start + 100)])
        feed.produce([{"id": 1, "other": 1}])
        flight = serving.addresses.flight
        here = feed.piece(50)
        away = feed.piece(50, directory="/nowhere/at/all", flight=flight)
        near, far = work(here, away)
        assert rows_of(feed.table, files_of([near])) == rows_of(feed.table, files_of([far]))
        assert set_aside(feed, [near]) == set_aside(feed, [far])
        assert (near.checksum, near.rows) == (far.checksum, far.rows) == (near.checksum, 250)
        assert near.ingested_until_us == far.ingested_until_us
        other = msgspec.structs.replace(away.place, stream_id=uuid4())
        assert isinstance(problem(msgspec.structs.replace(away, place=other)), Conflict)
    assert isinstance(problem(away), Unavailable)


def test_another_log_in_the_directory_is_not_read(lake: Lake) -> None:
    feed = Feed.of(lake, "t", {"id": "long"})
    feed.produce([{"id": 0}])
    piece = feed.piece()
    other = msgspec.structs.replace(piece.place, log_id=uuid4())
    error = problem(msgspec.structs.replace(piece, place=other))
    assert isinstance(error, NotFound)
    assert str(other.log_id) in error.message
    assert str(piece.place.log_id) in error.message
    stream = msgspec.structs.replace(piece.place, stream_id=uuid4())
    assert isinstance(problem(msgspec.structs.replace(piece, place=stream)), Conflict)


def test_a_piece_that_fails_leaves_no_file_and_does_not_harm_the_others(lake: Lake) -> None:
    feed = Feed.of(lake, "t", {"id": "long"})
    feed.produce([{"id": n} for n in range(10)])
    broken = msgspec.structs.replace(feed.piece().table, metadata=b"{}")
    pieces = [
        feed.piece(end=20),
        msgspec.structs.replace(feed.piece(), table=broken),
        feed.piece(number=2),
    ]
    done = work(*pieces)
    problems = [each.problem for each in done]
    assert problems[0] is not None
    assert isinstance(error_of(problems[0]), Unavailable)
    assert problems[1] is not None
    assert "unexpected" in problems[1].detail
    assert (problems[2], done[2].rows) == (None, 10)
    assert len(on_disk(lake)) == 1


def test_files_of_rows_go_when_their_dead_letters_cannot_be_written(lake: Lake) -> None:
    feed = Feed.of(lake, "t", {"id": "long"}, on_unknown_column="dead_letter")
    feed.produce(pa.table({"id": [1, 2], "more": ["x", None]}))
    piece = feed.piece()
    place = Path(feed.letters.location().removeprefix("file://"))
    (place / "data").write_text("in the way")
    assert problem(piece).message
    assert on_disk(lake) == []


def test_two_attempts_at_a_piece_do_not_write_over_each_other(lake: Lake) -> None:
    feed = Feed.of(lake, "t", {"id": "long"})
    feed.produce([{"id": n} for n in range(10)])
    piece = feed.piece()
    first, second = work(piece, piece)
    paths = [file.file_path for file in files_of([first, second])]
    assert len(set(paths)) == 2
    assert all(Path(path).name.startswith(piece.operation_id) for path in paths)


def test_a_piece_is_written_to_s3(s3_server: S3, make_settings: MakeSettings) -> None:
    with Lake(s3_settings(make_settings, s3_server)) as lake:
        feed = Feed.of(lake, "t", {"id": "long", "at": "timestamptz"}, partition_by=["day(at)"])
        at = [1_700_000_000_000_000 + n * 86_400_000_000 for n in range(3)]
        feed.produce(
            pa.table({"id": [0, 1, 2], "at": pa.array(at).cast(pa.timestamp("us", "UTC"))})
        )
        piece = msgspec.msgpack.decode(msgspec.msgpack.encode(feed.piece()), type=Piece)
        done = work(piece)
        assert len(files_of(done)) == 3
        assert all(file.file_path.startswith("s3://") for file in files_of(done))
        feed.commit([piece], done)
        assert values(feed.rows(), "id") == [(0,), (1,), (2,)]


def s3_settings(make_settings: MakeSettings, server: S3) -> Settings:
    return make_settings(
        storage__dsn=f"s3://{server.bucket}/{uuid4().hex}",
        storage__endpoint=server.endpoint,
        storage__region=server.region,
        storage__path_style=True,
        storage__access_key_id=server.keys.access_key,
        storage__secret_access_key=server.keys.secret_key,
    )


def test_a_tables_shape_knows_nothing_of_its_past(lake: Lake) -> None:
    feed = Feed.of(lake, "t", {"id": "long"})
    for start in range(3):
        feed.produce([{"id": start}])
        piece = feed.piece(start)
        feed.commit([piece], work(piece))
    shape = feed.piece().table
    assert b"snapshot-id" not in shape.metadata.replace(b"current-snapshot-id", b"")
    again = table_of(shape)
    assert again.schema() == feed.table.schema()
    assert again.location() == feed.table.location()
    assert again.properties == feed.table.properties


def test_threads_end_with_their_piece(lake: Lake) -> None:
    feed = Feed.of(lake, "t", {"id": "long"})
    feed.produce([{"id": 0}])
    work(feed.piece())
    before = threading.active_count()
    work(*[feed.piece() for _ in range(5)], feed.piece(end=9))
    assert threading.active_count() <= before
