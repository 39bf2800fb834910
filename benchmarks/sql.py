"""SQL that sees every acknowledged row: how soon, at what cost, and for how many at once.

    .venv/bin/python -m benchmarks.sql [--only visible,tail,queries,clients] [--rows 10000000]

`visible` is the time from an acknowledgement to an answer that has the row, over the service.
`tail` is the same question over table and log and over the table alone, in turns. `queries` is
questions 1, 3 and 6 of TPC-H over data of its shape at scale 1, against DuckDB on the same Parquet
files. `clients` is 32 clients in another process who ask small questions for some seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.reader import fill
from calve.client import Client
from calve.lake import Lake
from calve.settings import load_settings

_DAY_1992 = 8035  # days since 1970
_QUESTIONS = {
    "1": """SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice),
        sum(l_extendedprice * (1 - l_discount)),
        sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)), avg(l_quantity),
        avg(l_extendedprice), avg(l_discount), count(*)
        FROM {lineitem} WHERE l_shipdate <= DATE '1998-09-02'
        GROUP BY ALL ORDER BY ALL""",
    "3": """SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate
        FROM {customer}, {orders}, {lineitem}
        WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
        AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
        GROUP BY l_orderkey, o_orderdate ORDER BY revenue DESC, o_orderdate LIMIT 10""",
    "6": """SELECT sum(l_extendedprice * l_discount) FROM {lineitem}
        WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
        AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24""",
}


@contextmanager
def new_lake() -> Iterator[Lake]:
    with tempfile.TemporaryDirectory() as directory:
        flags = {
            "data": directory,
            "wal.free_bytes_min": 0,
            "ingest.flight_port": 0,
            "ingest.http_port": 0,
        }
        with Lake(load_settings(flags=flags, environ={}).settings) as lake:
            yield lake


def told(times: list[float]) -> str:
    ordered = sorted(times)
    p50, p99 = (ordered[int(len(ordered) * share)] * 1000 for share in (0.5, 0.99))
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms"


def visible(rounds: int) -> None:
    with new_lake() as lake, lake.serve() as service, Client(service.addresses.flight) as client:
        client.produce("orders", [{"id": -1}]).result()
        client.sql("select max(id) from orders").to_arrow()
        times: list[float] = []
        for number in range(rounds):
            client.produce("orders", [{"id": number}]).result()
            started = time.perf_counter()
            (found,) = client.sql("select max(id) as id from orders")
            times.append(time.perf_counter() - started)
            assert found == {"id": number}
        print(f"acknowledged to visible in SQL, {rounds:,} rows one by one: {told(times)}")


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turns(ours: Callable[[], object], other: Callable[[], object], rounds: int) -> list[float]:
    found = [(timed(ours), timed(other)) for _ in range(rounds)]
    return [statistics.median(each) for each in zip(*found, strict=True)]


def tail(rows: int, tail_rows: int, rounds: int) -> None:
    questions = (
        "select city, sum(price), count(*) from orders group by city",
        "select count(*), max(name) from orders where price > 1000",
    )
    with new_lake() as lake:
        fill(lake, "orders", rows, max(1, rows // 1_000_000))
        for start in range(0, tail_rows, 1_000):
            ids = np.arange(rows + start, rows + start + 1_000)
            names = [f"name-{n % 9973}" for n in range(1_000)]
            cities = [f"city-{n % 97}" for n in range(1_000)]
            given = {"id": ids, "price": ids * 0.25, "name": names, "city": cities}
            lake.produce("orders", pa.table(given))
        for question in questions:

            def fresh(question: str = question) -> object:
                return lake.sql(question).to_arrow()

            def committed(question: str = question) -> object:
                return lake.sql(question, fresh=False).to_arrow()

            first = timed(fresh)
            ours, other = in_turns(fresh, committed, rounds)
            print(
                f"{rows:,} rows and {tail_rows:,} in the log: {ours * 1000:.0f} ms (the first time "
                f"{first * 1000:.0f}), the table alone {other * 1000:.0f} ms: {ours / other:.2f} x"
            )


def dates(random: np.random.Generator, count: int) -> pa.Array:
    return pa.array((random.integers(0, 2_500, count) + _DAY_1992).astype(np.int32), pa.date32())


def cents(values: np.ndarray) -> pa.Array:
    return pa.array(values.astype(np.float64)).cast(pa.decimal128(15, 2))


def tpch(lake: Lake, scale: float) -> None:
    """Tables of TPC-H's shape, with the columns that the questions use."""
    random = np.random.default_rng(0)
    lines, orders, customers = (int(n * scale) for n in (6_000_000, 1_500_000, 150_000))
    segments = np.array(["BUILDING", "AUTOMOBILE", "MACHINERY", "HOUSEHOLD", "FURNITURE"])
    flags, states = np.array(["A", "N", "R"]), np.array(["F", "O"])
    small = pa.decimal128(15, 2)
    tables = {
        "customer": {
            "c_custkey": pa.array(np.arange(customers)),
            "c_mktsegment": pa.array(segments[random.integers(0, 5, customers)]),
        },
        "orders": {
            "o_orderkey": pa.array(np.arange(orders)),
            "o_custkey": pa.array(random.integers(0, customers, orders)),
            "o_orderdate": dates(random, orders),
        },
        "lineitem": {
            "l_orderkey": pa.array(np.sort(random.integers(0, orders, lines))),
            "l_quantity": cents(random.integers(1, 51, lines)),
            "l_extendedprice": cents(random.integers(900, 105_000, lines)),
            "l_discount": pa.array(random.integers(0, 11, lines) / 100).cast(small),
            "l_tax": pa.array(random.integers(0, 9, lines) / 100).cast(small),
            "l_returnflag": pa.array(flags[random.integers(0, 3, lines)]),
            "l_linestatus": pa.array(states[random.integers(0, 2, lines)]),
            "l_shipdate": dates(random, lines),
        },
    }
    for name, columns in tables.items():
        rows = pa.table(columns)
        lake.tables.create_table(name, rows.schema)
        lake.tables.insert_data(name, rows)


