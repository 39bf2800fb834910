"""Columns that somebody drops or renames with another tool than Calve, while rows go on coming."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyiceberg.types import LongType, StringType

from calve.ingest.dead_letters.box import DeadLetters
from calve.manager import IcebergManager
from calve.model import TableName
from calve.tables.column_history import memory_of
from calve.wal import Rejected
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import Site, site
from tests.fakes.topic_site import TopicSite, topic_site

FLAGS = {"wal__free_bytes_min": 0, "pipeline__flush_interval_ms": 1, **QUICK_RETRIES}
STEPS = ["planned", "prepared", "written", "before commit", "committed"]
Change = Callable[[Site], None]


@pytest.fixture
def lake_site(make_settings: MakeSettings) -> Iterator[Site]:
    with site(make_settings(**FLAGS)) as made:
        yield made


@pytest.fixture
def outside(make_settings: MakeSettings) -> Iterator[TopicSite]:
    """A row in the table, and one in the log."""
    with topic_site(make_settings(**FLAGS, wal__hot_window_seconds=0)) as made:
        made.append(1, name="x")
        made.commit()
        made.append(1, name="y")
        yield made


def row(number: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array([number], pa.int32()), "name": [f"n{number}"]})


def drop(made: Site) -> None:
    with made.table("t").update_schema() as update:
        update.delete_column("name")


def rename(made: Site) -> None:
    with made.table("t").update_schema() as update:
        update.rename_column("name", "label")


def widen(made: Site) -> None:
    with made.table("t").update_schema() as update:
        update.update_column("id", LongType())


def rename_twice(made: Site) -> None:
    rename(made)
    with made.table("t").update_schema() as update:
        update.rename_column("label", "title")


def drop_and_add(made: Site) -> None:
    drop(made)
    with made.table("t").update_schema() as update:
        update.add_column("name", StringType())


def committed(made: Site) -> None:
    made.send("t", row(0))
    assert made.pipeline().drain(30)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("change", "columns"),
    [
        (drop, None),
        (rename, "label"),
        (rename_twice, "title"),
        (widen, "name"),
    ],
)
def test_columns_may_change_from_outside_while_rows_are_under_way(
    lake_site: Site, change: Change, columns: str | None, step: str
) -> None:
    committed(lake_site)
    changes = [change]

    def reach(reached: str) -> None:
        if reached == step and changes:
            changes.pop()(lake_site)

    lake_site.send("t", row(1))
    pipeline = lake_site.pipeline(reach=reach)
    assert pipeline.drain(30)
    assert not changes
    lake_site.send("t", row(2))
    assert pipeline.drain(30)
    lake_site.send("t", row(3))
    assert lake_site.pipeline().drain(30), "one that knows nothing of before"
    expected = [{"id": each, **({columns: f"n{each}"} if columns else {})} for each in range(4)]
    assert lake_site.rows("t") == expected
    assert lake_site.catalog.find_table("t__dead_letters") is None


@pytest.mark.parametrize("is_outside", [True, False])
def test_producers_may_use_the_old_name_and_the_new_one_side_by_side(
    lake_site: Site, *, is_outside: bool
) -> None:
    place = pa.struct([("city", pa.string())])
    old = pa.record_batch({"n": pa.array([1], pa.int32()), "p": pa.array([{"city": "a"}], place)})
    lake_site.send("t", old)
    pipeline = lake_site.pipeline()
    assert pipeline.drain(30)
    names = {"n": "m", "p": "q", "q.city": "town"}
    for name, new in names.items():
        if is_outside:
            with lake_site.table("t").update_schema() as update:
                update.rename_column(tuple(name.split(".")), new)
        else:
            with IcebergManager(lake_site.settings) as manager:
                manager.rename_column("t", name, new)
    values = pa.array([{"town": "b", "zip": "1"}])
    lake_site.send("t", pa.record_batch({"m": pa.array([2**40]), "q": values}), old)
    assert pipeline.drain(30)
    first = {"m": 1, "q": {"town": "a", "zip": None}}
    assert lake_site.rows("t") == [first, {"m": 2**40, "q": {"town": "b", "zip": "1"}}, first]


def test_a_column_that_was_dropped_and_added_from_outside_is_used(lake_site: Site) -> None:
    committed(lake_site)
    drop_and_add(lake_site)
    lake_site.send("t", row(1))
    assert lake_site.pipeline().drain(30)
    assert lake_site.rows("t") == [{"id": 0, "name": None}, {"id": 1, "name": "n1"}]


def test_a_column_that_calve_dropped_and_another_added_is_used(lake_site: Site) -> None:
    committed(lake_site)
    with IcebergManager(lake_site.settings) as manager:
        manager.drop_column("t", "name")
    with lake_site.table("t").update_schema() as update:
        update.add_column("name", StringType())
    lake_site.send("t", row(1))
    assert lake_site.pipeline().drain(30)
    assert lake_site.rows("t") == [{"id": 0, "name": None}, {"id": 1, "name": "n1"}]


def test_a_column_dropped_from_outside_comes_back_on_purpose(lake_site: Site) -> None:
    committed(lake_site)
    drop(lake_site)
    lake_site.send("t", row(1))
    assert lake_site.pipeline().drain(30)
    with IcebergManager(lake_site.settings) as manager:
        manager.add_column("t", "name", "string")
    lake_site.send("t", row(2))
    assert lake_site.pipeline().drain(30)
    assert [each["name"] for each in lake_site.rows("t")] == [None, None, "n2"]


def test_fields_of_structs_lists_and_maps_changed_from_outside_do_not_come_back(
    lake_site: Site,
) -> None:
    inner = pa.struct([("a", pa.int64()), ("b", pa.string())])
    schema = pa.schema(
        {"s": inner, "many": pa.list_(inner), "by": pa.map_(pa.string(), inner), "s2": inner}
    )
    value = {"a": 1, "b": "x"}
    content = {"s": value, "many": [value], "by": [("k", value)], "s2": value}
    batch = pa.RecordBatch.from_pylist([content], schema=schema)
    lake_site.send("t", batch)
    pipeline = lake_site.pipeline()
    assert pipeline.drain(30)
    with lake_site.table("t").update_schema() as update:
        for path in ("s", "many.element", "by.value"):
            update.delete_column((*path.split("."), "a"))
            update.rename_column((*path.split("."), "b"), "c")
        update.rename_column("s2", "renamed")
        update.rename_column(("s2", "b"), "c")
    lake_site.send("t", batch)
    assert pipeline.drain(30)
    left = {"c": "x"}
    assert (
        lake_site.rows("t")
        == [{"s": left, "many": [left], "by": [("k", left)], "renamed": {"a": 1, "c": "x"}}] * 2
    )


def test_changes_of_calve_and_of_others_add_up(lake_site: Site) -> None:
    committed(lake_site)
    with IcebergManager(lake_site.settings) as manager:
        manager.rename_column("t", "name", "full_name")
        with lake_site.table("t").update_schema() as update:
            update.rename_column("full_name", "title")
        assert memory_of(lake_site.table("t")).place(("name",)) == ("title",)
        manager.rename_column("t", "title", "label")
        lake_site.send("t", row(1))
        assert lake_site.pipeline().drain(30)
        assert lake_site.rows("t") == [{"id": 0, "label": "n0"}, {"id": 1, "label": "n1"}]
        with lake_site.table("t").update_schema() as update:
            update.delete_column("label")
    for name in ("name", "full_name", "title", "label"):
        assert memory_of(lake_site.table("t")).place((name,)) is None
    lake_site.send("t", row(2))
    assert lake_site.pipeline().drain(30)
    assert lake_site.rows("t") == [{"id": each} for each in range(3)]


def test_what_a_table_had_before_a_topic_fed_it_is_no_concern_of_the_topic(
    lake_site: Site,
) -> None:
    with IcebergManager(lake_site.settings) as manager:
        manager.create_table("t", {"id": "int", "name": "long"})
        manager.drop_column("t", "name")
    lake_site.create("t", bind_table=True)
    lake_site.send("t", row(1))
    assert lake_site.pipeline().drain(30)
    assert lake_site.rows("t") == [{"id": 1, "name": "n1"}]
    drop(lake_site)
    lake_site.send("t", row(2))
    assert lake_site.pipeline().drain(30)
    assert lake_site.rows("t") == [{"id": 1}, {"id": 2}]


def test_a_fresh_query_has_the_columns_that_the_table_has(outside: TopicSite) -> None:
    asked = "SELECT * FROM orders ORDER BY id"
    assert outside.lake.sql(asked).columns == ["id", "name"]
    with outside.table.update_schema() as update:
        update.rename_column("name", "label")
    found = outside.lake.sql(asked).to_arrow().to_pylist()
    assert found == [{"id": 0, "label": "x"}, {"id": 1, "label": "y"}]
    outside.commit()
    assert outside.lake.sql(asked).to_arrow().to_pylist() == found
    outside.append(1, name="z")
    with outside.table.update_schema() as update:
        update.delete_column("label")
    assert outside.lake.sql(asked).to_arrow().to_pylist() == [{"id": each} for each in range(3)]


def test_a_reader_gets_the_columns_that_the_table_has(outside: TopicSite) -> None:
    with outside.table.update_schema() as update:
        update.rename_column("name", "label")
    with outside.read(follow=False) as reader:
        rows = pa.concat_tables([batch.to_arrow() for batch in reader])
    assert "name" not in rows.column_names
    assert rows["label"].to_pylist() == ["x", "y"]


def test_a_fresh_query_notices_a_name_that_was_had_for_a_while(outside: TopicSite) -> None:
    """The schema of now is the one of before, and yet another name belongs to it."""
    outside.append(1, label="z")
    asked = "SELECT * FROM orders ORDER BY id"
    assert outside.lake.sql(asked).columns == ["id", "name", "label"]
    before = outside.table.schema()
    for old, new in (("name", "label"), ("label", "name")):
        with outside.table.update_schema() as update:
            update.rename_column(old, new)
    assert outside.table.schema() == before
    found = outside.lake.sql(asked).to_arrow()
    assert found.column_names == ["id", "name"]
    assert found["name"].to_pylist() == ["x", "y", "z"]


def test_dead_letters_are_replayed_into_the_columns_that_the_table_has(lake_site: Site) -> None:
    committed(lake_site)
    bad = Rejected(b'{"id": 1, "name": "n1"}', "application/x-ndjson", "somehow")
    lake_site.intake.submit(TableName.parse("t"), [[bad]]).wait()
    assert lake_site.pipeline().drain(30)
    rename(lake_site)
    DeadLetters.of(lake_site.intake, TableName.parse("t")).replay(all=True)
    assert lake_site.pipeline().drain(30)
    assert lake_site.rows("t") == [{"id": 0, "label": "n0"}, {"id": 1, "label": "n1"}]
