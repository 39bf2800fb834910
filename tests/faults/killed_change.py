"""A process that changes a table and is killed at one of its steps.

A step is a call of the catalog or of the file system: a file opened, begun, first written, closed
or deleted, a statement sent, a transaction committed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import duckdb  # noqa: F401  loaded before the fork
from pyiceberg.io.pyarrow import PyArrowFile
from sqlalchemy import event

from calve.changes import Expression, insert_rows, update_rows, upsert_rows
from calve.model import TableName
from calve.settings import Settings, load_settings
from calve.tables.catalog import LakeCatalog
from calve.tables.expiry import expire_snapshots
from calve.tables.stores.local import LocalFileIO, MetadataFile
from calve.writer import IcebergTableWriter


def write_transaction(catalog: LakeCatalog) -> None:
    """Two batches, the second of which brings a column along."""
    lake: Any = SimpleNamespace(catalog=catalog, settings=Settings())
    with IcebergTableWriter(lake, TableName.parse("t")) as writer, writer.transaction():
        writer.write_batch([{"id": 10, "p": 0}])
        writer.write_batch([{"id": 11, "p": 1, "note": "new"}])


CHANGES: dict[str, Callable[[LakeCatalog], Any]] = {
    "insert": lambda c: insert_rows(c, "t", [{"id": n, "p": n % 2} for n in (10, 11)]),
    "update": lambda c: update_rows(c, "t", {"id": Expression("id + 100")}, "id <= 2"),
    "upsert": lambda c: upsert_rows(c, "t", [{"id": 1, "p": 1}, {"id": 9, "p": 0}], ["id"]),
    "expire": lambda c: expire_snapshots(c.load_table("t"), datetime.now(UTC) + timedelta(hours=1)),
    "transaction": write_transaction,
}


class Steps:
    """Counts steps, and ends the process at one of them as nothing else can."""

    def __init__(self, kill_at: int | None) -> None:
        self.kill_at = kill_at
        self.seen: list[str] = []

    def step(self, name: str) -> None:
        self.seen.append(name)
        if len(self.seen) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


class _Stream:
    def __init__(self, stream: Any, steps: Steps) -> None:
        self._stream = stream
        self._steps = steps
        self._is_new = True

    def write(self, data: Any) -> Any:
        written = self._stream.write(data)
        if self._is_new:
            self._is_new = False
            self._steps.step("wrote")
        return written

    def close(self) -> None:
        if not self._stream.closed:
            self._steps.step("close")
            self._stream.close()
            self._steps.step("closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def watch(catalog: LakeCatalog, steps: Steps) -> None:
    """Every call of catalog and file system from here on is a step."""

    def around(owner: Any, name: str) -> None:
        honest = getattr(owner, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            steps.step(name)
            result = honest(*arguments, **options)
            steps.step(f"{name} done")
            return result

        setattr(owner, name, watched)

    def watch_creation(owner: Any) -> None:
        create = owner.create

        def watched(self: Any, overwrite: bool = False) -> Any:
            steps.step("create")
            return _Stream(create(self, overwrite), steps)

        owner.create = watched

    for file in (PyArrowFile, MetadataFile):
        watch_creation(file)
        around(file, "open")
    around(LocalFileIO, "delete")
    around(Path, "replace")
    around(catalog.iceberg, "load_table")
    around(catalog.iceberg, "commit_table")
    engine = catalog.iceberg.engine  # type: ignore[attr-defined]
    event.listen(engine, "before_cursor_execute", lambda *_: steps.step("statement"))
    event.listen(engine, "commit", lambda *_: steps.step("database commit"))


def run(data: str, change: str, kill_at: int | None, report: str) -> None:
    steps = Steps(kill_at)
    with LakeCatalog(load_settings(flags={"data": data}, environ={}).settings) as catalog:
        watch(catalog, steps)
        CHANGES[change](catalog)
    Path(report).write_text("\n".join(steps.seen))
