"""The embedded lake: SQLite and local files, or memory, with several threads and processes at once."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import calve
from calve.errors import Conflict, Corruption, Denied, InvalidRequest, InvalidSettings, NotFound
from calve.lake import Lake
from calve.query.engine import connect
from calve.settings import Settings
from calve.tables.catalog import LakeCatalog
from calve.tables.stores.memory_files import SharedMemory

USERS = pa.schema([("id", pa.int64()), ("name", pa.string())])
MakeSettings = Callable[..., Settings]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"user {id_}" for id_ in ids]}, schema=USERS)


def test_a_lake_opened_by_path_keeps_its_tables_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with calve.open("data/warehouse") as lake:
        lake.catalog.create_table("users", USERS).append(rows(1, 2))
        lake.catalog.create_table("acme.sales.orders", USERS)
        assert list(map(str, lake.catalog.list_tables())) == ["acme.sales.orders", "users"]
    directory = tmp_path / "data" / "warehouse"
    assert {path.name for path in directory.iterdir()} == {"_calve", "users", "acme__"}
    assert (directory / "users" / "metadata").is_dir()
    with calve.open(directory) as again:
        assert again.catalog.load_table("users").scan().to_arrow().num_rows == 2
        assert str(again) == f"Lake('{directory}', catalog='sql')"


@pytest.mark.parametrize("name", ["with space", "ünïcode-雪", "quote'd", "plus+and&"])
def test_a_directory_of_any_reasonable_name_works(tmp_path: Path, name: str) -> None:
    with calve.open(tmp_path / name) as lake:
        table = lake.catalog.create_table("users", USERS)
        table.append(rows(1))
        assert (tmp_path / name / "users" / "data").is_dir()
        location = table.metadata_location.replace("'", "''")
        with connect() as duckdb:
            assert duckdb.sql(f"select id from iceberg_scan('{location}')").fetchall() == [(1,)]


def test_what_calve_keeps_for_itself_is_the_owners_alone(lake: Lake) -> None:
    for path in (lake.settings.data, lake.settings.data / "_calve"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_name_that_is_taken_or_unknown_is_an_error_of_calve(lake: Lake) -> None:
    lake.catalog.create_table("users", USERS)
    with pytest.raises(Conflict):
        lake.catalog.create_table("users", USERS)
    with pytest.raises(NotFound) as missing:
        lake.catalog.load_table("nobody")
    assert "calve table list" in str(missing.value)
    with pytest.raises(InvalidRequest):
        lake.catalog.load_table("../users")
    lake.catalog.drop_table("users")
    with pytest.raises(NotFound):
        lake.catalog.drop_table("users")


def test_tables_of_others_in_the_catalog_do_not_get_in_the_way(lake: Lake) -> None:
    lake.catalog.iceberg.create_namespace(("Foreign", "Space"))
    lake.catalog.iceberg.create_table(("Foreign", "Space", "T"), USERS)
    lake.catalog.create_table("users", USERS)
    assert list(map(str, lake.catalog.list_tables())) == ["users"]


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("id", pa.null())]),
        pa.schema([("id", pa.int64()), ("id", pa.string())]),
        {"id": "long"},
    ],
)
def test_a_schema_that_no_table_can_have_is_refused_before_anything_is_made(
    lake: Lake, schema: object
) -> None:
    with pytest.raises(InvalidRequest):
        lake.catalog.create_table("users", schema)
    assert lake.catalog.iceberg.list_namespaces() == []


def test_settings_made_by_hand_are_completed(tmp_path: Path) -> None:
    with calve.open(calve.Settings(data=tmp_path / "by-hand")) as lake:
        lake.catalog.create_table("users", USERS)
    assert (tmp_path / "by-hand" / "users").is_dir()


def test_the_cache_keeps_a_table_and_forgets_a_dropped_one(lake: Lake) -> None:
    lake.catalog.create_table("users", USERS)
    cached = lake.catalog.cached_table("users")
    lake.catalog.load_table("users").append(rows(1))
    assert lake.catalog.cached_table("users") is cached
    info = lake.catalog.cache_info()
    assert info is not None
    assert not info.is_expired
    lake.catalog.clear_cache()
    assert lake.catalog.cached_table("users").scan().to_arrow().num_rows == 1
    lake.catalog.drop_table("users")
    with pytest.raises(NotFound):
        lake.catalog.cached_table("users")


def test_lakes_in_memory_are_apart_and_freed(make_settings: MakeSettings) -> None:
    settings = make_settings(catalog__type="memory", storage__dsn="memory://")
    before = set(SharedMemory.store)
    with Lake(settings) as one, Lake(settings) as other:
        one.catalog.create_table("users", USERS).append(rows(1, 2, 3))
        assert other.catalog.list_tables() == []
        assert one.catalog.load_table("users").scan().to_arrow().num_rows == 3
        assert set(SharedMemory.store) - before
    assert set(SharedMemory.store) == before
    assert not settings.data.exists()


def test_a_lake_in_memory_serves_all_threads(make_settings: MakeSettings) -> None:
    with Lake(make_settings(catalog__type="memory", storage__dsn="memory://")) as lake:
        lake.catalog.create_table("users", USERS)
        with ThreadPoolExecutor(8) as pool:
            list(
                pool.map(lambda id_: lake.catalog.load_table("users").append(rows(id_)), range(24))
            )
        assert sorted(lake.catalog.load_table("users").scan().to_arrow()["id"].to_pylist()) == list(
            range(24)
        )


def test_threads_that_append_at_once_lose_nothing(lake: Lake) -> None:
    lake.catalog.create_table("users", USERS)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda id_: lake.catalog.load_table("users").append(rows(id_)), range(24)))
    assert sorted(lake.catalog.load_table("users").scan().to_arrow()["id"].to_pylist()) == list(
        range(24)
    )


OPEN = """
import sys, pyarrow as pa, calve
from calve.errors import Conflict
sys.stdin.readline()
with calve.open(sys.argv[1]) as lake:
    try:
        lake.catalog.create_table("users", pa.schema([("id", pa.int64())]))
        print("made it")
    except Conflict:
        print("was second")
