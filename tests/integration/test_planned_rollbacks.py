"""A rollback that is only planned: it changes nothing, and says what the real one then does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from calve.audit.trail import records
from calve.cli import main
from calve.errors import CalveError
from calve.lake import Lake
from calve.manager import IcebergManager
from calve.model import TableName
from calve.paths import DataLayout
from calve.tables import snapshots
from calve.tables.catalog import LakeCatalog
from calve.tables.positions import committed_positions
from calve.tables.ranges import Range
from calve.tables.removals import Removals
from calve.tables.rollback_plan import PartitionPlan, RollbackPlan
from calve.wal import Rejected
from tests.conftest import QUICK_RETRIES, MakeSettings
from tests.fakes.pipelines import Site, site

AT_ONCE = {"wal__free_bytes_min": 0, "pipeline__flush_interval_ms": 1, **QUICK_RETRIES}
SMALL_SEGMENTS = {"wal__hot_window_seconds": 0, "wal__segment_bytes_max": 65536}
LARGE = "x" * 20_000


@pytest.fixture
def lake_site(make_settings: MakeSettings) -> Iterator[Site]:
    with site(make_settings(**AT_ONCE)) as made:
        yield made


@pytest.fixture
def manager(lake_site: Site) -> Iterator[IcebergManager]:
    with IcebergManager(lake_site.settings) as manager:
        yield manager


def fill(made: Site, *counts: int, topic: str = "orders") -> list[int]:
    """So many rows in each of some commits; their snapshots."""
    for count in counts:
        made.send(topic, [{"id": number, "text": LARGE} for number in range(count)])
        assert made.pipeline().drain(30)
    return snapshot_ids(made.catalog, topic)


def snapshot_ids(catalog: LakeCatalog, name: str) -> list[int]:
    return [each.snapshot_id for each in catalog.load_table(name).metadata.snapshots]


def left_by(made: Site, name: str = "orders") -> dict[str, Any]:
    """All that a rollback could have changed."""
    topic = made.intake.topics.topic(TableName.parse("orders"))
    return {
        "table": made.table(name).metadata_location,
        "files": made.data_files(name),
        "audit": [record.action for record in records(DataLayout(made.settings.data).audit)],
        "committed": made.state.committed(topic.id, 0),
        "resets": dict(made.state.pipeline_orders().resets),
    }


def planned(made: Site, manager: IcebergManager, snapshot_id: int, **how: Any) -> RollbackPlan:
    """The plan, of which nothing must be seen afterwards."""
    before = left_by(made)
    plan = manager.plan_rollback("orders", snapshot_id, **how)
    assert left_by(made) == before
    return plan


def require_as_told(made: Site, plan: RollbackPlan, *, removed_before: str = "") -> None:
    """The table is now what the plan said of it."""
    table = made.table("orders")
    current = table.current_snapshot()
    assert current is not None
    assert current.summary is not None
    assert plan.to_snapshot_id in {current.parent_snapshot_id, current.snapshot_id}
    assert current.summary["total-records"] == str(plan.rows_after)
    assert len(made.rows("orders")) == plan.rows_after
    offsets = {key: found.offset for key, found in committed_positions(table).items()}
    assert offsets == {each.partition: each.committed_after for each in plan.partitions}
    recorded = Removals.parse(current.summary.additional_properties)
    assert [recorded.ranges(each.partition).ranges for each in plan.partitions] == [
        each.removed for each in plan.partitions
    ]
    if not removed_before:
        assert Removals.parse(table.properties) == recorded


def test_a_table_without_a_topic(lake: Lake) -> None:
    tables = lake.tables
    tables.create_table("users", {"id": "long"})
    for number in range(3):
        tables.insert_data("users", [{"id": number}])
    first, _, third = snapshot_ids(lake.catalog, "users")
    before = lake.catalog.load_table("users").metadata_location
    plan = tables.plan_rollback("users", first)
    assert plan == RollbackPlan(third, first, rows_before=3, rows_after=1, has_effect=True)
    assert not tables.plan_rollback("users", third).has_effect
    assert lake.catalog.load_table("users").metadata_location == before
    assert (tables.rollback("users", first).total_rows, len(tables.query_table("users"))) == (1, 1)
    assert tables.plan_rollback("users", third, force=True) == RollbackPlan(
        first, third, rows_before=1, rows_after=3, has_effect=True
    )


def test_rows_of_a_topic_would_be_recorded_as_removed(
    lake_site: Site, manager: IcebergManager
) -> None:
    first, *_, last = fill(lake_site, 2, 3, 1)
    plan = planned(lake_site, manager, first)
    assert plan == RollbackPlan(
        last,
        first,
        rows_before=6,
        rows_after=2,
        has_effect=True,
        topic="orders",
        partitions=(PartitionPlan(0, 6, 6, removed=(Range(2, 6, 4),), replayed=None),),
    )
    manager.rollback("orders", first)
    require_as_told(lake_site, plan)
    current = snapshot_ids(lake_site.catalog, "orders")[-1]
    again = planned(lake_site, manager, current)
    assert (again.has_effect, again.partitions[0].removed) == (False, ())


def test_rows_that_were_removed_before_are_not_told_again(
    lake_site: Site, manager: IcebergManager
) -> None:
    first, *_ = fill(lake_site, 2, 4)
    manager.delete_data("orders", "_calve_offset IN (0, 3)", flush=False)
    plan = planned(lake_site, manager, first)
    assert plan.partitions[0].removed == (Range(2, 3, 1), Range(4, 6, 2))
    manager.rollback("orders", first)
    require_as_told(lake_site, plan, removed_before="0-1,3-4")
    assert str(Removals.parse(lake_site.table("orders").properties).ranges(0)) == "2-6"


def test_the_log_would_be_replayed(lake_site: Site, manager: IcebergManager) -> None:
    first, *_ = fill(lake_site, 2, 3, 1)
    plan = planned(lake_site, manager, first, replay=True)
    assert (plan.rows_before, plan.rows_after, plan.has_effect) == (6, 2, True)
    assert plan.partitions == (PartitionPlan(0, 6, 2, removed=(), replayed=Range(2, 6, 4)),)
    manager.rollback("orders", first, replay=True)
    require_as_told(lake_site, plan)
    assert lake_site.pipeline().drain(30)
    lake_site.require_each_once("orders", 6)


def set_back(made: Site) -> None:
    """By somebody who knows nothing of Calve's properties."""
    table = made.table("orders")
    first = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().set_current_snapshot(snapshot_id=first).commit()


