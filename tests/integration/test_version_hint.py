"""Anybody's DuckDB opens a local table by its directory."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from calve.changes import delete_rows, insert_rows
from calve.lake import Lake
from calve.query.engine import connect
from calve.tables import version_hint
from calve.tables.catalog import LakeCatalog
from calve.tables.schemas import define_table
from calve.tables.version_hint import publish_hint, refresh_hint


@pytest.fixture
def catalog(lake: Lake) -> LakeCatalog:
    lake.catalog.create_table("t", define_table({"id": "long"}).schema)
    return lake.catalog


def root(catalog: LakeCatalog) -> Path:
    return Path(catalog.load_table("t").location().removeprefix("file://"))


def hint(catalog: LakeCatalog) -> str:
    return (root(catalog) / "metadata" / "version-hint.text").read_text()


def newest(catalog: LakeCatalog) -> str:
    return Path(catalog.load_table("t").metadata_location).name.removesuffix(".metadata.json")


def count(catalog: LakeCatalog) -> int:
    with connect() as duck:
        answer = duck.execute(f"SELECT count(*) FROM iceberg_scan('{root(catalog)}')").fetchone()
    assert answer is not None
    return int(answer[0])


def test_the_directory_is_enough_for_duckdb(catalog: LakeCatalog) -> None:
    assert hint(catalog) == newest(catalog)
    insert_rows(catalog, "t", [{"id": n} for n in range(5)])
    assert count(catalog) == 5
    delete_rows(catalog, "t", "id < 2")
    assert count(catalog) == 3
    assert hint(catalog) == newest(catalog)


def test_many_who_commit_at_once_end_with_the_newest(catalog: LakeCatalog) -> None:
    threads = [
        threading.Thread(target=lambda n=n: insert_rows(catalog, "t", [{"id": n}]))
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hint(catalog) == newest(catalog)
    assert count(catalog) == 6


def test_one_who_comes_late_names_the_newest(catalog: LakeCatalog) -> None:
    old = catalog.load_table("t")
    insert_rows(catalog, "t", [{"id": 1}])
    new = catalog.load_table("t").metadata_location
    publish_hint(old.location(), old.metadata_location, lambda: new)
    assert hint(catalog) == newest(catalog)


def test_a_hint_that_cannot_be_written_harms_nothing(
    catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert insert_rows(catalog, "t", [{"id": 1}]).inserted_rows == 1
    monkeypatch.undo()
    assert catalog.load_table("t").scan().to_arrow().num_rows == 1
    refresh_hint(catalog.load_table("t"))
    assert count(catalog) == 1
    assert not list((root(catalog) / "metadata").glob(f".{version_hint.NAME}*"))


def test_an_old_snapshot_is_opened_by_its_number(catalog: LakeCatalog) -> None:
    first = insert_rows(catalog, "t", [{"id": 1}]).snapshot_id
    insert_rows(catalog, "t", [{"id": 2}])
    with connect() as duck:
        sql = f"SELECT id FROM iceberg_scan('{root(catalog)}', snapshot_from_id = {first}::UBIGINT)"
        assert duck.execute(sql).fetchall() == [(1,)]
