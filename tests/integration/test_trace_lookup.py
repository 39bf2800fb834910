"""One trace of a table with hundreds of files: few are opened, and the answer is the whole one."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from calve.access import Caller
from calve.changes import insert_rows
from calve.ingest.otlp.telemetry import Telemetry
from calve.lake import Lake
from calve.model import TableName
from calve.query.engine import connect
from calve.settings import load_settings
from calve.tables import lookup
from calve.tables.bloom import may_hold, read_filters
from calve.tables.filter_store import FilterStore
from calve.tables.lookup import OffsetRange, ranges_with
from calve.tables.views import view_table
from tests.conftest import MakeSettings
from tests.fakes.pipelines import Site, site
from tests.telemetry import a_request

COMMITS = 60
ROWS = 24  # of a commit
SPANS = 4  # of a trace that begins in one commit and ends in the next
RARE = "nightly"


def trace(number: int) -> str:
    return random.Random(f"trace {number}").randbytes(16).hex()


def fill(made: Site, signal: str, commits: int) -> None:
    """Commits with traces of which most are in one of them."""
    pipeline = made.pipeline()
    for number in range(commits):
        request, records = a_request(signal, records=ROWS)
        for at, record in enumerate(records):
            record.trace_id = bytes.fromhex(
                trace(number + at % 2 if at < SPANS else -number * ROWS - at)
            )
            record.span_id = random.Random(f"{number}.{at}").randbytes(8)
        resource = getattr(request, "resource_spans" if signal == "traces" else "resource_logs")[0]
        service = RARE if number == commits // 2 else f"service{number % 3}"
        resource.resource.attributes.add(key="service.name").value.string_value = service
        body = request.SerializeToString()
        with made.intake.admission.hold(len(body)) as admitted:
            Telemetry(made.intake).take(
                signal, body, caller=Caller.of_host(), dataset=None, admitted=admitted
            )
        made.intake.request_flush(TableName.parse(signal))
        assert pipeline.run_cycle().rows == ROWS


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Lake]]:
    where = tmp_path_factory.mktemp("traced")
    flags = {"data": str(where / "lake"), "cache": str(where / "cache"), "wal.free_bytes_min": 0}
    settings = load_settings(flags=flags, environ={}).settings
    with site(settings) as made, Lake(settings) as lake:
        fill(made, "traces", COMMITS)
        fill(made, "logs", COMMITS // 4)
        yield made, lake


def files(made: Site, table: str) -> list[Path]:
    tasks = made.table(table).scan().plan_files()
    return [Path(each.file.file_path.removeprefix("file://")) for each in tasks]


def opened(lake: Lake, statement: str) -> int:
    """How many files DuckDB opened."""
    (plan,) = lake.sql(f"EXPLAIN ANALYZE {statement}").to_arrow().to_pylist()
    found = re.findall(r"Total Files Read: (\d+)", str(plan))
    assert found or "EMPTY_RESULT" in str(plan)
    return sum(map(int, found))


@pytest.mark.parametrize("table", ["traces", "logs"])
def test_a_trace_opens_the_files_that_have_it_and_hardly_others(
    traced: tuple[Site, Lake], table: str
) -> None:
    made, lake = traced
    commits = len(files(made, table))
    assert commits in {COMMITS, COMMITS // 4}
    counts = []
    for number in range(1, commits, 7):
        asked = f"SELECT span_id FROM {table} WHERE trace_id = '{trace(number)}'"
        assert len(lake.sql(asked)) == SPANS
        counts.append(opened(lake, asked))
    # In two files; a filter may be wrong of one in a hundred.
    assert min(counts) == 2
    assert sum(counts) / len(counts) <= 2 + 3 * commits / 100
    assert opened(lake, f"SELECT * FROM {table} WHERE trace_id = 'absent'") <= 4


def both(number: int) -> list[OffsetRange]:
    """The offsets of the two commits that have a trace."""
    return [OffsetRange((number - 1) * ROWS, (number + 1) * ROWS - 1)]


def test_files_without_the_trace_need_not_even_be_there(traced: tuple[Site, Lake]) -> None:
    """Their filters were read once, by whichever process, and are not read again."""
    made, lake = traced
    number = next(
        n for n in range(10, COMMITS) if narrowed(lake, "traces", trace_id=trace(n)) == both(n)
    )
    asked = f"SELECT count(*) AS n FROM traces WHERE trace_id = '{trace(number)}'"
    assert [row["n"] for row in lake.sql(asked)] == [SPANS]
    others = [
        file
        for file in files(made, "traces")
        if int(file.name.split("-")[2]) // ROWS not in {number - 1, number}
    ]
    assert len(others) == COMMITS - 2
    hidden = {file: file.with_suffix(".hidden") for file in others}
    for file, place in hidden.items():
        file.rename(place)
    try:
        with Lake(lake.settings) as another:
            assert [row["n"] for row in another.sql(asked)] == [SPANS]
    finally:
        for file, place in hidden.items():
            place.rename(file)


def test_what_is_read_of_files_without_the_trace_is_footer_and_filter(
    traced: tuple[Site, Lake],
) -> None:
    """For a reader that has only the files, such as somebody's own DuckDB."""
    made, _ = traced
    connection = connect()
    connection.execute("CALL enable_logging('FileSystem')")
    location = made.table("traces").metadata_location
    asked = f"SELECT span_id FROM iceberg_scan('{location}') WHERE trace_id = '{trace(30)}'"
    assert len(connection.execute(asked).fetchall()) == SPANS
    reads = connection.execute(
        "SELECT DISTINCT path FROM duckdb_logs_parsed('FileSystem') "
        "WHERE op = 'READ' AND path LIKE '%.parquet'"
    ).fetchall()
    assert len(reads) > COMMITS / 2  # by bounds few are left out: ids are of every range
    assert 2 <= sum(reads_data(connection, path) for (path,) in reads) <= 2 + 3 * COMMITS / 100