def restore(made: Site) -> None:
    """The catalog from an older copy: that there was more, only the state knows."""
    table = made.table("orders")
    first = table.metadata.snapshots[0].timestamp_ms
    old = [each for each in table.metadata.metadata_log if each.timestamp_ms <= first]
    made.catalog.iceberg.drop_table(table.name())
    made.catalog.iceberg.register_table(table.name(), old[-1].metadata_file)


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("happened", [set_back, restore])
def test_a_table_that_lacks_rows_would_be_accepted(
    lake_site: Site, manager: IcebergManager, happened: Callable[[Site], None], *, replay: bool
) -> None:
    """The snapshot stays, and what the table lacks is told all the same."""
    first, *_ = fill(lake_site, 2, 3)
    happened(lake_site)
    plan = planned(lake_site, manager, first, replay=replay)
    assert (plan.from_snapshot_id, plan.to_snapshot_id, plan.has_effect) == (first, first, True)
    (partition,) = plan.partitions
    lacking = Range(2, 5, 3)
    assert (partition.removed, partition.replayed) == (
        ((), lacking) if replay else ((lacking,), None)
    )
    manager.rollback("orders", first, replay=replay)
    require_as_told(lake_site, plan)
    assert lake_site.pipeline().drain(30)
    assert lake_site.offsets("orders") == list(range(5 if replay else 2))


def refusal(work: Callable[..., object], *given: Any, **how: Any) -> CalveError:
    with pytest.raises(CalveError) as caught:
        work(*given, **how)
    return caught.value


def require_same_refusal(
    made: Site, manager: IcebergManager, words: str, *given: Any, **how: Any
) -> None:
    """The plan is refused in the words of the real one, and leaves nothing behind."""
    before = left_by(made)
    planned = refusal(manager.plan_rollback, *given, **how)
    assert left_by(made) == before
    real = refusal(manager.rollback, *given, **how)
    assert words in planned.message
    assert (type(planned), planned.message, planned.hint, planned.context) == (
        type(real),
        real.message,
        real.hint,
        real.context,
    )


