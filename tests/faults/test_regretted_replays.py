"""A rollback with --replay that somebody takes back, before its rows have come again or after some of them have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from calve.errors import Conflict
from calve.manager import IcebergManager
from tests.conftest import MakeSettings
from tests.fakes.pipelines import Site, site
from tests.faults.test_restored_catalogs import (
    AT_ONCE,
    COMMITTED,
    COPIED,
    ORDERS,
    delete_by_hand,
    fill,
    ids,
    verified,
)


@pytest.fixture
def lake_site(make_settings: MakeSettings) -> Iterator[Site]:
    with site(make_settings(**AT_ONCE)) as made:
        fill(made)
        yield made


def replay(made: Site) -> int:
    """Have the rows from offset 6 on come again; the snapshot that had them."""
    table = made.table("orders")
    newest = table.metadata.current_snapshot_id
    assert newest is not None
    sixth = sorted(table.metadata.snapshots, key=lambda each: each.sequence_number or 0)[COPIED - 1]
    with IcebergManager(made.settings) as manager:
        manager.rollback("orders", sixth.snapshot_id, replay=True, log=made.intake.log.directory)
    assert ids(made) == list(range(COPIED))
    return newest


def take_back(made: Site, snapshot_id: int, *, again: bool) -> None:
    log = made.intake.log.directory if again else None
    with IcebergManager(made.settings) as manager:
        how: dict[str, Any] = {"force": True, "replay": again, "log": log}
        plan = manager.plan_rollback("orders", snapshot_id, **how)
        manager.rollback("orders", snapshot_id, **how)
    assert [each.committed_after for each in plan.partitions] == [
        each.committed for each in verified(made).partitions
    ]


@pytest.mark.parametrize("again", [False, True], ids=["", "with --replay"])
@pytest.mark.parametrize("brought", [False, True], ids=["before any row came", "after all came"])
def test_each_row_is_there_once(lake_site: Site, *, brought: bool, again: bool) -> None:
    newest = replay(lake_site)
    if brought:
        assert lake_site.pipeline().drain(30)
    take_back(lake_site, newest, again=again)
    lake_site.send("orders", [{"id": COMMITTED}])
    assert lake_site.pipeline().drain(30)
    assert ids(lake_site) == list(range(COMMITTED + 1))
    found = verified(lake_site)
    assert found.is_sound, found
    assert not found.partitions[0].removed


def test_a_pipeline_that_has_the_rows_written_already_does_not_commit_them(lake_site: Site) -> None:
    working = lake_site.pipeline()
    assert working.drain(30)
    newest = replay(lake_site)
    take_back(lake_site, newest, again=False)
    lake_site.send("orders", [{"id": COMMITTED}])
    assert working.drain(30)
    assert ids(lake_site) == list(range(COMMITTED + 1))
    assert verified(lake_site).is_sound


def test_what_was_deleted_before_the_replay_is_deleted_again(lake_site: Site) -> None:
    delete_by_hand(lake_site, "id = 8")
    take_back(lake_site, replay(lake_site), again=False)
    assert lake_site.pipeline().drain(30)
    assert ids(lake_site) == [each for each in range(COMMITTED) if each != 8]
    found = verified(lake_site)
    assert found.is_sound, found
    assert [(each.first, each.end) for each in found.partitions[0].removed] == [(8, 9)]


def test_rows_that_were_set_aside_since_do_not_come_back(lake_site: Site) -> None:
    """They would be in both tables."""
    newest = replay(lake_site)
    lake_site.state.request_skip(lake_site.intake.topics.topic(ORDERS).id, 0, COPIED + 2)
    assert lake_site.pipeline().drain(30)
    with pytest.raises(Conflict, match="are dead letters by now: 2 from offset 6 on") as refused:
        take_back(lake_site, newest, again=False)
    assert "dead-letter discard" in str(refused.value.hint)
    with IcebergManager(lake_site.settings) as manager:
        manager.delete_data("orders__dead_letters", "true")
    take_back(lake_site, newest, again=False)
    assert ids(lake_site) == list(range(COMMITTED))
    assert verified(lake_site).is_sound
