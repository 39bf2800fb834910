"""Expiry leaves what a live follower has yet to read, says so, and nothing longer than that."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from calve.errors import Conflict, InvalidRequest, NotFound
from calve.lake import Lake
from calve.model import TableName
from calve.state import open_state
from calve.subscriptions import holds
from tests.commands import Run, run_command
from tests.conftest import MakeSettings
from tests.integration.test_table_follower import add, ids

USERS = TableName.parse("users")


@pytest.fixture
def lake(make_settings: MakeSettings) -> Iterator[Lake]:
    with Lake(make_settings(reader__poll_interval_ms=5)) as opened:
        opened.tables.create_table("users", {"id": "long", "name": "string"})
        yield opened


def expire(lake: Lake, **options: bool) -> tuple[list[int], dict[str, list[int]]]:
    """What goes, and what is kept for whom."""
    done = lake.tables.expire_snapshots("users", 0, **options)
    return list(done.snapshot_ids), {each.follower: list(each.snapshot_ids) for each in done.kept}


def snapshots(lake: Lake) -> list[int]:
    return [each.id for each in lake.tables.list_snapshots("users")]


def test_expiry_leaves_what_a_live_follower_has_yet_to_read(lake: Lake) -> None:
    first, second, third, last = (add(lake, number) for number in range(4))
    with lake.follow("users", second, name="audit") as follower:
        expected = ([first], {"audit": sorted([second, third])})
        assert expire(lake, dry_run=True) == expected
        assert snapshots(lake) == [first, second, third, last]
        assert expire(lake) == expected
        assert snapshots(lake) == [second, third, last]
        assert ids(follower) == [2, 3]
        assert expire(lake) == (sorted([second, third]), {})
        add(lake, 4)
        assert ids(follower) == [4]


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_follower_without_a_name_holds_until_it_is_closed(lake: Lake, start: str) -> None:
    """From before the first snapshot on, too."""
    if start == "latest":
        add(lake, 0)
    with lake.follow("users", start) as follower:  # type: ignore[arg-type]
        add(lake, 1)
        add(lake, 2)
        gone, kept = expire(lake)
        assert gone == []
        assert [len(each) for each in kept.values()] == [1 if start == "earliest" else 2]
        assert ids(follower) == [1, 2]
        add(lake, 3)
    gone, kept = expire(lake)
    assert kept == {}
    assert len(snapshots(lake)) == 1
    state = open_state(lake.settings)
    assert state.followers(USERS) == []
    state.close()


def test_a_rollback_is_told_though_snapshots_expire(lake: Lake) -> None:
    first, second = add(lake, 1), add(lake, 2)
    with lake.follow("users", second) as follower:
        lake.tables.rollback("users", first)
        gone, kept = expire(lake)
        assert (gone, list(kept.values())) == ([], [[second]])
        with pytest.raises(Conflict, match="was rolled back"):
            follower.poll(1)


def test_a_time_that_is_over_holds_nothing_and_the_follower_is_told(lake: Lake) -> None:
    begin = add(lake, 1)
    add(lake, 2)
    with lake.follow("users", begin, lease_seconds=0.1) as follower:
        time.sleep(0.15)
        assert expire(lake) == ([begin], {})
        with pytest.raises(Conflict, match="has expired"):
            follower.poll(1)


def test_waiting_for_rows_renews_the_hold(lake: Lake) -> None:
    begin = add(lake, 1)
    with lake.follow("users", lease_seconds=0.4) as follower:
        assert follower.poll(0.8) is None
        add(lake, 2)
        gone, kept = expire(lake)
        assert (gone, list(kept.values())) == ([], [[begin]])
        assert ids(follower) == [2]


def test_force_leaves_nothing(lake: Lake) -> None:
    begin = add(lake, 1)
    add(lake, 2)
    with lake.follow("users", begin) as follower:
        assert expire(lake, force=True) == ([begin], {})
        with pytest.raises(Conflict, match="has expired"):
            follower.poll(1)


def test_a_follower_with_a_name_goes_on_where_it_was(lake: Lake) -> None:
    """What was handed out last and nobody asked past comes again."""
    add(lake, 1)
    second, third = add(lake, 2), add(lake, 3)
    with lake.follow("users", "earliest", name="audit") as follower:
        found = [follower.poll(1), follower.poll(1), follower.poll(1)]
        assert [each and each.to_arrow()["id"].to_pylist() for each in found] == [[1], [2], [3]]
    assert expire(lake)[1] == {"audit": [second]}  # also while it is away
    with lake.follow("users", "earliest", name="audit", follow=False) as follower:
        assert follower.snapshot_id == second
        assert ids(follower) == [3]
        assert follower.is_done
    with lake.follow("users", "earliest", name="audit") as follower:
        assert follower.snapshot_id == third
    lake.unfollow("users", "audit")
    with lake.follow("users", "earliest", name="audit") as follower:
        assert follower.snapshot_id is None


def test_mistakes_are_named(lake: Lake) -> None:
    for options in ({"lease_seconds": 0}, {"name": "a", "lease_seconds": None}, {"name": "a/b"}):
        with pytest.raises(InvalidRequest):
            lake.follow("users", **options)
    with pytest.raises(NotFound, match="no follower"):
        lake.unfollow("users", "audit")


def test_who_begins_during_an_expiry_sees_what_it_leaves(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The expiry has looked who follows, and takes the snapshot away that one is to begin at."""
    begin = add(lake, 1)
    looked, go_on = threading.Event(), threading.Event()
    live = holds._ExpiryHolds._live

    def look_and_wait(self: holds._ExpiryHolds, state: object) -> list[object]:
        found = live(self, state)  # type: ignore[arg-type]
        looked.set()
        assert go_on.wait(10)
        return found  # type: ignore[return-value]

    monkeypatch.setattr(holds._ExpiryHolds, "_live", look_and_wait)
    with ThreadPoolExecutor(3) as pool:
        last = add(lake, 2)
        expiring = pool.submit(expire, lake)
        assert looked.wait(10)
        beginning = pool.submit(lake.follow, "users", datetime.now(UTC) - timedelta(days=1))
        by_id = pool.submit(lake.follow, "users", begin)
        time.sleep(0.1)
        assert not beginning.done()
        go_on.set()
        assert expiring.result() == ([begin], {})
        with beginning.result() as follower:
            assert sorted(ids(follower)) == [1, 2]
            assert follower.snapshot_id == last
        with pytest.raises(NotFound, match=str(begin)):
            by_id.result()