def test_what_would_be_refused_is_refused(lake_site: Site, manager: IcebergManager) -> None:
    first, second = fill(lake_site, 2, 3)
    manager.create_table("plain", {"id": "long"})
    manager.insert_data("plain", [{"id": 1}])
    manager.insert_data("plain", [{"id": 2}])
    early, late = snapshot_ids(lake_site.catalog, "plain")
    manager.rollback("plain", early)
    require = require_same_refusal
    require(lake_site, manager, "no table", "nothing", first)
    require(lake_site, manager, "no snapshot 5", "plain", 5)
    require(lake_site, manager, "not an ancestor", "plain", late)
    require(lake_site, manager, "nothing to replay", "plain", early, replay=True)
    require(lake_site, manager, "no snapshot 5", "orders", 5)
    require(lake_site, manager, "no snapshot 5", "orders", 5, force=True, replay=True)
    elsewhere = lake_site.settings.data / "nowhere"
    require(lake_site, manager, "log", "orders", first, replay=True, log=elsewhere)
    manager.rollback("orders", first)
    require(lake_site, manager, "not an ancestor", "orders", second)


def test_rows_that_the_log_has_let_go_of_are_told(make_settings: MakeSettings) -> None:
    with (
        site(make_settings(**AT_ONCE, **SMALL_SEGMENTS)) as made,
        IcebergManager(made.settings) as manager,
    ):
        first, *_ = fill(made, *[1] * 10)
        made.intake.trim()
        require_same_refusal(made, manager, "no longer in the log", "orders", first, replay=True)


def test_rows_among_the_dead_letters_are_told(lake_site: Site, manager: IcebergManager) -> None:
    first, *_ = fill(lake_site, 2)
    bad = [Rejected(b"{", "application/x-ndjson", "no row")]
    lake_site.intake.submit(TableName.parse("orders"), bad).wait()
    assert lake_site.pipeline().drain(30)
    words = "among the dead letters"
    require_same_refusal(lake_site, manager, words, "orders", first, replay=True)
    letters, *_ = snapshot_ids(lake_site.catalog, "orders__dead_letters")
    words = "do not come from the log again"
    name = "orders__dead_letters"
    require_same_refusal(lake_site, manager, words, name, letters, replay=True)


@pytest.fixture
def shell(
    lake_site: Site, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    def run(*words: str, program: Callable[[], None] = main.calve) -> tuple[int, str, str]:
        data = ("--data", str(lake_site.settings.data), "--set", "wal.free_bytes_min=0")
        monkeypatch.setattr("sys.argv", ["calve", *words, *data])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            program()
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_the_command_tells_the_same(
    lake_site: Site, shell: Callable[..., tuple[int, str, str]]
) -> None:
    first, _, last = fill(lake_site, 2, 3, 1)
    before = left_by(lake_site)
    given = ("rollback", "orders", "--snapshot", str(first), "--dry-run")
    code, out, err = shell("table", *given)
    assert code == 0
    assert out.splitlines()[1].split() == ["0", "2-6", "4", "recorded", "as", "removed"]
    told = f"orders would go from snapshot {last} with 6 rows to snapshot {first} with 2 rows"
    assert told in err
    code, out, _ = shell(*given, "--replay", program=main.iceberg_manager)
    assert (code, out.splitlines()[1].split(maxsplit=3)[3]) == (0, "taken from the log again")
    code, out, _ = shell("table", *given, "--replay", "--yes", "--json")
    assert json.loads(out) == {
        "from_snapshot_id": last,
        "to_snapshot_id": first,
        "rows_before": 6,
        "rows_after": 2,
        "has_effect": True,
        "topic": "orders",
        "partitions": [
            {
                "partition": 0,
                "committed": 6,
                "committed_after": 2,
                "removed": [],
                "replayed": {"first": 2, "end": 6, "count": 4},
            }
        ],
        "is_dry_run": True,
    }
    _, out, err = shell("table", "rollback", "orders", "--snapshot", str(last), "--dry-run")
    assert (out, f"nothing would change: orders is at snapshot {last}" in err) == ("", True)
    assert shell("table", "rollback", "orders", "--snapshot", "5", "--dry-run")[0] == 4
    assert left_by(lake_site) == before
    assert shell("table", *given[:-1], "--yes")[0] == 0
    assert len(lake_site.rows("orders")) == 2


def test_rows_that_come_back_to_a_table_which_somebody_set_back_are_not_said_to_go(
    lake_site: Site, manager: IcebergManager
) -> None:
    first, second = fill(lake_site, 2, 3)
    snapshots.rollback(lake_site.table("orders"), first)
    plan = planned(lake_site, manager, second, force=True)
    assert plan.partitions == (PartitionPlan(0, 5, 5, (), None),)
    manager.rollback("orders", second, force=True)
    require_as_told(lake_site, plan)
    assert manager.verify_topic("orders").is_sound
