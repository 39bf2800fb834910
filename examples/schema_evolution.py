"""Columns added, renamed, widened and dropped while old snapshots stay as they were.

    python examples/schema_evolution.py

Everything happens in a temporary directory, which is removed at the end.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from calve import AddColumn, DropColumn, IcebergManager, RenameColumn, WidenColumn


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="calve-example-") as directory,
        IcebergManager(Path(directory, "warehouse")) as manager,
    ):
        tell(manager)


def tell(manager: IcebergManager) -> None:
    address = "struct<street: string, city: string>"
    manager.create_table("people", {"id": "int", "name": "string", "address": address})
    row = {"id": 1, "name": "Ada", "address": {"street": "St James's Square", "city": "London"}}
    before = manager.insert_data("people", [row])

    manager.evolve_schema(
        "people",
        RenameColumn("name", "full_name"),
        WidenColumn("id", "long"),
        AddColumn("address.country", "string"),
        AddColumn("born", "date", "the day of birth"),
        DropColumn("address.street"),
    )
    manager.alter_partition("people", add=["year(born)"])
    newer = {
        "id": 2**40,
        "full_name": "Grace",
        "born": "1906-12-09",
        "address": {"city": "Arlington"},
    }
    manager.insert_data("people", [newer])

    for column in manager.describe_table("people").columns:
        print(column.name, column.type)
    print(manager.query_table("people"))
    assert before.snapshot_id is not None
    print(manager.query_snapshot("people", before.snapshot_id))


if __name__ == "__main__":
    main()
