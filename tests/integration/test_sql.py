"""SQL over the lake: all tables, time travel, and no way to anything else."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calve.errors import CalveError, Corruption, InvalidRequest, MissingPart, NotFound
from calve.lake import Lake
from calve.query.engine import Limits
from calve.query.rows import Rows
from calve.query.sql import run_sql
from calve.query.statement import parse_statement
from calve.settings import Settings
from calve.tables.references import create_branch, create_tag

MakeSettings = Callable[..., Settings]
USERS = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("score", pa.float64()),
        ("place", pa.struct([("lat", pa.float64())])),
        ("_calve_offset", pa.int64()),
    ]
)
ORDERS = pa.schema([("user_id", pa.int64()), ("price", pa.decimal128(10, 2))])


def users(*ids: int) -> pa.Table:
    scores = [math.nan if number % 2 else float(number) for number in ids]
    return pa.table(
        {"id": list(ids), "name": [f"n{n}" for n in ids], "score": scores, "place": [{"lat": s} for s in scores],
         "_calve_offset": list(ids)}, schema=USERS,
    )  # fmt: skip


def fill(lake: Lake) -> Lake:
    table = lake.catalog.create_table("users", USERS)
    table.append(users(0, 1, 2))
    create_tag(table, "v1")
    create_branch(table, "audit")
    table.append(users(3, 4))
    table.append(users(9), branch="audit")
    orders = lake.catalog.create_table("acme.sales.orders", ORDERS)
    orders.append(pa.table({"user_id": [1, 1, 4], "price": [Decimal("1.50")] * 3}, schema=ORDERS))
    return lake


@pytest.fixture(scope="module", params=["local", "memory"])
def shop(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lake]:
    """On files, where DuckDB reads the tables, and in memory, where it is given streams."""
    from calve.settings import load_settings

    flags: dict[str, object] = {"data": str(tmp_path_factory.mktemp("shop"))}
    if request.param == "memory":
        flags["storage.dsn"] = "memory://"
    with Lake(load_settings(flags=flags, environ={}).settings) as lake:
        yield fill(lake)


def sql(lake: Lake, text: str, **limits: int) -> Rows:
    return run_sql(lake.catalog, text, limits=Limits(**limits))


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("SELECT id FROM users WHERE id > 2 ORDER BY id DESC", [(4,), (3,)]),
        ("SELECT count(*) FROM Users", [(5,)]),
        ("SELECT count(*) FROM default.default.users", [(5,)]),
        ("SELECT sum(id), count(*) FROM users WHERE score > 1e300", [(4, 2)]),
        ("SELECT count(*) FROM users WHERE place.lat > 1e300", [(2,)]),
        ("SELECT name, sum(price) FROM users JOIN acme.sales.orders ON id = orders.user_id GROUP BY ALL ORDER BY 1",
         [("n1", Decimal("3.00")), ("n4", Decimal("1.50"))]),
        ("SELECT a.id FROM users a JOIN users b ON a.id = b.id + 1 WHERE b.id = 3", [(4,)]),
        ("WITH users AS (SELECT id FROM users WHERE id > 3) SELECT * FROM users", [(4,)]),
        ("WITH a AS (SELECT 1 AS x), b AS (SELECT x + 1 AS y FROM a) SELECT y FROM b", [(2,)]),
        ("WITH RECURSIVE r AS (SELECT 1 a UNION ALL SELECT a + 1 FROM r WHERE a < 5) SELECT max(a) FROM r", [(5,)]),
        ("SELECT id FROM users WHERE id IN (SELECT user_id FROM acme.sales.orders) ORDER BY ALL", [(1,), (4,)]),
        ("SELECT (SELECT max(id) FROM users), EXISTS (FROM users WHERE id = 77)", [(4, False)]),
        ("SELECT id FROM users QUALIFY row_number() OVER (ORDER BY id DESC) = 1", [(4,)]),
        ("VALUES (1, 'a')", [(1, "a")]),
        ("FROM users SELECT id WHERE name = 'n2'", [(2,)]),
        ("SELECT x FROM range(2) t(x)", [(0,), (1,)]),
        ("SELECT column_name FROM (DESCRIBE acme.sales.orders)", [("user_id",), ("price",)]),
        ("SHOW TABLES;", [("acme.sales.orders",), ("users",)]),
        ("SELECT count(*) FROM users AT (TAG => 'v1')", [(3,)]),
        ("SELECT count(*) FROM users AT (TAG => 'v1') AS u WHERE u.id > 0", [(2,)]),
        ("SELECT count(*) FROM users u AT (branch => 'audit')", [(4,)]),
        ("SELECT count(*) FROM users AT (TIMESTAMP => '2999-01-01 10:00:00')", [(5,)]),
        ("SELECT new.id FROM users new LEFT JOIN users AT (TAG => 'v1') old ON new.id = old.id WHERE old.id IS NULL ORDER BY 1", [(3,), (4,)]),
        ("SELECT 'AT (TAG => ''v1'')' /* AT (TAG => 'v1') */ -- AT (TAG => 'v1')", [("AT (TAG => 'v1')",)]),
        ("SELECT timestamptz '2024-01-01 00:00:00' = timestamptz '2024-01-01 00:00:00+00'", [(True,)]),
    ],
)  # fmt: skip
def test_a_statement_is_answered(shop: Lake, text: str, rows: list[tuple[object, ...]]) -> None:
    assert [tuple(row.values()) for row in sql(shop, text)] == rows


def test_a_column_without_a_name_is_called_what_was_written(shop: Lake) -> None:
    asked = shop.sql(
        "select 1, (select max(id) from users), (select (select 2) from users limit 1)"
    )
    names = asked.to_arrow().column_names
    assert names[:2] == ["1", "(SELECT max(id) FROM users)"]
    assert names[2].startswith("(SELECT (SELECT 2) FROM users")
    (inner,) = shop.sql("from (select (select min(id) from users))").to_arrow().column_names
    assert inner == "(SELECT min(id) FROM users)"


def test_a_version_is_named_by_its_id(shop: Lake) -> None:
    first = shop.catalog.load_table("users").metadata.snapshots[0].snapshot_id
    rows = sql(shop, f"SELECT count(*) AS n FROM users AT (VERSION => {first})")
    assert (list(rows), rows.snapshot_id) == ([{"n": 3}], first)


def test_the_answer_says_how_it_read_a_time(shop: Lake) -> None:
    rows = sql(
        shop,
        "SELECT count(*) FROM users AT (TIMESTAMP => '2999-01-01 10:00:00') a "
        "JOIN users AT (TIMESTAMP => '2998-12-31T23:30:00-01:00') b USING (id)",
    )
    newest = shop.catalog.load_table("users").metadata.current_snapshot_id
    assert rows.times == (
        f"users as of 2999-01-01 10:00:00 UTC: snapshot {newest}",
        f"users as of 2999-01-01 00:30:00 UTC: snapshot {newest}",
    )


def test_own_columns_are_shown_when_named(shop: Lake) -> None:
    shown = ["id", "name", "score", "place"]
    assert sql(shop, "SELECT * FROM users").columns == shown
    assert sql(shop, "SELECT *, _calve_offset FROM users").columns == [*shown, "_calve_offset"]
    assert sql(shop, "SELECT u.*, u._calve_offset FROM users u").columns == [
        *shown,
        "_calve_offset",
    ]
    assert (
        len(sql(shop, "SELECT *, u._calve_offset FROM users u JOIN users v USING (id)").columns)
        == 8
    )
    assert sql(shop, "SELECT * FROM users WHERE _calve_offset = 3").columns == shown
    assert sql(shop, "SELECT * FROM (SELECT _calve_offset FROM users)").columns == ["_calve_offset"]


def test_types_that_only_duckdb_has_become_others(shop: Lake) -> None:
    text = """SELECT interval 1 day AS i, 5::HUGEINT AS h, [5::HUGEINT] AS l, 'a'::ENUM('a') AS e,
                     '{}'::JSON AS j, true AS b, {'b': true} AS s, 1 AS b"""
    rows = sql(shop, text)
    assert rows.columns == ["i", "h", "l", "e", "j", "b", "s", "b_1"]
    assert rows.schema.field("h").type == pa.decimal128(38, 0)
    assert rows.schema.field("b").type == pa.bool_()
    (row,) = rows
    assert list(row.values()) == [
        "1 day",
        Decimal(5),
        [Decimal(5)],
        "a",
        "{}",
        True,
        {"b": True},
        1,
    ]


@pytest.mark.parametrize(
    "condition",
    [
        "k IS DISTINCT FROM 1 OR k = 2",
        "k <> 1 OR 2 IS DISTINCT FROM k",
        "NOT (k IS NOT DISTINCT FROM 1) OR k = 2",
        "NOT (k IS NOT DISTINCT FROM 1 AND k <> 2)",
        "k IS DISTINCT FROM 1 OR k IS DISTINCT FROM 2",
        "b IS NOT TRUE OR b",
    ],
)
def test_a_file_of_nulls_is_not_overlooked(lake: Lake, condition: str) -> None:
    table = lake.catalog.create_table("t", pa.schema([("k", pa.int64()), ("b", pa.bool_())]))
    table.append(pa.table({"k": [None, None], "b": [None, None]}, schema=table.schema().as_arrow()))
    table.append(pa.table({"k": [3, None], "b": [True, False]}, schema=table.schema().as_arrow()))
    for source in ("t", "(SELECT k, b FROM t)"):
        rows = sql(lake, f"SELECT count(*) AS n FROM {source} WHERE {condition}")
        assert rows.to_arrow()["n"].to_pylist() == [4]


def test_columns_that_are_joined_with_their_nulls_are_not_in_the_way_of_skipping() -> None:
    joined = parse_statement("SELECT 1 FROM t JOIN u ON t.k IS NOT DISTINCT FROM u.k WHERE t.d = 1")
    assert not joined.takes_null_for_a_value
    assert parse_statement("SELECT k IS NOT TRUE FROM t").takes_null_for_a_value


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("SELECT * FROM usrs", NotFound, "did you mean 'users'"),
        ("SELECT nam FROM users", InvalidRequest, '"name"'),
        ("SELECT * FROM sales.orders", InvalidRequest, "tenant.dataset.name"),
        ("SELECT * FROM users AT (TAG => 'none')", NotFound, "no tag 'none'"),
        ("SELECT * FROM users AT (VERSION => 42)", NotFound, "no snapshot 42"),
        ("SELECT * FROM users AT (VERSION => 'x')", InvalidRequest, "whole numbers"),
        ("SELECT * FROM users AT (VERSION => 1 + 1)", InvalidRequest, "plain value"),
        ("SELECT * FROM users AT (VERSION => 1.5)", InvalidRequest, "plain value"),
        ("SELECT * FROM users AT (TAG => monthly)", InvalidRequest, "plain value"),
        ("SELECT * FROM users AT (TAG => NULL)", InvalidRequest, "plain value"),
        ("SELECT * FROM users AT (VERSION => 99999999999999999999)", InvalidRequest, "plain value"),
        ("SELECT * FROM users AT (TIMESTAMP => '2020-01-01')", NotFound, "the table's first is"),
        ("SELECT * FROM users AT (TIMESTAMP => 'soon')", InvalidRequest, "not a time"),
        ("SELECT cast(name AS INTEGER) FROM users", InvalidRequest, "Could not convert"),
        ("SELEC 1", InvalidRequest, "syntax error"),
        ("", InvalidRequest, "empty"),
        ("SELECT '\udc80'", InvalidRequest, "not valid Unicode"),
        ("SELECT id FROM users WHERE name = 'O''Neil' || \\", InvalidRequest, "cannot be read"),
        ("SELECT 1; SELECT 2", InvalidRequest, "one by one"),
        ("SELECT $1", InvalidRequest, "parameter"),
        ("PIVOT users ON name USING sum(id)", InvalidRequest, "PIVOT cannot.*\n.*FILTER"),
        ("/* x */ INSERT INTO users VALUES (1)", InvalidRequest, "changes nothing.*\n.*upsert"),
        ("VACUUM", InvalidRequest, "only a SELECT"),
        ("SELECT " + " + ".join(["1"] * 5000), InvalidRequest, "deep"),
    ],
)
def test_a_mistake_is_named(shop: Lake, text: str, kind: type[CalveError], words: str) -> None:
    with pytest.raises(kind, match=words) as raised:
        sql(shop, text).to_arrow()
    assert "iceberg_scan" not in str(raised.value)
    assert str(shop.settings.data) not in str(raised.value)


HOSTILE = [
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    'SELECT * FROM "{data}/outside.parquet"',
    "SELECT * FROM read_parquet('{data}/outside.parquet')",
    "SELECT * FROM parquet_scan('{data}/outside.parquet')",
    "SELECT * FROM read_csv_auto('/etc/passwd')",
    "SELECT * FROM iceberg_scan('{data}/users')",
    "SELECT * FROM iceberg_metadata('{data}/users')",
    "SELECT * FROM sqlite_scan('{data}/_calve/catalog.db', 'iceberg_tables')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query_table('users')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM enable_logging()",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_views()",
    "SELECT * FROM duckdb_extensions()",
    "SELECT * FROM pragma_database_list()",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM pg_catalog.pg_views",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM temp.main.users",
    "SELECT * FROM system.main.duckdb_tables",
    "SELECT * FROM stream_0",
    "SELECT * FROM python_scan_all_frames",
    "SELECT getenv('HOME')",
    "SELECT 'HOME'.getenv()",
    "SELECT main.getenv('HOME')",
    "SELECT current_setting('access_mode')",
    "SELECT getvariable('x')",
    "SELECT write_log('x')",
    "SELECT nextval('x')",
    "SELECT (SELECT content FROM read_text('/etc/passwd'))",
    "WITH x AS (SELECT * FROM read_text('/etc/passwd')) SELECT * FROM x",
    "WITH users AS MATERIALIZED (SELECT * FROM glob('*')) SELECT * FROM users",
    "SELECT * FROM users WHERE name IN (SELECT content FROM read_text('/etc/passwd'))",
    "SELECT * FROM users ORDER BY getenv('HOME')",
    "SELECT * FROM users LIMIT (SELECT count(*) FROM glob('*'))",
    "SELECT sum(id) OVER (ORDER BY getenv('x')) FROM users",
    "SELECT list_transform([1], x -> getenv('x'))",
    "DESCRIBE SELECT * FROM read_text('/etc/passwd')",
    "SUMMARIZE SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM users AT (VERSION => (SELECT 1))",
    "SELECT * FROM users AT (TAG => getenv('x'))",
    "INSERT INTO users VALUES (1)",
    "UPDATE users SET id = 1",
    "DELETE FROM users",
    "CREATE TABLE x AS SELECT 1",
    "CREATE VIEW x AS SELECT 1",
    "DROP TABLE users",
    "COPY users TO '{data}/escaped.csv'",
    "COPY (SELECT 1) TO '{data}/escaped.csv'",
    "EXPORT DATABASE '{data}/escaped'",
    "ATTACH '{data}/escaped.db'",
    "ATTACH ':memory:' AS x",
    "INSTALL httpfs",
    "LOAD httpfs",
    "PRAGMA database_list",
    "SET enable_external_access = true",
    "RESET ALL",
    "CALL pragma_version()",
    "USE memory",
    "CHECKPOINT",
    "BEGIN",
    "PREPARE x AS SELECT 1",
    "EXECUTE x",
    "SHOW DATABASES",
    "SELECT 1; COPY (SELECT 1) TO '{data}/escaped.csv'",
    "SELECT 1 \0; DROP TABLE users",
    "SELECT * FROM users; --",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_but_tables_can_be_reached(shop: Lake, text: str) -> None:
    data = Path(shop.settings.data)
    pq.write_table(pa.table({"secret": ["x"]}), data / "outside.parquet")
    before = {path for path in data.rglob("*") if path.is_file()}
    if text == "SELECT * FROM users; --":
        assert len(sql(shop, text)) == 5
        return
    with pytest.raises((InvalidRequest, NotFound)):
        sql(shop, text.replace("{data}", str(data))).to_arrow()
    assert {path for path in data.rglob("*") if path.is_file()} == before
    assert len(sql(shop, "SELECT * FROM users")) == 5


def test_a_statement_is_bounded_in_time_rows_and_memory(shop: Lake) -> None:
    with pytest.raises(InvalidRequest, match="longer than 50 ms"):
        sql(
            shop, "SELECT sum(sin(a.range)) FROM range(1000000) a, range(100000) b", time_ms_max=50
        ).to_arrow()
    with pytest.raises(InvalidRequest, match="more than 100 rows"):
        sql(shop, "SELECT * FROM range(101)", rows_max=100).to_arrow()
    with pytest.raises(InvalidRequest, match="memory"):
        sql(shop, "SELECT list(range) FROM range(50000000)", memory_bytes_max=20_000_000).to_arrow()
    assert len(sql(shop, "SELECT * FROM range(100)", rows_max=100, time_ms_max=60_000)) == 100


@pytest.mark.parametrize(
    "text",
    [
        "SELECT id, range(id) FROM users ORDER BY id",
        "SELECT range(id), count(*) FROM users GROUP BY range(id) ORDER BY ALL",
        "SELECT range(10, id, -2), generate_series(2000000, 2000002) FROM users WHERE id = 3",
        "SELECT list_transform([1, 2], lambda n: repeat('ab', n + id)) FROM users ORDER BY id",
        "SELECT range(DATE '2026-01-01', DATE '2026-03-01', INTERVAL 1 MONTH) AS m, range(NULL)",
        "SELECT (SELECT sum(x) FROM unnest(range(u.id)) t(x)) AS s FROM users u ORDER BY ALL",
        "SELECT repeat([id], 2), repeat(name, id), lpad(name, 3 + id::INT, '*') FROM users",
        "SELECT repeat(repeat('a', 2), 3), rpad(name, 5, ' '), list_resize([id], 2) FROM users",
        "SELECT max(x) FROM range(3000000) t(x)",
    ],
)
def test_values_within_the_bounds_are_what_they_are_without(shop: Lake, text: str) -> None:
    bounded = sql(shop, text, memory_bytes_max=1 << 30)
    free = sql(shop, text)
    assert bounded.columns == free.columns
    assert sorted(map(str, bounded)) == sorted(map(str, free))


def test_an_interrupt_ends_a_statement_at_once(shop: Lake) -> None:
    # Hours of work, which DuckDB would go on with.
    text = "SELECT sum(sin(a.range)) FROM range(10000000) a, range(10000000) b"
    pressed = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    pressed.start()
    with pytest.raises(KeyboardInterrupt):
        sql(shop, text).to_arrow()
    assert len(sql(shop, "SELECT * FROM users")) == 5


def test_each_table_is_one_snapshot_in_a_whole_statement(lake: Lake) -> None:
    fill(lake)
    rows = sql(lake, "SELECT (SELECT count(*) FROM users) AS a, (SELECT count(*) FROM users) AS b")
    lake.catalog.load_table("users").append(users(10))
    assert list(rows) == [{"a": 5, "b": 5}]
    assert list(rows) == [{"a": 5, "b": 5}], "asked again, the same state answers"


def test_a_table_without_rows_and_one_with_odd_names(lake: Lake) -> None:
    lake.catalog.create_table("empty", USERS)
    assert list(sql(lake, "SELECT count(*) AS n FROM empty")) == [{"n": 0}]
    names = ['a"b', "a b", "ünï", "select", "a.b", "it's"]
    table = lake.catalog.create_table("odd", pa.schema([(name, pa.int64()) for name in names]))
    table.append(pa.table({name: [n] for n, name in enumerate(names)}))
    assert sql(lake, "SELECT * FROM odd").columns == names
    assert list(sql(lake, 'SELECT "a""b" + "it\'s" AS x FROM odd WHERE "a.b" = 4')) == [{"x": 5}]


def test_names_that_differ_in_case_are_refused(lake: Lake) -> None:
    table = lake.catalog.create_table("t", pa.schema([("a", pa.int64()), ("A", pa.int64())]))
    table.append(pa.table([[1], [2]], names=["a", "A"]))
    with pytest.raises(InvalidRequest, match="differ in case only"):
        sql(lake, "SELECT * FROM t")


def test_without_spark_a_table_that_needs_it_says_so(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from calve.query import sql as module
    from calve.tables.engine_choice import Choice, Engine

    fill(lake)
    monkeypatch.setattr(
        module, "choose_engine", lambda _: Choice(Engine.SPARK, "it has equality deletes")
    )
    with pytest.raises(MissingPart, match="only Spark can read"):
        sql(lake, "SELECT * FROM users").to_arrow()


def test_what_goes_wrong_in_a_file_is_told_in_its_own_words(make_settings: MakeSettings) -> None:
    from calve.tables.stores.memory_files import SharedMemory

    with Lake(make_settings(storage__dsn="memory://")) as lake:
        fill(lake)
        files = SharedMemory()
        for path in [path for path in files.store if "/users/data/" in path]:
            files.rm(path)
        with pytest.raises(Corruption, match="parquet"):
            sql(lake, "SELECT * FROM users").to_arrow()
