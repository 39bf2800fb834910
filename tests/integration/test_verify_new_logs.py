"""The auditor knows a log that has taken over from one that was lost, before its first commit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from calve.ingest import Intake
from calve.maintenance.verification import Verification
from calve.maintenance.verify import verify_topic
from calve.model import TableName
from calve.settings import Settings
from calve.tables.commit import TableCommit
from calve.tables.positions import committed_position, position_property
from calve.tables.staging import Edit
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import Site, site

ORDERS = TableName.parse("orders")
AT_ONCE = {"wal__free_bytes_min": 0, "pipeline__flush_interval_ms": 1, **QUICK_RETRIES}


@pytest.fixture
def moved(make_settings: MakeSettings, tmp_path: Path) -> Iterator[tuple[Site, Settings]]:
    """A topic of one committed row, whose log is lost; and the settings with a directory for more."""
    with site(make_settings(**AT_ONCE)) as made:
        made.create("orders", schema={"id": "long"})
        made.send("orders", [{"id": 0}])
        assert made.pipeline().drain(30)
        made.intake.close()
        yield made, make_settings(**AT_ONCE, wal__path=str(tmp_path / "other"))


def audited(made: Site, settings: Settings, *, is_given: bool = False) -> Verification:
    place = settings.wal.path
    if is_given:
        return verify_topic(made.catalog, ORDERS, log=place, settings=settings)
    return verify_topic(made.catalog, ORDERS, own_log=place, settings=settings)


@pytest.mark.parametrize("is_given", [True, False])
def test_a_log_that_takes_over_is_sound_from_the_first_moment_on(
    moved: tuple[Site, Settings], *, is_given: bool
) -> None:
    made, settings = moved
    with Intake(settings) as intake:
        assert intake.adopt_new_log(ORDERS) == 1
        assert audited(made, settings, is_given=is_given).is_sound
        intake.submit(ORDERS, pa.record_batch({"id": [1]})).wait()
        found = audited(made, settings, is_given=is_given)
        assert found.is_sound
        assert (found.partitions[0].committed, found.rows) == (1, 1)
        assert made.pipeline(settings=settings).drain(30)
        found = audited(made, settings, is_given=is_given)
        assert found.is_sound
        assert (found.partitions[0].committed, found.rows) == (2, 2)


def test_a_log_that_does_not_begin_where_that_of_the_table_ends_is_told_of(
    moved: tuple[Site, Settings],
) -> None:
    made, settings = moved
    another = uuid4()
    with Intake(settings) as intake:
        assert intake.adopt_new_log(ORDERS) == 1
        table = made.table("orders")
        position = committed_position(table, 0)
        assert position is not None
        further = position_property(0, replace(position, log=another, offset=2))
        TableCommit(table).attempt(Edit(properties=further))
        state = audited(made, settings).partitions[0].log
    assert state is not None
    (told,) = state.problems
    assert f"{another} was expected" in told
    assert "calve wal inspect" in told
    assert "Log." not in told, "no hint to delete rows in a program"
