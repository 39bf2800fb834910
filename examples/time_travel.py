"""A table as it was: by snapshot, by time, by tag, in SQL, and gone back to.

    python examples/time_travel.py

Everything happens in a temporary directory, which is removed at the end.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from calve import IcebergManager


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="calve-example-") as directory,
        IcebergManager(Path(directory, "warehouse")) as manager,
    ):
        tell(manager)


def tell(manager: IcebergManager) -> None:
    manager.create_table("stock", {"item": "string", "pieces": "int"})
    manager.insert_data("stock", [{"item": "bolt", "pieces": 100}, {"item": "nut", "pieces": 80}])
    manager.create_tag("stock", "opening")
    manager.update_data("stock", {"pieces": 60}, where="item = 'nut'")
    manager.delete_data("stock", "item = 'bolt'")

    first, second, third = manager.list_snapshots("stock")
    for snapshot in (first, second, third):
        print(f"{snapshot.operation}: {len(manager.query_snapshot('stock', snapshot.id))} rows")

    print(manager.query_as_of("stock", second.timestamp))
    print(manager.sql("select sum(pieces) as pieces from stock AT (TAG => 'opening')"))

    plan = manager.plan_scan("stock", first.id, third.id)
    print(f"since then {len(plan.added)} files came and {len(plan.deleted)} went")

    manager.rollback("stock", first.id)
    print(manager.query_table("stock"))
    expiry = manager.expire_snapshots("stock", older_than_days=0)
    print(f"{len(expiry.snapshot_ids)} snapshots forgotten, the tagged one kept")


if __name__ == "__main__":
    main()