def queries(scale: float, rounds: int) -> None:
    with new_lake() as lake, duckdb.connect() as direct:
        tpch(lake, scale)
        names = ("customer", "orders", "lineitem")
        files = {
            name: "read_parquet({})".format(
                [
                    task.file.file_path.removeprefix("file://")
                    for task in lake.catalog.load_table(name).scan().plan_files()
                ]
            )
            for name in names
        }
        for number, question in _QUESTIONS.items():
            here = question.format(**{name: name for name in names})
            there = question.format(**files)

            def ours(text: str = here) -> object:
                return lake.sql(text).to_arrow()

            def others(text: str = there) -> object:
                return direct.execute(text).to_arrow_table()

            ours(), others()
            found, other = in_turns(ours, others, rounds)
            print(
                f"TPC-H {number} at scale {scale:g}: {found * 1000:.0f} ms, DuckDB on the files "
                f"{other * 1000:.0f} ms: {found / other:.2f} x"
            )


def clients(seconds: float, count: int) -> None:
    with new_lake() as lake, lake.serve() as service:
        rows = [{"id": n, "city": f"city-{n % 97}"} for n in range(10_000)]
        lake.produce("orders", rows)
        arguments = ["--ask", service.addresses.flight or "", str(seconds), str(count)]
        command = [sys.executable, "-m", "benchmarks.sql", *arguments]
        done = subprocess.run(
            command, check=True, capture_output=True, cwd=Path(__file__).parents[1]
        )
        times: list[float] = json.loads(done.stdout)
        rate = len(times) / seconds
        print(f"{count} clients at once, small questions: {rate:.0f} queries/s, {told(times)}")


def ask_all(url: str, seconds: float, count: int) -> None:
    times: list[float] = []
    end = time.monotonic() + seconds

    def ask(number: int) -> None:
        with Client(url) as client:
            while time.monotonic() < end:
                started = time.perf_counter()
                question = "select count(*) as n from orders where city = ?"
                (found,) = client.sql(question, [f"city-{number}"])
                assert found["n"] in {103, 104}
                times.append(time.perf_counter() - started)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    print(json.dumps(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="visible,tail,queries,clients")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--tail", type=int, default=100_000)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ask", nargs=3, metavar=("URL", "SECONDS", "CLIENTS"))
    given = parser.parse_args()
    if given.ask:
        ask_all(given.ask[0], float(given.ask[1]), int(given.ask[2]))
        return
    wanted = given.only.split(",")
    if "visible" in wanted:
        visible(500)
    if "tail" in wanted:
        tail(given.rows, given.tail, given.rounds)
    if "queries" in wanted:
        queries(given.scale, given.rounds)
    if "clients" in wanted:
        clients(5.0, 32)


if __name__ == "__main__":
    main()
