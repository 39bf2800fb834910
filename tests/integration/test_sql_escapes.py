"""SQL that tries to get out, over the service: refused or bounded, and the service stays healthy."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calve.client import Client
from calve.errors import InvalidRequest, NotFound
from calve.ingest.flight import FlightServer
from calve.lake import Lake
from calve.query.queries import Queries, Question
from tests.conftest import MakeSettings
from tests.integration.serving import Serving, serving
from tests.integration.test_sql import HOSTILE

MORE = [
    "EXPLAIN COPY (SELECT 1) TO '{data}/escaped.csv'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{data}/escaped.csv'",
    "EXPLAIN ANALYZE CREATE TABLE x AS SELECT 1",
    "EXPLAIN SELECT * FROM read_text('/etc/passwd')",
    "EXPLAIN SELECT 1; DROP TABLE users",
    "EXPLAIN (FORMAT JSON) SELECT * FROM glob('*')",
    "EXPLAIN ANALYZE SELECT * FROM '{data}/outside.parquet'",
    "EXPLAIN EXPLAIN SELECT 1",
    "EXPLAINSELECT 1",
    "/* /* */ EXPLAIN */ COPY (SELECT 1) TO '{data}/escaped.csv'",
    "--\nEXPLAIN--\nANALYZE--\nDELETE FROM users",
    "SELECT/**/*/**/FROM/**/read_text('/etc/passwd')",
    'SELECT * FROM/*x*/"/etc/passwd"',
    "SELECT * FROM READ_TEXT('/etc/passwd')",
    "SELECT * FROM main.read_text('/etc/passwd')",
    "SELECT * FROM system.main.read_text('/etc/passwd')",
    "SELECT * FROM \"read_text\"('/etc/passwd')",
    "SELECT * FROM U&'read\\005ftext'('/etc/passwd')",
    "SELECT * FROM ｒｅａｄ_text('/etc/passwd')",
    "SELECT * FROM read_text\u200b('/etc/passwd')",
    "SELECT\u00a0*\u00a0FROM\u00a0glob('/*')",
    "SELECT ｇｅｔｅｎｖ('HOME')",
    "SELECT GeTeNv('HOME')",
    "SELECT system.main.getenv('HOME')",
    "SELECT list_apply(['HOME'], lambda x: getenv(x))",
    "SELECT [getenv(x) FOR x IN ['HOME']]",
    "SELECT CASE WHEN true THEN getenv('HOME') END",
    "SELECT {'a': getenv('HOME')}",
    "SELECT * FROM (VALUES (getenv('HOME')))",
    "VALUES (getenv('HOME'))",
    "FROM read_text('/etc/passwd')",
    "FROM '/etc/passwd' SELECT *",
    "TABLE '/etc/passwd'",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM read_json('/etc/passwd')",
    "SELECT * FROM read_ndjson_objects('/etc/passwd')",
    "SELECT * FROM parquet_metadata('{data}/outside.parquet')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM iceberg_snapshots('{data}/users')",
    "SELECT * FROM repeat(read_text('/etc/passwd'), 2)",
    "SELECT * FROM users, LATERAL (SELECT * FROM read_text(users.name))",
    "SELECT * FROM users POSITIONAL JOIN read_text('/etc/passwd')",
    "SELECT * FROM (SELECT 1) UNION ALL SELECT content FROM read_text('/etc/passwd')",
    "WITH RECURSIVE x AS (SELECT 1 UNION ALL SELECT 1 FROM glob('*')) SELECT * FROM x",
    "SELECT (WITH y AS (FROM glob('*')) SELECT count(*) FROM y)",
    "SELECT * FROM users TABLESAMPLE (SELECT count(*) FROM glob('*'))",
    "SELECT * FROM tail_0",
    "SELECT * FROM users, tail_0",
    "SELECT * FROM users, memory.main.tail_0",
    "SELECT * FROM users, temp.main.tail_0",
    "SELECT * FROM acme.sales.nothing",
    'SELECT * FROM "acme.sales".orders',
    'SELECT * FROM "acme.sales.nothing"',
    'SELECT * FROM "../users"',
    "SELECT * FROM duckdb_tables()",
    "SELECT * FROM duckdb_functions()",
    "SELECT * FROM duckdb_memory()",
    "SELECT * FROM duckdb_logs()",
    "SELECT * FROM pragma_show('users')",
    "SELECT * FROM pragma_table_info('users')",
    "SHOW ALL TABLES FROM memory",
    "DESCRIBE '/etc/passwd'",
    "SUMMARIZE '{data}/outside.parquet'",
    "SET VARIABLE x = 1",
    "SET threads = 64",
    "SET memory_limit = '100GB'",
    "PRAGMA memory_limit = '100GB'",
    "CREATE SECRET x (TYPE s3)",
    "CREATE MACRO f(a) AS a",
    "CREATE TEMP TABLE x AS SELECT 1",
    "DETACH memory",
    "IMPORT DATABASE '/tmp'",
    "FORCE INSTALL httpfs FROM 'http://127.0.0.1/'",
    "MERGE INTO users USING users AS u ON true WHEN MATCHED THEN DELETE",
    "TRUNCATE users",
    "ALTER TABLE users ADD COLUMN x INTEGER",
    "VACUUM users",
    "ANALYZE users",
    "COMMENT ON TABLE users IS 'x'",
    "UPDATE EXTENSIONS",
    "DEALLOCATE x",
    "SELECT current_database()",
    "SELECT current_query()",
    "SELECT json_serialize_sql('SELECT 1')",
    "SELECT set_config('threads', '1')",
    "SELECT 1;;SELECT 2",
    "SELECT 1\x00",
    "(((((((SELECT * FROM glob('*'))))))))",
    "SELECT 1" + "+1" * 90_000,
    "SELECT '" + "x" * (1 << 19) + "'",
]
# Each would work for minutes, or fill the memory, if nothing bounded it.
BOMBS = [
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n FROM t, range(9)) SELECT count(*) FROM t",
    "SELECT count(*) FROM range(100000) a, range(100000) b, range(100000) c",
    "SELECT sum(length(repeat('x', 1000))) FROM range(10000000000)",
    "SELECT count(DISTINCT i) FROM range(10000000000) t(i)",
    "SELECT list(i) FROM range(10000000000) t(i)",
    "SELECT string_agg(i::VARCHAR) FROM range(10000000000) t(i)",
    "SELECT i, row_number() OVER (ORDER BY random()) FROM range(10000000000) t(i)",
    "SELECT * FROM range(10000000000)",
    "SELECT regexp_matches(repeat('a', 100000), '(a*)*b') FROM range(1000000000)",
    # Single values, which DuckDB neither counts nor stops to make.
    "SELECT len(range(20000000000))",
    "SELECT len(range(2 * 10000000000))",
    "SELECT len(main.generate_series(0, n, 2)) FROM (SELECT 30000000000 AS n)",
    "SELECT list_transform([30000000000], lambda n: len(range(n)))",
    "SELECT len(range(DATE '1000-01-01', DATE '9000-01-01', INTERVAL 1 SECOND))",
    "SELECT count(*) FROM unnest(range(10000000000 + 1))",
    "SELECT length(repeat('x', 4000000000))",
    "SELECT length(repeat(repeat(repeat('x', 1000000), 1000), 4))",
    "SELECT length(rpad('x', 2000000000, 'y'))",
    "SELECT len(list_resize([1], 1000000000 + id)) FROM users",
]


@pytest.fixture
def service(make_settings: MakeSettings) -> Any:
    settings = make_settings(
        ingest__http_port=0,
        wal__free_bytes_min=0,
        query__time_ms_max=150,
        query__memory_bytes_max=64 << 20,
        query__concurrent_max=1,
        query__rows_max=10_000,
    )
    with serving(settings) as made:
        made.send("users", b'{"id": 1, "name": "Ada"}\n').raise_for_status()
        yield made


def ask(service: Serving, sql: str) -> httpx.Response:
    return service.client.post("/v1/query", json={"sql": sql})


def test_what_leads_elsewhere_is_refused(service: Serving) -> None:
    data = Path(service.intake.settings.data)
    pq.write_table(pa.table({"secret": ["x"]}), data / "outside.parquet")
    hostile = [*(each for each in HOSTILE if each != "SELECT * FROM users; --"), *MORE]
    assert len(set(hostile)) >= 150
    for text in hostile:
        answer = ask(service, text.replace("{data}", str(data)))
        assert answer.status_code in {400, 404, 413}, (text, answer.text[:200])
        assert "root:" not in answer.text
    assert not list(data.rglob("*escaped*"))
    assert ask(service, "SELECT id FROM users").json() == [{"id": 1}]


def test_what_never_ends_is_bounded(service: Serving) -> None:
    threads = threading.active_count()
    for text in BOMBS:
        answer = ask(service, text)
        assert answer.status_code == 400, text
    assert ask(service, "SELECT id FROM users").json() == [{"id": 1}]
    deadline = time.monotonic() + 10
    while threading.active_count() > threads + 2 or service.intake.queries.list():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    service.send("users", b'{"id": 2, "name": "Bob"}\n').raise_for_status()


def test_a_tenant_sees_its_own_tables_only(make_settings: MakeSettings) -> None:
    settings = make_settings(ingest__http_port=0, ingest__flight_port=0, wal__free_bytes_min=0)
    with Lake(settings) as lake, serving(settings) as service:
        lake.catalog.create_table("other.sales.orders", pa.schema([("id", pa.int64())]))
        for topic in ("acme.sales.orders", "other.sales.clicks"):
            service.send(topic, b'{"id": 1}\n').raise_for_status()
        with FlightServer(service.intake) as server, Client(server.url) as client:
            for ask_here in (lake.sql, client.sql):
                asked = ask_here("SELECT count(*) AS c FROM acme.sales.orders", tenant="acme")
                assert list(asked) == [{"c": 1}]
                shown = ask_here("SHOW TABLES", tenant="acme")
                assert list(shown) == [{"name": "acme.sales.orders"}]
        for text in (
            "SELECT * FROM other.sales.orders",
            "SELECT * FROM other.sales.clicks",
            "SELECT * FROM acme.sales.orders, other.sales.orders",
            "SELECT * FROM orders",
            "SELECT * FROM other.sales.orders AT (VERSION => 1)",
            "WITH x AS (FROM OTHER.Sales.orders) FROM x",
        ):
            for fresh in (True, False):
                order = {"sql": text, "tenant": "acme", "fresh": fresh}
                refused = service.client.post("/v1/query", json=order)
                assert refused.status_code == 404, text
                assert "mean 'other" not in refused.text


def test_a_tenant_sees_and_cancels_its_own_queries_only(make_settings: MakeSettings) -> None:
    settings = make_settings()
    with Lake(settings) as lake, closing(Queries(settings, lambda: lake.catalog)) as queries:
        # Too much to be worked out ahead.
        asked = Question("SELECT repeat('x', 1000) FROM range(200000)", tenant="acme")
        with closing(queries.ask(asked)) as answer:
            assert [each.id for each in queries.list("acme")] == [answer.id]
            assert queries.list("other") == []
            with pytest.raises(NotFound):
                queries.cancel(answer.id, "other")
            queries.cancel(answer.id, "acme")
            with pytest.raises(InvalidRequest, match="cancelled"):
                list(answer.batches())


# Made step by step, of which DuckDB does not count the steps; each takes a gigabyte or more.
LARGE = [
    "WITH RECURSIVE t(s) AS (SELECT 'x' UNION ALL SELECT s || s FROM t) SELECT max(s) FROM t",
    "SELECT length(list_reduce(range(31)::VARCHAR[], lambda a, b: a || a))",
]


@pytest.mark.torture
@pytest.mark.parametrize("text", LARGE)
def test_a_service_outlives_large_values(service: Serving, text: str) -> None:
    assert ask(service, text).status_code in {200, 400}
    assert ask(service, "SELECT id FROM users").json() == [{"id": 1}]
