"""Pieces of the log become data files in one Spark job, and each tells what became of it."""

from __future__ import annotations

from calve.lake import Lake
from calve.pipeline.job import run_pieces
from tests.fakes.pieces import Feed


def test_pieces_of_several_topics_are_written_in_one_job(spark_lake: Lake) -> None:
    feeds = [Feed.of(spark_lake, f"t{n}", {"id": "long", "name": "string"}) for n in range(3)]
    for feed in feeds:
        feed.produce([{"id": n, "name": f"n{n}"} for n in range(100)])
        feed.produce([{"id": n, "name": None} for n in range(100, 150)])
    pieces = [
        feed.piece(start, start + 75, number=2 * n + start // 75)
        for n, feed in enumerate(feeds)
        for start in (0, 75)
    ]
    done = run_pieces(spark_lake.spark(), pieces, tasks_max=2)
    assert [each.number for each in done] == list(range(6))
    assert [each.rows for each in done] == [75] * 6
    for n, feed in enumerate(feeds):
        feed.commit(pieces[2 * n : 2 * n + 2], done[2 * n : 2 * n + 2])
        rows = feed.rows()
        assert [row["id"] for row in rows] == list(range(150))
        assert [row["_calve_offset"] for row in rows] == list(range(150))
        assert {row["_calve_partition"] for row in rows} == {0}
        assert all(row["_calve_ingested_at"] is not None for row in rows)