def reads_data(connection: duckdb.DuckDBPyConnection, path: str) -> bool:
    """Whether anything before the file's filters was read."""
    (filters,) = duckdb.execute(
        f"SELECT min(bloom_filter_offset) FROM parquet_metadata('{path}')"
    ).fetchone() or (0,)
    (first,) = connection.execute(
        f"SELECT min(pos) FROM duckdb_logs_parsed('FileSystem') WHERE op = 'READ' AND path = '{path}'"
    ).fetchone() or (0,)
    return bool(int(first) < int(filters))


def test_a_service_that_runs_seldom_opens_few_files(traced: tuple[Site, Lake]) -> None:
    _, lake = traced
    asked = f"SELECT count(*) AS n FROM traces WHERE service_name = '{RARE}'"
    assert [row["n"] for row in lake.sql(asked)] == [ROWS]
    assert opened(lake, asked) <= 1 + 3 * COMMITS / 100
    common = "SELECT count(*) AS n FROM traces WHERE service_name = 'service1'"
    found = lake.sql("SELECT count(*) AS n FROM traces WHERE service_name LIKE 'service1%'")
    assert list(lake.sql(common)) == list(found)


def test_answers_are_those_of_the_whole_table(traced: tuple[Site, Lake]) -> None:
    _, lake = traced
    wanted = ", ".join(f"'{trace(number)}'" for number in range(3, COMMITS, 17))
    pairs = [
        (f"trace_id IN ({wanted})", f"trace_id || '' IN ({wanted})"),
        (
            f"trace_id = '{trace(9)}' AND kind IS NULL",
            f"trace_id LIKE '{trace(9)}%' AND kind IS NULL",
        ),
        (f"trace_id = '{trace(9)}' AND time > '2020-01-01'", f"trace_id LIKE '{trace(9)}%'"),
        ("trace_id = '' AND service_name = 'service1'", "false"),
    ]
    for narrowed, whole in pairs:
        found, expected = (
            lake.sql(f"SELECT *, _calve_offset FROM traces WHERE {each} ORDER BY _calve_offset")
            for each in (narrowed, whole)
        )
        assert found.to_arrow().to_pylist() == expected.to_arrow().to_pylist()
    joined = (
        "SELECT count(*) AS n FROM traces t JOIN logs l ON t.trace_id = l.trace_id "
        f"WHERE t.trace_id = '{trace(9)}' AND l.trace_id = '{trace(9)}'"
    )
    assert [row["n"] for row in lake.sql(joined)] == [SPANS * SPANS]