def test_followers_come_and_go_while_snapshots_expire(lake: Lake) -> None:
    add(lake, 0)
    is_over = threading.Event()

    def expire_always() -> int:
        count = 0
        while not is_over.is_set():
            count += len(expire(lake)[0])
        return count

    def follow_some() -> int:
        rounds = 0
        while not is_over.is_set():
            with lake.follow("users", lease_seconds=30) as follower:
                found: list[int] = []
                while len(found) < 3 and not is_over.is_set():
                    batch = follower.poll(0.01)
                    found += batch.to_arrow()["id"].to_pylist() if batch is not None else []
                assert found == list(range(found[0], found[0] + len(found))) if found else True
                rounds += 1
        return rounds

    with ThreadPoolExecutor(3) as pool:
        work = [pool.submit(expire_always), pool.submit(follow_some), pool.submit(follow_some)]
        try:
            for number in range(1, 25):
                add(lake, number)
        finally:
            is_over.set()
        expired, *rounds = (each.result() for each in work)
    assert all(rounds)
    # How much went while they were there is chance; nobody is left to keep anything.
    assert expired + len(expire(lake)[0]) == 24
    assert len(snapshots(lake)) == 1


def test_the_command_says_what_it_keeps(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = add(lake, 1)
    add(lake, 2)
    line = f"calve table expire-snapshots users --days 0 --data {lake.settings.data}".split()

    def run(*more: str) -> Run:
        return run_command([*line, *more], monkeypatch, capsys)

    with lake.follow("users", begin, name="audit"):
        assert "1 snapshot kept for follower audit until 20" in run("--dry-run").err
        kept = run("--json").json()["kept"]
        assert [(each["follower"], each["snapshot_ids"]) for each in kept] == [("audit", [begin])]
        said = run("--force").err
    assert "1 snapshot forgotten" in said
    assert "kept" not in said
