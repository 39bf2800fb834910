"""Rows of a topic into PostgreSQL, each exactly once: the offset is stored with the result.

    python examples/exactly_once.py postgresql://user:password@host/database DIRECTORY

Adds the orders of the lake in a directory to totals by country. It can be killed at any moment and
started again: rows that come again are known by their offsets, which one transaction stores
together with what was made of them.
"""

from __future__ import annotations

import sys

import psycopg

import calve

TABLES = (
    "create table if not exists totals (country text primary key, cents bigint not null)",
    "create table if not exists progress (partition int primary key, next_offset bigint not null)",
)


def main(database_url: str, directory: str) -> None:
    with (
        psycopg.connect(database_url, autocommit=True) as database,
        calve.open(directory) as lake,
        lake.subscribe("orders", "totals", follow=False) as orders,
    ):
        for statement in TABLES:
            database.execute(statement)
        for batch in orders:
            store(database, batch)
            orders.ack(batch)  # lets the next run begin here; what counts is stored already


def store(database: psycopg.Connection, batch: calve.Batch) -> None:
    with database.transaction():
        done = stored_offset(database, batch.partition)
        if done >= batch.next_offset:
            return  # it came again, and all of it was stored before
        rows = batch.since(done).to_arrow()
        sums = rows.group_by("country").aggregate([("cents", "sum")]).to_pylist()
        for each in sums:
            database.execute(
                "insert into totals values (%(country)s, %(cents_sum)s) on conflict (country) "
                "do update set cents = totals.cents + excluded.cents",
                each,
            )
        database.execute(
            "update progress set next_offset = %s where partition = %s",
            (batch.next_offset, batch.partition),
        )


def stored_offset(database: psycopg.Connection, partition: int) -> int:
    """How far the totals are; nobody else changes that until the transaction ends."""
    database.execute("insert into progress values (%s, 0) on conflict do nothing", (partition,))
    found = database.execute(
        "select next_offset from progress where partition = %s for update", (partition,)
    ).fetchone()
    assert found is not None
    offset: int = found[0]
    return offset


if __name__ == "__main__":
    main(*sys.argv[1:])