def narrowed(lake: Lake, table: str, **texts: str) -> list[OffsetRange] | None:
    view = view_table(lake.catalog.load_table(table))
    sought = {name: frozenset({text}) for name, text in texts.items()}
    return ranges_with(view, sought, lake.catalog.filters)


def test_rows_that_no_topic_brought_are_found_too(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings(wal__free_bytes_min=0, cache=str(tmp_path / "cache"))
    with site(settings) as made, Lake(settings) as lake:
        fill(made, "traces", 8)
        assert narrowed(lake, "traces", trace_id=trace(2)) == both(2)
        by_hand = pa.table({"trace_id": [trace(2)], "name": ["by hand"]})
        insert_rows(lake.catalog, "traces", by_hand, force=True)
        assert narrowed(lake, "traces", trace_id=trace(2)) is None
        assert narrowed(lake, "traces", trace_id=trace(5)) == both(5)
        asked = f"SELECT name FROM traces WHERE trace_id = '{trace(2)}'"
        assert sum(row["name"] == "by hand" for row in lake.sql(asked)) == 1
        assert len(lake.sql(asked)) == SPANS + 1


def test_filters_go_by_the_column_and_not_by_its_name(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    """A column that has the name of another one, which is gone, has no filters yet."""
    settings = make_settings(wal__free_bytes_min=0, cache=str(tmp_path / "cache"))
    with site(settings) as made, Lake(settings) as lake:
        fill(made, "traces", 6)
        table = lake.catalog.load_table("traces")
        with table.update_schema(allow_incompatible_changes=True) as update:
            update.rename_column("trace_id", "was")
            update.rename_column("span_id", "trace_id")
        sought = lake.sql("SELECT trace_id FROM traces LIMIT 1").to_arrow()["trace_id"][0].as_py()
        asked = f"SELECT count(*) AS n FROM traces WHERE trace_id = '{sought}'"
        assert [row["n"] for row in lake.sql(asked, fresh=False)] == [1]


def test_our_reading_of_filters_agrees_with_duckdbs(traced: tuple[Site, Lake]) -> None:
    made, _ = traced
    table = made.table("traces")
    field_id = table.schema().find_field("trace_id").field_id
    for task in list(table.scan().plan_files())[:3]:
        path = task.file.file_path
        filters = read_filters(table.io, path, field_id)
        for text in [*map(trace, range(40)), *(f"text {n}" for n in range(40))]:
            probe = f"SELECT bool_and(bloom_filter_excludes) FROM parquet_bloom_probe('{path.removeprefix('file://')}', 'trace_id', '{text}')"
            (is_excluded,) = duckdb.execute(probe).fetchone() or (None,)
            assert may_hold(filters, frozenset({text})) is not is_excluded


def test_many_ranges_become_few_and_leave_nothing_out() -> None:
    ranges = [OffsetRange(n * n * 10, n * n * 10 + 5) for n in range(50)]
    merged = lookup._merged(random.Random(0).sample(ranges, 50))
    assert len(merged) == lookup._RANGES_MAX
    assert all(any(m.first <= r.first and r.last <= m.last for m in merged) for r in ranges)
    assert all(one.last < other.first for one, other in pairwise(merged))


@pytest.mark.parametrize("trouble", ["damaged", "a directory", "read-only"])
def test_a_store_that_cannot_be_used_is_as_if_empty(tmp_path: Path, trouble: str) -> None:
    path = tmp_path / "filters.db"
    match trouble:
        case "damaged":
            path.write_bytes(b"no database" * 1000)
        case "a directory":
            path.mkdir()
        case "read-only":
            path = Path("/proc/calve/filters.db")
    store = FilterStore(path)
    store.keep({"a": b"1"})
    assert store.find(["a"]) == {}
    store.close()


def test_a_store_is_bounded_and_lets_the_oldest_go(tmp_path: Path) -> None:
    store = FilterStore(tmp_path / "filters.db", bytes_max=10_000)
    names = [f"file{n}" for n in range(100)]
    for name in names:
        store.keep({name: b"x" * 1_000})
    found: dict[str, Any] = FilterStore(tmp_path / "filters.db").find(names)
    assert 4 <= len(found) <= 11
    assert "file99" in found
    assert "file0" not in found
    store.close()
