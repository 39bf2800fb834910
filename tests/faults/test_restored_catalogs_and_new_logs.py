"""A topic that was given a new log, and whose catalog is then restored from before that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from calve.errors import Conflict
from calve.ingest import Intake
from calve.maintenance.verify import verify_topic
from calve.manager import IcebergManager
from calve.pipeline.pipeline import Pipeline
from calve.settings import Settings
from tests.conftest import MakeSettings
from tests.fakes.pipelines import Site, site
from tests.faults.test_restored_catalogs import AT_ONCE, ORDERS, ids, restore

OLD = 3  # rows of the log that was lost
ALL = 5


class Renewed:
    """The first log has the rows before offset 3, the second those up to 5."""

    def __init__(self, made: Site, settings: Settings) -> None:
        self.made = made
        self.settings = settings
        self._copies: dict[int, str] = {}
        for number in range(OLD):
            made.send("orders", [{"id": number}])
            assert made.pipeline().drain(30)
            self._copies[number + 1] = made.table("orders").metadata_location
        made.intake.close()

    def fill(self, intake: Intake) -> None:
        assert intake.adopt_new_log(ORDERS) == OLD
        for number in range(OLD, ALL):
            self.send(intake, number)
            assert self.pipeline().drain(30)

    def send(self, intake: Intake, number: int) -> None:
        intake.submit(ORDERS, pa.record_batch({"id": [number]})).wait()

    def pipeline(self) -> Pipeline:
        return self.made.pipeline(settings=self.settings)

    def restore(self, committed: int) -> None:
        restore(self.made, self._copies[committed])
        assert not self.pipeline().drain(0.5)

    def roll_back_to_current(self, *, replay: bool) -> None:
        with IcebergManager(self.settings) as manager:
            current = manager.get_current_snapshot("orders")
            assert current is not None
            manager.rollback("orders", current.id, replay=replay)

    def require_sound(self, removed: list[tuple[int, int]]) -> None:
        found = verify_topic(
            self.made.catalog, ORDERS, own_log=self.settings.wal.path, settings=self.settings
        )
        assert found.is_sound, found
        ranges = found.partitions[0].removed
        assert [(each.first, each.end) for each in ranges] == removed


@pytest.fixture
def renewed(make_settings: MakeSettings, tmp_path: Path) -> Iterator[Renewed]:
    other = make_settings(**AT_ONCE, wal__path=str(tmp_path / "other"))
    with site(make_settings(**AT_ONCE)) as made:
        yield Renewed(made, other)


@pytest.mark.parametrize("copied", [2, 3])
def test_what_the_copy_lacks_is_recorded_as_removed(renewed: Renewed, copied: int) -> None:
    with Intake(renewed.settings) as intake:
        renewed.fill(intake)
        renewed.restore(copied)
        renewed.roll_back_to_current(replay=False)
        renewed.send(intake, ALL)
        assert renewed.pipeline().drain(30)
    assert ids(renewed.made) == [*range(copied), ALL]
    renewed.require_sound([(copied, ALL)])


def test_the_rows_of_the_new_log_come_again(renewed: Renewed) -> None:
    with Intake(renewed.settings) as intake:
        renewed.fill(intake)
        renewed.restore(OLD)
        renewed.roll_back_to_current(replay=True)
        renewed.send(intake, ALL)
        assert renewed.pipeline().drain(30)
    assert ids(renewed.made) == [*range(ALL + 1)]
    renewed.require_sound([])


def test_rows_that_only_the_lost_log_had_cannot_come_again(renewed: Renewed) -> None:
    with Intake(renewed.settings) as intake:
        renewed.fill(intake)
        renewed.restore(OLD - 1)
        with pytest.raises(Conflict, match=r"rows 2 to 3 .* no longer in the log") as refused:
            renewed.roll_back_to_current(replay=True)
    assert "without --replay" in str(refused.value.hint)
