"""Readers of a topic whose table Spark compacts and deletes from."""

from __future__ import annotations

import time

import pytest

from calve.subscriptions import Batch
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.topic_site import offsets_of, topic_site

FLAGS = {
    "wal__free_bytes_min": 0,
    "wal__hot_window_seconds": 0,
    "pipeline__flush_interval_ms": 1,
    "reader__poll_interval_ms": 20,
    **QUICK_RETRIES,
}
TABLE = "default.default.orders"


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_a_reader_goes_on_through_what_spark_does(
    make_settings: MakeSettings, spark_running: None, mode: str
) -> None:
    with topic_site(make_settings(**FLAGS)) as site:
        for _ in range(3):
            site.append(100)
            site.commit()
            site.trim()
        spark = site.lake.spark()
        spark.sql(f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('write.delete.mode' = '{mode}')")
        with site.read() as reader:
            found = [next(reader)]
            spark.sql(f"DELETE FROM {TABLE} WHERE id % 100 = 50")
            spark.sql(
                f"CALL system.rewrite_data_files(table => '{TABLE}', strategy => 'sort', "
                "sort_order => '_calve_partition, _calve_offset', "
                "options => map('rewrite-all', 'true'))"
            )
            site.lake.tables.expire_snapshots("orders", 0)
            spark.sql(f"DELETE FROM {TABLE} WHERE id >= 290")
            site.append(5)
            time.sleep(0.03)  # what the reader knows of the table is older than it may be
            while reader.positions != {0: 305}:
                found.append(next(reader))
        left = [each for each in range(100, 290) if each % 100 != 50]
        assert offsets_of(found) == {0: [*range(100), *left, *range(300, 305)]}
        assert site.all() == {0: [*range(50), *range(51, 100), *left, *range(300, 305)]}


def test_a_reader_leaves_out_what_deletion_vectors_take_away(
    make_settings: MakeSettings, spark_running: None
) -> None:
    """Spark writes them into tables of format 3, which Calve reads."""
    with topic_site(make_settings(**FLAGS)) as site:
        for _ in range(2):
            site.append(100)
            site.commit()
        spark = site.lake.spark()
        properties = "'format-version' = '3', 'write.delete.mode' = 'merge-on-read'"
        spark.sql(f"ALTER TABLE {TABLE} SET TBLPROPERTIES ({properties})")
        with site.read() as reader, site.subscribe() as subscription:
            first = next(reader)
            spark.sql(f"DELETE FROM {TABLE} WHERE id % 10 = 3")
            puffins = spark.sql(f"SELECT file_format FROM {TABLE}.delete_files").collect()
            assert {row["file_format"] for row in puffins} == {"PUFFIN"}
            site.append(5)
            left = [each for each in range(200) if each % 10 != 3]
            time.sleep(0.03)
            later = []
            while reader.positions != {0: 205}:
                later.append(next(reader))
            expected = [each for each in left if each >= first.next_offset]
            assert offsets_of(later) == {0: [*expected, *range(200, 205)]}
            taken: list[Batch] = []
            while not taken or taken[-1].next_offset != 205:
                taken.append(next(subscription))
            assert offsets_of(taken) == {0: [*left, *range(200, 205)]}
        assert site.all() == {0: [*left, *range(200, 205)]}
