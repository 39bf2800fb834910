"""Following a table that no topic feeds: appends snapshot by snapshot, and what else may happen."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from calve.errors import Conflict, InvalidRequest, NotFound
from calve.lake import Lake
from calve.subscriptions import TableFollower
from calve.subscriptions.follower import Since
from tests.conftest import MakeSettings
from tests.fakes.topic_site import compact_table


@pytest.fixture
def lake(make_settings: MakeSettings) -> Iterator[Lake]:
    with Lake(make_settings(reader__poll_interval_ms=5)) as opened:
        opened.tables.create_table("users", {"id": "long", "name": "string"})
        yield opened


def add(lake: Lake, *ids: int) -> int:
    lake.tables.insert_data("users", [{"id": each, "name": f"n{each}"} for each in ids])
    current = lake.tables.get_current_snapshot("users")
    assert current is not None
    return current.id


def ids(follower: TableFollower) -> list[int]:
    """Of all that is there by now."""
    found: list[int] = []
    while (batch := follower.poll(0.05)) is not None:
        found += sorted(batch.to_arrow()["id"].to_pylist())
    return found


def test_appends_come_snapshot_by_snapshot(lake: Lake) -> None:
    with lake.follow("users") as follower:
        assert follower.poll(0) is None
        first = add(lake, 1, 2)
        second = add(lake, 3)
        batches = [follower.poll(1), follower.poll(1)]
        assert [each and (each.snapshot_id, each.is_last) for each in batches] == [
            (first, True), (second, True),
        ]  # fmt: skip
        assert follower.snapshot_id == second
        threading.Timer(0.05, follower.close).start()
        assert list(follower) == []


def test_a_follower_begins_where_it_is_told(lake: Lake) -> None:
    first = add(lake, 1)
    moment = datetime.now(UTC)
    add(lake, 2)
    add(lake, 3)
    places: list[tuple[Since, list[int]]] = [
        (first, [2, 3]),
        ("earliest", [1, 2, 3]),
        (moment, [2, 3]),
        ("latest", []),
    ]
    for start, expected in places:
        with lake.follow("users", start, follow=False) as follower:
            found = [each for batch in follower for each in batch.to_arrow()["id"].to_pylist()]
        assert found == expected
    with pytest.raises(InvalidRequest, match="no place to start from"):
        lake.follow("users", "first")  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="7"):
        lake.follow("users", 7)


def test_filter_and_columns_choose(lake: Lake) -> None:
    add(lake, 1, 2, 3)
    add(lake, 4, 5)
    with lake.follow("users", "earliest", where="id % 2 = 1", columns=["name"]) as follower:
        found = [follower.poll(1), follower.poll(1)]
        assert [each and each.to_arrow().to_pydict() for each in found] == [
            {"name": ["n1", "n3"]}, {"name": ["n5"]},
        ]  # fmt: skip


def test_a_compaction_brings_nothing(lake: Lake) -> None:
    add(lake, 1)
    with lake.follow("users", "earliest") as follower:
        assert ids(follower) == [1]
        add(lake, 2)
        compact_table(lake.catalog.load_table("users"), order="id")
        add(lake, 3)
        assert ids(follower) == [2, 3]


@pytest.mark.parametrize(("policy", "expected"), [("skip", [4]), ("read", [1, 3, 4])])
def test_a_snapshot_that_removed_rows_is_a_matter_of_policy(
    lake: Lake, policy: str, expected: list[int]
) -> None:
    begin = add(lake, 1, 2, 3)
    lake.tables.delete_data("users", "id = 2")
    add(lake, 4)
    with lake.follow("users", begin) as follower:
        for _ in range(2):
            with pytest.raises(Conflict, match="changed or removed rows"):
                follower.poll(1)
    with lake.follow("users", begin, on_overwrite=policy) as follower:  # type: ignore[arg-type]
        assert ids(follower) == expected


def test_who_falls_behind_the_expiry_is_told(lake: Lake) -> None:
    begin = add(lake, 1)
    add(lake, 2)
    with (
        lake.follow("users", begin) as follower,
        lake.follow("users", begin, on_expired="skip") as skipping,
    ):
        lake.tables.expire_snapshots("users", 0, force=True)
        with pytest.raises(Conflict, match="has expired") as caught:
            follower.poll(1)
        assert caught.value.context["snapshot"] == str(begin)
        assert ids(skipping) == []
        add(lake, 3)
        assert ids(skipping) == [3]


def test_a_rollback_is_a_matter_of_policy(lake: Lake) -> None:
    first = add(lake, 1)
    second = add(lake, 2)
    with (
        lake.follow("users", second) as follower,
        lake.follow("users", second, on_overwrite="skip") as skipping,
    ):
        lake.tables.rollback("users", first)
        with pytest.raises(Conflict, match="was rolled back"):
            follower.poll(1)
        assert ids(skipping) == []
        add(lake, 3)
        assert ids(skipping) == [3]


def test_a_table_that_was_made_again_is_another_one(lake: Lake) -> None:
    add(lake, 1)
    with lake.follow("users") as follower:
        lake.tables.drop_table("users", purge=True)
        lake.tables.create_table("users", {"id": "long", "name": "string"})
        with pytest.raises(NotFound, match="another one made"):
            follower.poll(1)
