"""A table made, filled, asked, changed and dropped.

    python examples/basic_operations.py

Everything happens in a temporary directory, which is removed at the end.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from calve import Expression, IcebergManager


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="calve-example-") as directory:
        users_csv = Path(directory, "users.csv")
        users_csv.write_text("id,name,age\n3,Edsger,45\n4,Barbara,50\n", encoding="utf-8")
        with IcebergManager(Path(directory, "warehouse")) as manager:
            tell(manager, users_csv)


def tell(manager: IcebergManager, users_csv: Path) -> None:
    manager.create_table("users", {"id": "long", "name": "string", "age": "int"})

    rows = [{"id": 1, "name": "Ada", "age": 36}, {"id": 2, "name": "Alan", "age": 41}]
    print(manager.insert_data("users", rows))
    print(manager.insert_data("users", users_csv))
    print(manager.query_table("users", where="age > 40", columns=["name", "age"]))

    print(manager.update_data("users", {"age": Expression("age + 1")}, where="name = 'Ada'"))
    newer = [{"id": 2, "name": "Alan", "age": 42}, {"id": 5, "name": "Grace", "age": 46}]
    print(manager.upsert_data("users", newer, keys=["id"]))
    print(manager.delete_data("users", "age >= 46"))
    print(manager.sql("select name, age from users order by id"))

    manager.drop_table("users", purge=True)
    print("tables left:", manager.list_tables())


if __name__ == "__main__":
    main()
