"""Takes any table back to an earlier snapshot: by the rules of its topic, where one feeds it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from calve.tables import snapshots
from calve.tables.feeding import feeding_topic
from calve.tables.rollback_plan import RollbackPlan, plan_rollback
from calve.tables.snapshots import Snapshot

if TYPE_CHECKING:
    from os import PathLike

    from pyiceberg.table import Table

    from calve.changes.rollback import Home, Replay
    from calve.settings import Settings
    from calve.tables.catalog import LakeCatalog


@dataclass(frozen=True, slots=True)
class Rollback:
    """Which table goes back to which snapshot, and how; `log` is that of `replay`."""

    catalog: LakeCatalog
    settings: Settings
    table: str
    snapshot_id: int
    force: bool
    replay: bool
    log: str | PathLike[str] | None

    def apply(self) -> Snapshot:
        """The snapshot that the table is at then."""
        loaded = self.catalog.load_table(self.table)
        if not self._is_fed(loaded):
            return self.catalog.change_table(self.table, self._go_back)
        # A table without a topic need not wait for what only rows need.
        from calve.changes.rollback import roll_back_fed

        made = roll_back_fed(
            loaded,
            self.snapshot_id,
            home=self._home(),
            force=self.force,
            replay=self._replay(),
        )
        return snapshots.snapshot_by_id(self.catalog.load_table(self.table), made)

    def plan(self) -> RollbackPlan:
        """What `apply` would do now; the same errors where it would not."""
        loaded = self.catalog.load_table(self.table)
        if not self._is_fed(loaded):
            return plan_rollback(loaded, self.snapshot_id, force=self.force)
        from calve.changes.rollback import plan_fed

        return plan_fed(
            loaded,
            self.snapshot_id,
            home=self._home(),
            force=self.force,
            replay=self._replay(),
        )

    def _is_fed(self, loaded: Table) -> bool:
        # That there is nothing to replay without a topic is told by what replays.
        return self.replay or feeding_topic(loaded) is not None

    def _go_back(self, loaded: Table) -> Snapshot:
        snapshots.rollback(loaded, self.snapshot_id, force=self.force)
        return snapshots.snapshot_by_id(loaded, self.snapshot_id)

    def _home(self) -> Home:
        from calve.changes.rollback import Home

        return Home(self.catalog, self.settings)

    def _replay(self) -> Replay | None:
        from calve.changes.rollback import Replay

        place = Path(self.log) if self.log else self.settings.wal.path
        return Replay(place, self._home()) if self.replay and place else None
