"""The same table asked by Calve, Spark SQL, DataFusion, Polars and PyIceberg.

    python examples/other_engines.py

DataFusion and Polars are packages of their own: `pip install 'datafusion>=53,<54' polars`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable

import calve

QUESTION = "select country, count(*) as orders from orders group by country order by country"
ORDERS = [
    {"id": 1, "country": "de", "amount": 9.5},
    {"id": 2, "country": "fr", "amount": 16.0},
    {"id": 3, "country": "de", "amount": 0.25},
]


def by_calve(lake: calve.Lake) -> Iterable[tuple[str, int]]:
    return ((row["country"], row["orders"]) for row in lake.sql(QUESTION))


def by_spark(lake: calve.Lake) -> Iterable[tuple[str, int]]:
    return ((row.country, row.orders) for row in lake.spark().sql(QUESTION).collect())


def by_datafusion(lake: calve.Lake) -> Iterable[tuple[str, int]]:
    from datafusion import SessionContext

    context = SessionContext()
    context.register_table("orders", lake.catalog.load_table("orders"))
    found = context.sql(QUESTION).to_pydict()
    return zip(found["country"], found["orders"], strict=True)


def by_polars(lake: calve.Lake) -> Iterable[tuple[str, int]]:
    import polars as pl

    orders = pl.scan_iceberg(lake.catalog.load_table("orders"))
    counted = orders.group_by("country").agg(pl.len()).sort("country")
    return ((country, count) for country, count in counted.collect().rows())


def by_pyiceberg(lake: calve.Lake) -> Iterable[tuple[str, int]]:
    orders = lake.catalog.load_table("orders").scan(selected_fields=("country",)).to_arrow()
    counted = orders.group_by("country").aggregate([([], "count_all")]).sort_by("country")
    return ((row["country"], row["count_all"]) for row in counted.to_pylist())


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, calve.open(directory) as lake:
        columns = {"id": "long", "country": "string", "amount": "double"}
        lake.tables.create_table("orders", columns)
        lake.tables.insert_data("orders", ORDERS)
        for ask in (by_calve, by_spark, by_datafusion, by_polars, by_pyiceberg):
            print(f"{ask.__name__.removeprefix('by_'):<12}{list(ask(lake))}")


if __name__ == "__main__":
    main()
