"""A table is read: columns, conditions, snapshots, only the files that matter, and nothing else."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io import InputFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, UUIDType

from calve.errors import Corruption, InvalidRequest, MissingPart, NotFound
from calve.lake import Lake
from calve.query.engine import Limits, connect_confined
from calve.query.rows import Rows
from calve.query.scan import read_table
from calve.settings import Settings
from calve.tables.engine_choice import choose_engine
from calve.tables.stores.access import access_to
from calve.tables.stores.local import LocalFileIO
from calve.tables.survey import survey
from calve.tables.views import view_table
from tests.contract.backends import PAIRS, Servers, backend
from tests.servers.fixtures import ServeTemporaryS3

MakeSettings = Callable[..., Settings]
USERS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64())])


def users(*ids: int) -> pa.Table:
    return pa.table(
        {"id": list(ids), "name": [f"n{n}" for n in ids], "score": [math.nan if n % 2 else 1.0 * n for n in ids]},
        schema=USERS,
    )  # fmt: skip


@pytest.fixture
def table(lake: Lake) -> Table:
    table = lake.catalog.create_table("users", USERS)
    for first in (0, 10, 20):
        table.append(users(*range(first, first + 10)))
    return table


def ids(rows: Rows) -> list[int]:
    return sorted(rows.to_arrow()["id"].to_pylist())


def files_of(lake: Lake, name: str = "users") -> list[Path]:
    place = Path(lake.settings.data, name, "data")
    return sorted(place.rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)


def test_rows_and_columns_are_chosen(table: Table) -> None:
    assert ids(read_table(table)) == list(range(30))
    assert ids(read_table(table, where="id BETWEEN 8 AND 11")) == [8, 9, 10, 11]
    chosen = read_table(table, where="name = 'n3'", columns=["NAME", "id"])
    assert chosen.to_arrow().to_pylist() == [{"name": "n3", "id": 3}]
    assert len(read_table(table, limit=7)) == 7
    assert len(read_table(table, limit=0)) == 0
    assert read_table(table, where="id = 1", columns=["score"]).columns == ["score"]


def test_nan_is_found_though_no_bound_speaks_of_it(table: Table) -> None:
    assert ids(read_table(table, where="score > 1e300")) == list(range(1, 30, 2))
    assert ids(read_table(table, where="id < 10 AND score >= 8")) == [1, 3, 5, 7, 8, 9]


@pytest.mark.parametrize(
    "place",
    [
        *("st.x", "st['x']", "struct_extract(st, 'x')", "array_extract(st, 'x')"),
        *("struct_extract(ls[1], 'x')", "list_extract(ld, 1)", "list_element(ld, 1)"),
        *("ld[1]", "array_extract(ld, 1)", "ma['k']", "map_extract(ma, 'k')[1]"),
    ],
)
def test_nan_is_found_in_whatever_holds_it(lake: Lake, place: str) -> None:
    inner = pa.struct([("x", pa.float64())])
    kinds = {
        "st": inner,
        "ls": pa.list_(inner),
        "ld": pa.list_(pa.float64()),
        "ma": pa.map_(pa.string(), pa.float64()),
    }
    schema = pa.schema([("id", pa.int64()), *kinds.items()])
    rows = [
        {"id": n, "st": {"x": x}, "ls": [{"x": x}], "ld": [x], "ma": [("k", x)]}
        for n, x in enumerate((1.0, math.nan))
    ]
    table = lake.catalog.create_table("t", schema)
    table.append(pa.Table.from_pylist(rows, schema=schema))
    assert ids(read_table(table, where=f"{place} > 5")) == [1]
    assert ids(read_table(table, where=f"5 <= {place} OR id > 1")) == [1]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"columns": ["nmae"]}, "did you mean 'name'"),
        ({"columns": ["id", "ID"]}, "named twice"),
        ({"columns": []}, "no column"),
        ({"columns": "id"}, r"columns=\['id'\]"),
        ({"limit": -1}, "0 or more"),
        ({"where": "nmae = 'x'"}, "nmae"),
        ({"where": "id"}, "true or false"),
        ({"where": "id IN (SELECT 1)"}, "hint"),
        ({"where": "id = 1; DROP TABLE users"}, "one expression"),
        ({"where": "read_text('/etc/passwd') = ''"}, "read_text"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    table: Table, asked: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read_table(table, **asked)  # type: ignore[arg-type]


def test_a_snapshot_is_shown_with_the_columns_of_its_time(lake: Lake, table: Table) -> None:
    first = table.metadata.snapshots[0].snapshot_id
    with table.update_schema() as update:
        update.rename_column("name", "full_name")
        update.add_column("email", StringType())
        update.delete_column("score")
    table = lake.catalog.load_table("users")
    now, then = read_table(table), read_table(table, snapshot_id=first)
    assert now.columns == ["id", "full_name", "email"]
    assert then.columns == ["id", "name", "score"]
    assert (ids(now), ids(then)) == (list(range(30)), list(range(10)))
    assert ids(read_table(table, snapshot_id=first, where="name = 'n3'")) == [3]
    assert then.snapshot_id == first
    assert now.snapshot_id == table.metadata.current_snapshot_id
    assert then.snapshot_at is not None
    assert abs((datetime.now(UTC) - then.snapshot_at).total_seconds()) < 300
    with pytest.raises(NotFound, match="list-snapshots"):
        read_table(table, snapshot_id=42)


def test_files_that_cannot_matter_are_not_opened(lake: Lake, table: Table) -> None:
    _, second, _ = files_of(lake)
    second.unlink()
    assert ids(read_table(table, where="id < 5")) == [0, 1, 2, 3, 4]
    assert ids(read_table(table, where="name = 'n25'")) == [25]
    with pytest.raises(Corruption, match="gone"):
        ids(read_table(table, where="id = 15"))


def test_partitions_that_cannot_matter_are_not_opened(lake: Lake) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "land", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "land"))
    table = lake.catalog.create_table("users", schema, partition_spec=spec)
    table.append(pa.table({"id": [1, 2, 3], "land": ["de", "fr", None]}))
    for path in files_of(lake):
        if "land=de" not in str(path):
            path.unlink()
    assert ids(read_table(table, where="land = 'de'")) == [1]


def damage(path: Path, *, columns: Sequence[str] = (), groups: Sequence[int] = ()) -> None:
    """Spoil all values of some columns or row groups of a file, and leave what describes them."""
    footer = pq.ParquetFile(path).metadata
    with path.open("r+b") as file:
        for group in range(footer.num_row_groups):
            for number in range(footer.num_columns):
                chunk = footer.row_group(group).column(number)
                if group in groups or chunk.path_in_schema in columns:
                    file.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
                    file.write(b"\xff" * chunk.total_compressed_size)


def wide_table(lake: Lake, engine: str, rows: int = 1) -> Table:
    """Of one file. Names that differ in case are nothing for DuckDB."""
    names = ["a", "b", "c", "d", "D" if engine == "pyiceberg" else "e"]
    schema = pa.schema([(name, pa.int64()) for name in names])
    small_groups = {"write.parquet.row-group-limit": "10"}
    table = lake.catalog.create_table("wide", schema, properties=small_groups)
    table.append(pa.table([list(range(rows))] * len(names), schema=schema))
    assert read_table(table).engine == engine
    return table


@pytest.mark.parametrize("engine", ["duckdb", "pyiceberg"])
def test_columns_that_are_not_asked_for_are_not_read(lake: Lake, engine: str) -> None:
    table = wide_table(lake, engine, rows=3)
    (file,) = files_of(lake, "wide")
    damage(file, columns=["b", "D", "e"])
    for asked in ({"columns": ["c"]}, {"columns": ["d", "a"], "where": "c >= 1 AND a < 2"}):
        rows = read_table(table, **asked)
        held = range(1, 2) if "where" in asked else range(3)
        expected = [dict.fromkeys(asked["columns"], n) for n in held]
        assert rows.to_arrow().to_pylist() == expected
        assert pa.Table.from_batches(rows.batches()).to_pylist() == expected
        assert len(rows) == len(expected)
    for needs in ({"columns": ["b"]}, {"columns": ["a"], "where": "b >= 1"}, {}):
        with pytest.raises(Corruption):
            read_table(table, **needs).to_arrow()


def test_rows_that_cannot_matter_are_not_read_from_a_file_that_does(lake: Lake) -> None:
    table = wide_table(lake, "duckdb", rows=50)
    (file,) = files_of(lake, "wide")
    damage(file, groups=[1, 3])
    for where, expected in (
        ("a < 10", range(10)),
        ("b BETWEEN 22 AND 28 AND c > 0", range(22, 29)),
    ):
        rows = read_table(table, where=where, columns=["d"])
        assert sorted(rows.to_arrow()["d"].to_pylist()) == list(expected)
        assert len(rows) == len(expected)
    with pytest.raises(Corruption):
        read_table(table, where="a BETWEEN 9 AND 10").to_arrow()


def test_ten_thousand_columns(lake: Lake, tmp_path: Path) -> None:
    names = [f"c{n}" for n in range(10_000)]
    table = lake.catalog.create_table(
        "wide",
        pa.schema([(name, pa.int32()) for name in names]),
        properties={"write.metadata.metrics.default": "none"},
    )
    # Somebody's own file, outside the table's place, which alone of its directory may be opened.
    made = pa.table({name: pa.array([n], pa.int32()) for n, name in enumerate(names)})
    pq.write_table(made, tmp_path / "wide.parquet")
    table.add_files([f"file://{tmp_path}/wide.parquet"])
    rows = read_table(table, where="c9999 = 9999", columns=["c5", "c9999"])
    assert list(rows) == [{"c5": 5, "c9999": 9999}]


def test_a_table_without_a_snapshot_is_empty_and_still_checked(lake: Lake) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "key", UUIDType()))
    table = lake.catalog.create_table("users", schema)
    rows = read_table(table, where="id = 1")
    assert (len(rows), rows.columns, rows.snapshot_id) == (0, ["id", "key"], None)
    assert rows.to_arrow().schema.field("key").type == pa.uuid()
    assert len(rows.to_pandas()) == len(rows.to_polars()) == 0
    with pytest.raises(InvalidRequest):
        read_table(table, where="nothing = 1")


def test_system_columns_are_shown_when_named(lake: Lake) -> None:
    schema = pa.schema([("id", pa.int64()), ("_calve_offset", pa.int64())])
    table = lake.catalog.create_table("topic", schema)
    table.append(pa.table({"id": [1, 2], "_calve_offset": [0, 1]}))
    assert read_table(table).columns == ["id"]
    assert ids(read_table(table, where="_calve_offset = 1")) == [2]
    assert read_table(table, columns=["_calve_offset"]).columns == ["_calve_offset"]


def test_rows_stay_those_of_their_snapshot_while_others_write(lake: Lake, table: Table) -> None:
    rows = read_table(table)
    table.append(users(99))
    lake.catalog.load_table("users").delete("id < 20")
    assert len(rows) == 30
    assert ids(rows) == list(range(30))


def test_readers_beside_a_writer_always_see_whole_snapshots(lake: Lake, table: Table) -> None:
    done = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not done.is_set():
            seen.append(len(read_table(lake.catalog.load_table("users"), columns=["id"])))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for first in range(30, 80, 10):
        table.append(users(*range(first, first + 10)))
    done.set()
    for reader in readers:
        reader.join()
    assert seen
    assert all(count % 10 == 0 for count in seen)


def test_a_query_opens_its_table_and_nothing_else(lake: Lake, table: Table) -> None:
    other = lake.catalog.create_table("other", USERS)
    other.append(users(1))
    access = access_to(table)
    assert access is not None
    with connect_confined([access]) as connection:
        assert connection.execute(
            f"SELECT count(*) FROM iceberg_scan('{table.metadata_location}')"
        ).fetchone() == (30,)
        for attempt in (
            f"SELECT * FROM iceberg_scan('{other.metadata_location}')",
            f"SELECT * FROM read_blob('{lake.settings.data}/_calve/catalog.db')",
            f"SELECT * FROM read_blob('{lake.settings.data}/users/../_calve/catalog.db')",
            "SELECT * FROM read_text('/etc/passwd')",
            "SELECT * FROM glob('/*')",
            "SELECT * FROM read_text('http://127.0.0.1:1/')",
            f"ATTACH '{lake.settings.data}/_calve/catalog.db' AS x (TYPE sqlite)",
            "COPY (SELECT 1) TO '/tmp/calve-escaped.csv'",
            "INSTALL httpfs",
            "SET enable_external_access = true",
            "SET allowed_directories = ['/']",
            "SET lock_configuration = false",
            "RESET lock_configuration",
        ):
            with pytest.raises(duckdb.Error):
                connection.execute(attempt).fetchall()
    assert not Path("/tmp/calve-escaped.csv").exists()


def test_a_query_is_bounded_in_time_rows_and_memory(lake: Lake, table: Table) -> None:
    with pytest.raises(InvalidRequest, match="more than 10 rows"):
        read_table(table, limits=Limits(rows_max=10)).to_arrow()
    assert len(read_table(table, limit=10, limits=Limits(rows_max=10)).to_arrow()) == 10
    many = lake.catalog.create_table("many", pa.schema([("s", pa.string())]))
    many.append(pa.table({"s": [f"{n}" * 50 for n in range(100_000)]}))
    slow = "length(regexp_extract(s || s || s || s, '(1.*2.*3.*4.*5.*x)')) > 0"
    with pytest.raises(InvalidRequest, match="longer than 1 ms"):
        read_table(many, where=slow, limits=Limits(time_ms_max=1)).to_arrow()
    with pytest.raises(InvalidRequest, match="memory"):
        read_table(many, limits=Limits(memory_bytes_max=100_000)).to_arrow()


class Watched(LocalFileIO):
    """Local files, and which of them were opened for reading."""

    def __init__(self) -> None:
        super().__init__({})
        self.opened: list[str] = []

    def new_input(self, location: str) -> InputFile:
        self.opened.append(location)
        return super().new_input(location)


def test_a_snapshot_is_looked_through_once(table: Table) -> None:
    table.io = Watched()
    views = [view_table(table, snapshot.snapshot_id) for snapshot in table.metadata.snapshots]
    assert [survey(view).manifests for view in views] == [1, 2, 3]
    opened = table.io.opened[:]
    assert {view.snapshot.manifest_list for view in views if view.snapshot} <= set(opened)
    assert [survey(view).manifests for view in views] == [1, 2, 3]
    assert table.io.opened == opened


def test_a_table_of_many_manifests_is_planned_once(lake: Lake) -> None:
    many = lake.catalog.create_table("many", USERS)
    for n in range(33):
        many.append(users(n))
    all_of_it, most = (
        view_table(many, each) for each in (None, many.metadata.snapshots[31].snapshot_id)
    )
    assert not choose_engine(all_of_it).is_planned_fast
    assert choose_engine(most).is_planned_fast
    assert ids(read_table(many)) == list(range(33))
    assert ids(read_table(many, snapshot_id=most.snapshot_id)) == list(range(32))


KINDS = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "key", UUIDType()),
    NestedField(3, "name", StringType()),
)
KEY = uuid.UUID(int=2**127 + 5)


@pytest.mark.parametrize("store", ["local", "memory"])
def test_the_types_are_the_tables_whoever_reads(make_settings: MakeSettings, store: str) -> None:
    flags = {"storage__dsn": "memory://"} if store == "memory" else {}
    with Lake(make_settings(**flags)) as lake:
        table = lake.catalog.create_table("t", KINDS)
        made = pa.table({"id": [1], "key": pa.array([KEY.bytes], pa.binary(16)), "name": ["a"]},
                        schema=pa.schema([pa.field("id", pa.int64(), nullable=False), ("key", pa.binary(16)), ("name", pa.string())]))  # fmt: skip
        table.append(made)
        rows = read_table(table, where=f"key = '{KEY}'")
        assert rows.engine == ("duckdb" if store == "local" else "pyiceberg")
        assert rows.schema == pa.schema(
            [pa.field("id", pa.int64(), nullable=False), ("key", pa.uuid()), ("name", pa.string())]
        )
        assert rows.to_arrow().schema == rows.schema
        assert list(rows) == [{"id": 1, "key": KEY, "name": "a"}]


def test_rows_are_arrow_pandas_polars_and_dicts(table: Table) -> None:
    rows = read_table(table, where="id < 3", columns=["id", "name"])
    assert sorted(row["name"] for row in rows) == ["n0", "n1", "n2"]
    assert sorted(pl.DataFrame(rows)["id"]) == [0, 1, 2]
    assert sorted(pa.table(rows)["id"].to_pylist()) == [0, 1, 2]
    assert isinstance(rows.to_pandas(), pd.DataFrame)
    assert isinstance(rows.to_polars(), pl.DataFrame)
    assert sum(len(batch) for batch in rows.batches()) == 3
    assert len(rows) == 3


def test_rows_show_themselves(table: Table) -> None:
    rows = read_table(table, columns=["id", "name"])
    text = repr(rows)
    assert "30 rows, the first 20 shown" in text
    assert f"snapshot {rows.snapshot_id}" in text
    assert len(text.splitlines()) == 23
    assert ids(rows) == list(range(30)), "showing them uses none up"
    hostile = pa.table({"<b>": ["<script>alert(1)</script>", "a\nb"]})
    shown = Rows(hostile.to_reader)._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "a\\nb" in shown


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_missing_library_is_one_line(
    table: Table, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    rows = read_table(table)
    with pytest.raises(MissingPart, match=f"pip install {library}"):
        getattr(rows, f"to_{library}")()


def test_reading_needs_no_time_zone_package_and_no_data_frames(lake: Lake, table: Table) -> None:
    code = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name in ("pytz", "pandas", "polars"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Without())
from calve.lake import Lake
from calve.settings import load_settings
from calve.query.scan import read_table
with Lake(load_settings(flags={"data": sys.argv[1]}, environ={}).settings) as lake:
    print(len(read_table(lake.catalog.load_table("users")).to_arrow()))
"""
    run = subprocess.run(
        [sys.executable, "-c", code, str(lake.settings.data)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout.strip() == "30"


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if "postgres" not in pair])
def test_every_catalog_and_store_is_read(
    request: pytest.FixtureRequest, tmp_path: Path, pair: str
) -> None:
    with (
        backend(pair, Servers(request.getfixturevalue), tmp_path) as kind,
        Lake(kind.settings()) as lake,
    ):
        name = f"t_{uuid.uuid4().hex[:12]}"
        table = lake.catalog.create_table(name, USERS)
        for first in (0, 10):
            table.append(users(*range(first, first + 10)))
        rows = read_table(lake.catalog.load_table(name), where="id > 5")
        assert ids(rows) == list(range(6, 20))
        assert rows.engine == ("pyiceberg" if pair.endswith("memory") else "duckdb")


def test_temporary_credentials_reach_duckdb(
    serve_temporary_s3: ServeTemporaryS3,
    make_settings: MakeSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    temporary = serve_temporary_s3(lifetime_seconds=600)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", temporary.service_url)
    settings = make_settings(
        storage__dsn=f"s3://{temporary.store.bucket}/{uuid.uuid4().hex}",
        storage__endpoint=temporary.store.endpoint, storage__region=temporary.store.region,
        storage__path_style=True, storage__role_arn="arn:aws:iam::123456789012:role/lake",
        storage__access_key_id="base", storage__secret_access_key="base-secret",
    )  # fmt: skip
    with Lake(settings) as lake:
        table = lake.catalog.create_table("users", USERS)
        table.append(users(1, 2))
        access = access_to(table)
        assert access is not None
        assert access.s3 is not None
        assert str(access.s3.secret) not in repr(access)
        rows = read_table(table)
        assert (rows.engine, ids(rows)) == ("duckdb", [1, 2])
