"""Create, insert, insert, query, travel, evolve, insert, and query the old snapshot.

    python examples/eight_steps.py

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
    manager.create_table("users", {"id": "long", "name": "string"})
    first = manager.insert_data("users", [{"id": 1, "name": "Ada"}])
    manager.insert_data("users", [{"id": 2, "name": "Alan"}])
    print(manager.query_table("users", where="id > 1"))

    assert first.snapshot_id is not None
    print(manager.query_snapshot("users", first.snapshot_id))

    manager.add_column("users", "email", "string")
    manager.insert_data("users", [{"id": 3, "name": "Grace", "email": "grace@example.com"}])
    print(manager.query_table("users"))
    print(manager.query_snapshot("users", first.snapshot_id))


if __name__ == "__main__":
    main()
