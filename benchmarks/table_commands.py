"""How long table commands take, cold and in a warm process, beside bare PyIceberg.

    make bench, or: .venv/bin/python -m benchmarks.table_commands

The claims: creating a table and adding a column take less than a second and at most 1.3 times what
PyIceberg alone takes for it, in a warm process and as a command; `calve table list` at most 1.5
times the import of PyIceberg's SQL catalog; a million rows of a Parquet file are inserted in less
than 10 seconds. Runs are interleaved, and the median is compared, because machines are noisy.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import StringType

from calve import IcebergManager, generate_test_data, write_parquet_batch

ROUNDS = 15
ROWS = 1_000_000
CALVE = str(Path(sys.executable).with_name("calve"))
COLUMNS = {"id": "long", "name": "string", "age": "int", "at": "timestamptz"}
ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("age", pa.int32()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
SCHEMA = """{"columns": [
  {"name": "id", "type": "long"}, {"name": "name", "type": "string"},
  {"name": "age", "type": "int"}, {"name": "at", "type": "timestamptz"}]}"""
OPEN = """
import sys
from pyiceberg.catalog.sql import SqlCatalog
catalog = SqlCatalog("bare", uri="sqlite:///bare.db", warehouse="file://" + sys.argv[1])
catalog.create_namespace_if_not_exists("default")
"""
CREATE = (
    OPEN
    + """
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType
schema = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "name", StringType()),
    NestedField(3, "age", IntegerType()), NestedField(4, "at", TimestamptzType()))
catalog.create_table(("default", sys.argv[2]), schema)
"""
)
EVOLVE = (
    OPEN
    + """
from pyiceberg.types import StringType
with catalog.load_table(("default", "users")).update_schema() as update:
    update.add_column(sys.argv[2], StringType())
"""
)
IMPORT = "from pyiceberg.catalog.sql import SqlCatalog"


class Measured:
    """Pairs of times, ours and theirs, taken in turn."""

    def __init__(self, what: str, ratio_max: float) -> None:
        self.what, self.ratio_max = what, ratio_max
        self.ours: list[float] = []
        self.theirs: list[float] = []

    def round(self, ours: Callable[[], object], theirs: Callable[[], object]) -> None:
        self.ours.append(seconds(ours))
        self.theirs.append(seconds(theirs))

    def report(self) -> None:
        ours, theirs = statistics.median(self.ours), statistics.median(self.theirs)
        print(
            f"{self.what:<26}{ours * 1000:>9.1f} ms{theirs * 1000:>9.1f} ms{ours / theirs:>8.2f}"
            f"   must be at most {self.ratio_max}"
        )


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def run(*command: str) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


def warm() -> list[Measured]:
    created, evolved = Measured("create table, warm", 1.3), Measured("add column, warm", 1.3)
    bare = SqlCatalog("bare", uri="sqlite:///warm.db", warehouse=f"file://{Path.cwd()}/bare")
    bare.create_namespace("default")
    with IcebergManager("warm") as manager:
        for number in range(ROUNDS * 3):
            name = f"t{number}"
            created.round(
                lambda name=name: manager.create_table(name, COLUMNS),  # type: ignore[misc]
                lambda name=name: bare.create_table(("default", name), ARROW),  # type: ignore[misc]
            )
            theirs = bare.load_table(("default", "t0"))
            evolved.round(
                lambda name=name: manager.add_column("t0", f"new_{name}", "string"),  # type: ignore[misc]
                lambda name=name, theirs=theirs: (  # type: ignore[misc]
                    theirs.update_schema().add_column(f"new_{name}", StringType()).commit()
                ),
            )
    return [created, evolved]


def cold() -> list[Measured]:
    created, evolved = Measured("create table, cold", 1.3), Measured("add column, cold", 1.3)
    listed = Measured("table list, cold", 1.5)
    python, here = sys.executable, str(Path.cwd() / "bare")
    Path("schema.json").write_text(SCHEMA, encoding="utf-8")
    numbers = count()
    run(CALVE, "table", "create", "users", "--schema", "schema.json")
    run(python, "-c", CREATE, here, "users")
    for _ in range(ROUNDS):
        name = f"t{next(numbers)}"
        created.round(
            lambda name=name: run(CALVE, "table", "create", name, "--schema", "schema.json"),  # type: ignore[misc]
            lambda name=name: run(python, "-c", CREATE, here, name),  # type: ignore[misc]
        )
        evolved.round(
            lambda name=name: run(CALVE, "table", "add-column", "users", name, "string"),  # type: ignore[misc]
            lambda name=name: run(python, "-c", EVOLVE, here, name),  # type: ignore[misc]
        )
        listed.round(lambda: run(CALVE, "table", "list"), lambda: run(python, "-c", IMPORT))
    return [created, evolved, listed]


def cold_insert() -> None:
    write_parquet_batch(generate_test_data(ROWS), "rows.parquet")
    run(CALVE, "table", "create", "rows", "--from-data", "rows.parquet")
    took = seconds(lambda: run(CALVE, "table", "insert", "rows", "--data", "rows.parquet"))
    print(f"{'insert 1 M rows, cold':<26}{took:>9.2f} s    must be below 10 s")


def main() -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        print(f"{'work':<26}{'Calve':>12}{'bare':>12}{'ratio':>8}")
        for measured in (*warm(), *cold()):
            measured.report()
        cold_insert()
        os.chdir("/")


if __name__ == "__main__":
    main()
