"""The condition language: what can be written, what is refused, and what a condition is."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys

import duckdb
import pytest

from calve.condition import FUNCTIONS, SESSION, Column, parse_condition
from calve.condition.grammar import NODES_MAX, TEXT_BYTES_MAX
from calve.errors import InvalidRequest

COLUMNS = (
    Column("id", "BIGINT"),
    Column("name", "VARCHAR"),
    Column("price", "DECIMAL(10,2)"),
    Column("score", "DOUBLE"),
    Column("active", "BOOLEAN"),
    Column("day", "DATE"),
    Column("made", "TIMESTAMP"),
    Column("seen", "TIMESTAMP WITH TIME ZONE"),
    Column("tags", "VARCHAR[]"),
    Column("attributes", "MAP(VARCHAR, VARCHAR)"),
    Column("address", 'STRUCT(city VARCHAR, "post code" VARCHAR, geo STRUCT(lat DOUBLE))'),
    Column("select", "INTEGER"),
    Column('a "quoted" näme', "INTEGER"),
    Column("comment", "VARCHAR"),
    Column("a.b", "INTEGER"),
)
ROWS = """
    SELECT * FROM (VALUES
      (1, 'ada', 1.50, 0.5::DOUBLE, true, DATE '2024-01-01', TIMESTAMP '2024-01-01 10:00:00',
       TIMESTAMPTZ '2024-01-01 10:00:00+00', ['x', 'y'], MAP {'k': 'v'},
       {'city': 'Bonn', 'post code': '53111', 'geo': {'lat': 50.7::DOUBLE}}, 1, 2, 'first', 7),
      (2, 'Bob''s', 20.00, 'nan'::DOUBLE, false, DATE '2024-02-01', NULL, NULL, [], MAP {}, NULL, 2, 3, NULL, 8),
      (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
    ) AS t(id, name, price, score, active, day, made, seen, tags, attributes, address, "select",
           "a ""quoted"" näme", comment, "a.b")
"""
ACCEPTED = {
    "true": {1, 2, 3},
    "id = 1": {1},
    "ID = 1": {1},
    "id != 1": {2, 3},
    "name = 'Bob''s'": {2},
    "name IS NULL": {3},
    "name ISNULL": {3},
    "name NOTNULL": {1, 2},
    "price > 1.5": {2},
    "NOT price > 1.5": {1},
    "(price > 1.5) IS NOT TRUE": {1, 3},
    "score = 'nan'::DOUBLE": {2},
    "score > 1e308": {2},
    "active": {1},
    "NOT active": {2},
    "active IS NOT TRUE": {2, 3},
    "active IS DISTINCT FROM true": {2, 3},
    "id IN (1, 3, NULL)": {1, 3},
    "id NOT IN (1, NULL)": set(),
    "id BETWEEN 2 AND 3 AND active IS NULL": {3},
    "name LIKE 'a%'": {1},
    "name NOT LIKE 'a%'": {2},
    "name ILIKE 'A%' OR name LIKE '%!_' ESCAPE '!'": {1},
    "name || '!' = 'ada!'": {1},
    "day = '2024-01-01'": {1},
    "day + INTERVAL 1 MONTH = DATE '2024-02-01'": {1},
    "made >= TIMESTAMP '2024-01-01 10:00:00'": {1},
    "seen = '2024-01-01 12:00:00+02'": {1},
    "seen = '2024-01-01 10:00:00'": {1},
    "(seen AT TIME ZONE 'Europe/Berlin') = TIMESTAMP '2024-01-01 11:00:00'": {1},
    "extract(year FROM day) = 2024": {1, 2},
    "date_trunc('month', day) = DATE '2024-02-01'": {2},
    "tags[1] = 'x'": {1},
    "len(tags) = 0": {2},
    "list_contains(tags, 'y')": {1},
    "attributes['k'] = 'v'": {1},
    "address.city = 'Bonn'": {1},
    "address.\"Post Code\" = '53111'": {1},
    "address.geo.lat > 50": {1},
    "address IS NULL": {2, 3},
    '"select" = 1': {1},
    '"a ""quoted"" näme" = 3': {2},
    "comment = 'first'": {1},
    '"a.b" = 8': {2},
    "CASE WHEN id = 1 THEN active ELSE true END": {1, 2, 3},
    "CASE id WHEN 1 THEN 5 ELSE 6 END = 6": {2, 3},
    "if(id = 1, 'a', 'b') = 'a'": {1},
    "coalesce(name, 'none') = 'none'": {3},
    "nullif(id, 1) IS NULL": {1},
    "CAST(id AS VARCHAR) = '2'": {2},
    "TRY_CAST(name AS INTEGER) IS NULL": {1, 2, 3},
    "(-id) ** 2 < 0": set(),
    "id - -1 = 2": {1},
    "id - (1 - 1) = 1": {1},
    "id / 2 = 0.5": {1},
    "id // 2 = 1": {2, 3},
    "id % 2 = 0": {2},
    "(id & 1) = 1": {1, 3},
    "id = 1 OR id = 2 AND active": {1},
    "NOT id = 1 AND id < 3": {2},
    "(id = 1) = active": {1, 2},
    "1_000 > id": {1, 2, 3},
    "regexp_matches(name, '^[a-c]')": {1},
    "hex('a'::BLOB) = '61' AND id = 1": {1},
    "replace(name, 'a', '') = 'd'": {1},
}
HOSTILE = [
    # other tables and queries
    "id IN (SELECT id FROM users)", "EXISTS (SELECT 1)", "(SELECT true)", "id = (SELECT max(id) FROM t)",
    "id IN (FROM users)", "id = ANY(SELECT 1)", "(WITH x AS (SELECT 1) SELECT * FROM x) = 1", "(TABLE users) = 1",
    "(VALUES (1)) = 1", "id IN (VALUES (1), (2))", "true UNION SELECT 1", "1=1) OR (SELECT true", "users.id = 1",
    "ARRAY(SELECT 1) = [1]", "id IN users", "(FROM 'secret.csv' SELECT 1) = 1",
    # several statements
    "true; DROP TABLE users", "true;", "1=1; ATTACH 'x.db'", "; true", "true; -- ", "true;;",
    # statements
    "DROP TABLE users", "DELETE FROM users", "ATTACH 'evil.db' AS e", "COPY users TO 'x.csv'", "PRAGMA database_list",
    "SET threads = 1", "INSTALL httpfs", "LOAD httpfs", "CALL pragma_version()", "EXPORT DATABASE 'x'",
    "CREATE TABLE x AS SELECT 1", "INSERT INTO users VALUES (1)", "UPDATE users SET id = 1", "SELECT true",
    # files, settings, the machine
    "read_csv('/etc/passwd') IS NOT NULL", "read_text('/etc/passwd') = 'x'", "read_blob('x') IS NULL", "glob('*') = 'x'",
    "name = getenv('HOME')", "current_setting('s3_secret_access_key') = 'x'", "parquet_scan('x') IS NULL",
    "iceberg_scan('x') IS NULL", "query('SELECT 1') = 1", "query_table('users') = 1", "duckdb_secrets() IS NULL",
    "which_secret('s3://x', 's3') IS NULL", "main.read_csv('x') IS NULL", "\"read_csv\"('x') IS NULL", "sniff_csv('x') = 1",
    "write_log('x') IS NULL", "pg_catalog.version() = 'x'", "version() = 'x'", "getvariable('x') = 1", "json_execute_serialized_sql('x') = 1",
    # never the same twice
    "random() < 0.5", "now() > seen", "current_timestamp > seen", "CURRENT_DATE = day", "today() = day", "uuid() = name",
    "nextval('s') = 1", "localtimestamp > made", "gen_random_uuid() = name", "age(seen) > INTERVAL 1 DAY", "current_user = 'x'",
    "localtime > '10:00'", "session_user = 'x'",
    # many rows
    "count(*) > 1", "sum(id) > 1", "max(id) = id", "row_number() OVER () = 1", "sum(id) OVER (PARTITION BY name) > 1",
    "count(*) FILTER (WHERE true) = 1", "unnest([1, 2]) = 1", "lag(id) OVER () = 1", "count(DISTINCT id) = 1",
    # parameters, stars, places
    "id = ?", "id = $1", "id = :x", "id = @x", "* = 1", "users.* = 1", "COLUMNS('.*') = 1", "#1 = 1", "id = $name", "COLUMNS(*) > 1",
    # hidden things
    "true -- ", "true /* x */", "/* x */ true", "id = 1 --\nOR true", "true /*+ hint */", "'a' 'b' = name",
    # larger than life
    "repeat('x', 1000000000) = name", "range(1000000000) IS NULL", "lpad('x', 1000000000, 'x') = name",
    "generate_series(1, 1000000000) IS NULL", "hex(hex(hex(name))) = ''", "replace(name, 'a', 'aaaaaaaaa') = ''",
    "printf('%1000000000d', 1) = ''", "format('{:1000000000}', 1) = ''", "replace(name, name, name) = ''",
    # lambdas, named arguments, methods, types of somebody else
    "list_filter(tags, x -> true) = tags", "[x FOR x IN tags] = tags", "list_filter(tags, lambda x: true) = tags",
    "struct_pack(a := 1).a = 1", "name.upper() = 'A'", "id::my_type = 1", "id::JSON = 1",
    "id::ENUM('a') = 'a'", "name COLLATE nocase = 'A'", "name SIMILAR TO 'a'", "name GLOB '*'", "id::INTEGER[] = [1]", "CAST(id AS regclass) = 1",
    # not a condition
    "", "   ", "name", "'text'", "id", "1", "NULL::INTEGER", "id +", "id = ", "(id = 1", "id = 1)", "id = 'abc'", "day = 'tomorrow'",
    "id AS x", "id = 1 ORDER BY id", "id = 1 LIMIT 1", "id = 1 WHERE true", "name > 1 2", "AND", "\x00", "id = '\x00'", "\ud800", "id = 1, true",
    "(1, 2) = (1, 2)", "name BETWEEN SYMMETRIC 'a' AND 'b'", "x'41' = name", "E'a' = name", "$$a$$ = name", "nope = 1", "address.nope = 1",
    "id.x = 1", "name[", "INTERVAL (id) DAY > INTERVAL 1 DAY", "id IN ()", "id LIKE ANY ('a')", "TRY(id = 1)", "id = 1 = active", "1 < id < 3", "-id ** 2 < 0", "id & 1 = 1", "id == 1", "id = id IN (1, 2)",
]  # fmt: skip


@pytest.fixture(scope="module")
def table() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute(SESSION)
    connection.execute(f"CREATE TABLE address AS {ROWS}")
    return connection


@pytest.mark.parametrize("text", ACCEPTED)
def test_a_condition_chooses_the_rows_that_duckdb_would(
    text: str, table: duckdb.DuckDBPyConnection
) -> None:
    condition = parse_condition(text, COLUMNS)
    found = table.execute(f"SELECT id FROM address WHERE {condition.duckdb_sql()}").fetchall()
    assert {number for (number,) in found} == ACCEPTED[text]
    if "." not in text:
        raw = table.execute(f"SELECT id FROM address WHERE {text}").fetchall()
        assert found == raw


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_condition_is_refused_before_duckdb_sees_it(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    from calve.condition import binding

    real = binding._cursor

    class Watched:
        def execute(self, sql: str) -> object:
            seen.append(sql)
            return real().execute(sql)

    monkeypatch.setattr(binding, "_cursor", Watched)
    with pytest.raises(InvalidRequest) as refused:
        parse_condition(text, COLUMNS)
    assert refused.value.message
    assert not [
        sql
        for sql in seen
        if re.search(r"read_|attach|drop|getenv|glob\(|users", sql, re.IGNORECASE)
    ]


def test_there_are_enough_hostile_conditions() -> None:
    assert len(set(HOSTILE)) >= 60


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("nam = 'x'", "there is no column 'nam'", "did you mean 'name'?"),
        ("address.town = 'x'", "there is no field of 'address' 'town'", "there are: 'city'"),
        ("now() > seen", "cannot call now()", "differently each time"),
        ("sum(id) > 1", "cannot call sum()", "many rows"),
        ("id IN (SELECT 1)", "a sub-query", "one row of one table"),
        ("id = ?", "a parameter", "write the value"),
        ("name", "of type VARCHAR", "compare it"),
        ("id = 'abc'", "Could not convert string 'abc'", "CAST"),
        ("id = 1 -- x", "a comment", "leave it out"),
        ("id ! 1", "cannot be read", "an expression such as"),
        ("name = 'a", "a quote in the condition is not closed", "doubled: 'it''s'"),
        ("name = 'it's'", "a quote in the condition is not closed", "doubled: 'it''s'"),
        ("na\"me = 'a'", "a quote in the condition is not closed", "its other one"),
        ("name = '\udcff'", "not valid Unicode", "UTF-8"),
        ("name = \"xyzzy\"", "there is no column 'xyzzy'", "single quotes"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_piece_and_says_what_to_do(text: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_condition(text, COLUMNS)
    assert message in refused.value.message
    assert hint in (refused.value.hint or "")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + "true" + ")" * 5000,
        "NOT " * 5000 + "true",
        "- " * 5000 + "id = 1",
        "CASE WHEN " * 2000 + "true" + " THEN true END" * 2000,
        "id" + " + id" * 4000 + " = 1",
        "abs(" * 3000 + "id" + ")" * 3000 + " = 1",
        "id" + "::BIGINT" * 3000 + " = 1",
        "true" + " IS NULL" * 3000,
        "id" + "[1]" * 3000 + " = 1",
        "address" + ".x" * 5000 + " = 1",
        "id IN (" + ", ".join(["1"] * NODES_MAX) + ")",
        "name = '" + "x" * TEXT_BYTES_MAX + "'",
        "true = (" * 30 + "true" + ")" * 30,
        "[" * 1000 + "]" * 1000,
        "~" * 3000 + "id = 1",
        "id = " * 3000 + "1",
    ],
)
def test_a_monster_is_refused_and_not_a_crash(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_condition(text, COLUMNS)


def test_a_caller_deep_in_the_stack_gets_no_recursion_error() -> None:
    def deeper(left: int) -> None:
        if left:
            deeper(left - 1)
        else:
            parse_condition("abs(abs(abs(id))) = 1 AND (((((active)))))", COLUMNS)

    for left in range(0, sys.getrecursionlimit() - 100, 25):
        try:
            deeper(left)
        except InvalidRequest:
            continue


def test_a_long_chain_is_not_deep() -> None:
    condition = parse_condition(" OR ".join(f"id = {n}" for n in range(1500)), COLUMNS)
    assert condition.columns == ("id",)
    condition.facts()
    assert condition.spark_sql().count(" OR ") == 1499


def test_names_that_differ_by_case_only_are_refused() -> None:
    twins = (Column("a", "INTEGER"), Column("A", "INTEGER"))
    with pytest.raises(InvalidRequest, match="could be"):
        parse_condition("a = 1", twins)


def test_a_condition_is_a_value() -> None:
    one = parse_condition("id = 1 AND address.city = 'x'", COLUMNS)
    same = parse_condition("  (ID = 1) and Address.City = 'x'", COLUMNS)
    other = parse_condition("id = 2", COLUMNS)
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != "id = 1"
    assert repr(other) == "Condition('id = 2')"
    assert one.columns == ("id", "address")
    again = pickle.loads(pickle.dumps(one))
    assert again == one
    assert again.duckdb_sql() == one.duckdb_sql()


def test_the_same_text_over_another_type_is_another_condition() -> None:
    assert parse_condition("a = '1'", [Column("a", "INTEGER")]) != parse_condition(
        "a = '1'", [Column("a", "VARCHAR")]
    )


def test_every_function_is_duckdbs_and_always_answers_the_same() -> None:
    known = {
        name: (set(kinds), set(stability), any(effects))
        for name, kinds, stability, effects in duckdb.connect().execute(
            "SELECT function_name, list(DISTINCT function_type), list(DISTINCT stability),"
            " list(has_side_effects) FROM duckdb_functions() GROUP BY ALL"
            .replace("GROUP BY ALL", "GROUP BY function_name")
        ).fetchall()
    }  # fmt: skip
    written_by_the_parser = {"coalesce", "ifnull"}
    macros = {"nullif", "split_part", "date_add"}
    for names in FUNCTIONS.values():
        for name in set(names) - written_by_the_parser - macros:
            assert known[name] == ({"scalar"}, {"CONSISTENT"}, False), name


def test_every_name_in_the_table_can_be_a_column() -> None:
    for name in ("order", "a b", "ü", 'x"y', "x'y", "DROP TABLE x", "--", "a;b", "{}", "1", "\\"):
        quoted = '"' + name.replace('"', '""') + '"'
        condition = parse_condition(f"{quoted} = 1", [Column(name, "INTEGER")])
        with duckdb.connect() as connection:
            found = connection.execute(
                f"SELECT {condition.duckdb_sql()} FROM (SELECT 1 AS {quoted})"
            )
            assert found.fetchall() == [(True,)]
        assert condition.columns == (name,)


def test_times_without_a_zone_are_utc_on_a_machine_elsewhere() -> None:
    code = """
from calve.condition import Column, parse_condition
columns = [Column("t", "TIMESTAMP WITH TIME ZONE")]
print(parse_condition("t > TIMESTAMPTZ '1970-01-01 00:00:01'", columns).facts().value)
"""
    elsewhere = {**os.environ, "TZ": "America/New_York"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=elsewhere, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "1000000"