"""


def test_processes_that_make_one_lake_at_once_make_one(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CALVE_")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, tmp_path / "lake"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, cwd=tmp_path, env=environment,
        )
        for _ in range(4)
    ]  # fmt: skip
    outputs = [process.communicate("go\n", timeout=120) for process in processes]
    assert [error for _, error in outputs if error] == []
    assert sorted(out.strip() for out, _ in outputs) == ["made it"] + ["was second"] * 3


@pytest.mark.parametrize("is_race", [False, True])
def test_a_table_that_is_there_is_not_made_again_and_no_file_is_left(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, *, is_race: bool
) -> None:
    lake.catalog.create_table("users", USERS)
    before = files_below(lake.settings.data)
    if is_race:
        monkeypatch.setattr(LakeCatalog, "_require_free", lambda *_: None)
    with pytest.raises(Conflict, match="exists already"):
        lake.catalog.create_table("users", USERS)
    assert files_below(lake.settings.data) == before


def files_below(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.is_file() and "_calve" not in path.parts}


def test_a_reader_goes_on_while_a_writer_holds_the_catalog(lake: Lake) -> None:
    lake.catalog.create_table("users", USERS)
    writer = sqlite3.connect(lake.settings.data / "_calve" / "catalog.db", isolation_level=None)
    try:
        writer.execute("BEGIN IMMEDIATE")
        assert lake.catalog.load_table("users").scan().to_arrow().num_rows == 0
    finally:
        writer.close()


def test_a_damaged_catalog_is_reported_and_not_replaced(make_settings: MakeSettings) -> None:
    settings = make_settings()
    file = settings.data / "_calve" / "catalog.db"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"this is not a database" * 100)
    with pytest.raises(Corruption) as damaged:
        Lake(settings)
    assert "restore" in str(damaged.value)
    assert file.read_bytes() == b"this is not a database" * 100


def test_a_directory_that_cannot_be_is_refused(make_settings: MakeSettings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidSettings, match="is not a directory"):
        Lake(make_settings(data=str(tmp_path / "file")))
    with pytest.raises(InvalidSettings, match="is not a directory"):
        Lake(make_settings(data=str(tmp_path / "file" / "below")))
    # Nobody, not even root, can make a directory there.
    with pytest.raises(Denied, match="cannot be written"):
        Lake(make_settings(data="/sys/calve"))


def test_an_unreadable_database_url_is_refused_and_nothing_is_made(
    make_settings: MakeSettings,
) -> None:
    settings = make_settings(catalog__uri="nonsense")
    with pytest.raises(InvalidSettings, match="is not a database URL"):
        Lake(settings)
    assert not settings.data.exists()
