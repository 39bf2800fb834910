"""A committed offset that somebody has edited stops its topic; what the error says to do has it go on, with each row once
and nothing called removed that is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from calve.tables.positions import committed_position, position_property
from tests.conftest import MakeSettings
from tests.fakes import defects
from tests.fakes.pipelines import Site, site
from tests.faults.test_restored_catalogs import (
    AT_ONCE,
    COMMITTED,
    delete_by_hand,
    error_of,
    fill,
    ids,
    roll_back_to_current,
    verified,
)

EDITS = (
    "lowered",
    "raised",
    "another snapshot",
    "raised, of another snapshot",
    "removed",
    "an earlier value",
)


@pytest.fixture
def lake_site(make_settings: MakeSettings) -> Iterator[Site]:
    with site(make_settings(**AT_ONCE)) as made:
        fill(made)
        yield made


def edit(made: Site, how: str) -> None:
    table = made.table("orders")
    position = committed_position(table, 0)
    assert position is not None
    seventh = sorted(table.metadata.snapshots, key=lambda each: each.sequence_number or 0)[6]
    edited = {
        "lowered": replace(position, offset=7),
        "raised": replace(position, offset=15),
        "another snapshot": replace(position, snapshot_id=12345),
        "raised, of another snapshot": replace(position, offset=15, snapshot_id=12345),
        "an earlier value": replace(position, offset=7, snapshot_id=seventh.snapshot_id),
    }
    with table.transaction() as transaction:
        if how == "removed":
            transaction.remove_properties("calve.committed.0")
        else:
            transaction.set_properties(position_property(0, edited[how]))


def require_whole(made: Site, count: int) -> None:
    assert ids(made) == list(range(count))
    found = verified(made)
    assert found.is_sound, found
    report = found.partitions[0]
    assert (report.committed, report.rows, report.removed, report.returned) == (count, count, (), 0)


@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("how", EDITS)
def test_a_topic_with_an_edited_offset_goes_on_when_its_hint_is_followed(
    lake_site: Site, how: str, *, replay: bool
) -> None:
    edit(lake_site, how)
    lake_site.send("orders", [{"id": COMMITTED}])
    assert not lake_site.pipeline().drain(0.5)
    _, hint = error_of(lake_site)
    assert "calve table rollback" in hint
    assert not verified(lake_site).is_sound

    roll_back_to_current(lake_site, replay=replay)
    assert lake_site.pipeline().drain(30), error_of(lake_site)
    require_whole(lake_site, COMMITTED + 1)


@pytest.mark.parametrize("how", EDITS)
def test_rows_that_were_deleted_stay_so_when_an_edited_offset_is_mended(
    lake_site: Site, how: str
) -> None:
    delete_by_hand(lake_site, "id = 8")
    edit(lake_site, how)
    roll_back_to_current(lake_site, replay=False)
    lake_site.send("orders", [{"id": COMMITTED}])
    assert lake_site.pipeline().drain(30), error_of(lake_site)
    assert ids(lake_site) == [each for each in range(COMMITTED + 1) if each != 8]
    found = verified(lake_site)
    assert found.is_sound, found
    assert [(each.first, each.end) for each in found.partitions[0].removed] == [(8, 9)]


def test_a_row_that_is_lost_after_an_offset_was_mended_is_missing(lake_site: Site) -> None:
    edit(lake_site, "lowered")
    roll_back_to_current(lake_site, replay=True)
    table = lake_site.table("orders")
    files = [task.file.file_path for task in table.scan(row_filter="id = 8").plan_files()]
    defects.forget(table, files)
    found = verified(lake_site).partitions[0]
    assert [(each.first, each.end) for each in found.missing] == [(8, 9)]
    assert not found.removed
