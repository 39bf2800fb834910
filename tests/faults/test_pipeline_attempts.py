"""The columns change between two attempts at a range, so that a bad row becomes a good one or the
other way round: wherever the first attempt ended, each row is in one of the two tables, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from calve.maintenance.verify import verify_topic
from calve.model import TableName
from calve.pipeline.pipeline import Pipeline
from calve.tables.positions import committed_position
from calve.topics import TopicChange
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import Site, let_side_lane_end, site

FLAGS = {"wal__free_bytes_min": 0, "pipeline__flush_interval_ms": 1, **QUICK_RETRIES}
ENDS = ("prepared", "written", "before commit", "committed", "dead letters committed")
# The driver lives on, with what it has written: the commit was not made, or its answer was lost.
FAILURES = ("not committed", "no answer")
COMMITTED = ("committed", "dead letters committed", "no answer")
FIRST = [{"id": 0, "n": "0"}]
ROWS = [{"id": 1, "n": "one"}, {"id": 2, "n": "two"}, {"id": 3, "n": None}]


@pytest.fixture
def lake_site(make_settings: MakeSettings) -> Iterator[Site]:
    with site(make_settings(**FLAGS)) as made:
        made.create("t", schema={"id": "long", "n": "string"})
        made.send("t", FIRST)
        assert made.pipeline().drain(30)
        yield made


def replaced(made: Site, kind: str) -> None:
    """The column goes, and one of that name and another type comes, as Spark's ALTER TABLE does."""
    arrow = {"int": pa.int32(), "string": pa.string()}[kind]
    with made.table("t").update_schema() as update:
        update.delete_column("n")
    with made.table("t").update_schema() as update:
        update.union_by_name(pa.schema([pa.field("n", arrow)]))


def numbers_only(made: Site) -> None:
    replaced(made, "int")


def any_text(made: Site) -> None:
    replaced(made, "string")


def required(made: Site) -> None:
    with made.table("t").update_schema(allow_incompatible_changes=True) as update:
        update.update_column("n", required=True)


def optional(made: Site) -> None:
    with made.table("t").update_schema() as update:
        update.update_column("n", required=False)


def without_the_column(made: Site) -> None:
    made.intake.alter_topic(TableName.parse("t"), TopicChange(drop_columns=["n"]))


Change = Callable[[Site], None]
# What holds at the first attempt and at the second, and the offsets that each sets aside.
CHANGES: dict[str, tuple[Change, Change, list[int], list[int]]] = {
    "the table comes to take text": (numbers_only, any_text, [1, 2], []),
    "the table comes to take numbers only": (any_text, numbers_only, [], [1, 2]),
    "the table requires it no more": (required, optional, [3], []),
    "the table comes to require it": (optional, required, [], [3]),
    "the topic drops it": (numbers_only, without_the_column, [1, 2], []),
}


def fails(made: Site, point: str) -> Pipeline:
    """A pipeline whose first attempt has failed; one that goes on."""
    if point in ENDS:
        made.run_until_crash(point)
        return made.pipeline()
    pipeline = made.pipeline()
    with failing(made, is_applied=point == "no answer") as gone:
        while not gone:
            pipeline.run_cycle()
        let_side_lane_end()
    return pipeline


@contextmanager
def failing(made: Site, *, is_applied: bool) -> Iterator[list[bool]]:
    """The catalog is gone from the first commit on, which it has made or not."""
    iceberg = made.catalog.iceberg
    commits, loads = iceberg.commit_table, iceberg.load_table
    gone: list[bool] = []

    def commit(*given: Any) -> Any:
        if is_applied and not gone:
            commits(*given)
        gone.append(True)
        raise ConnectionError("the network is gone")

    def load(*given: Any) -> Any:
        if gone:
            raise ConnectionError("the network is gone")
        return loads(*given)

    with patch.multiple(iceberg, commit_table=commit, load_table=load):
        yield gone


@pytest.mark.parametrize("point", [*ENDS, *FAILURES])
@pytest.mark.parametrize("change", CHANGES)
def test_a_row_is_in_one_of_the_two_tables_whichever_attempt_it_came_with(
    lake_site: Site, change: str, point: str
) -> None:
    before, after, aside_before, aside_after = CHANGES[change]
    before(lake_site)
    lake_site.send("t", pa.RecordBatch.from_pylist(ROWS))
    pipeline = fails(lake_site, point)
    position = committed_position(lake_site.table("t"), 0)
    assert position is not None
    was_in = position.offset == 4
    assert was_in == (point in COMMITTED)
    after(lake_site)
    assert pipeline.drain(30)
    lake_site.require_each_once("t", 4)
    aside = aside_before if was_in else aside_after
    assert lake_site.offsets("t") == [each for each in range(4) if each not in aside]
    found = verify_topic(lake_site.catalog, "t", own_log=lake_site.settings.wal.path)
    assert found.is_sound, found
    assert (found.rows, found.dead_letters) == (4 - len(aside), len(aside))
