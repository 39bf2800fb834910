"""A driver against a cluster, in a process of its own: rows over Flight, and one commit."""

from __future__ import annotations

import json
import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa

from calve.lake import Lake
from calve.pipeline.job import run_pieces
from calve.settings import load_settings
from tests.fakes.pieces import Feed, letters_of, succeeded

ROWS = 400_000
PIECES = 20


def main(data: str, master: str, package: str, python: str) -> None:
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.pyspark.python": python,
        "spark.executor.memory": "512m",
    }
    flags = {
        "data": data,
        "spark.master": master,
        "spark.package": package,
        "ingest.flight_port": 0,
        "ingest.http_port": 0,
        "wal.free_bytes_min": 0,
        **{f"spark.conf.{name}": value for name, value in conf.items()},
    }
    with Lake(load_settings(flags=flags, environ={}).settings) as lake, lake.serve() as serving:
        feed = Feed.of(lake, "t", {"id": "long", "name": "string"})
        for start in range(0, ROWS, 10_000):
            ids = np.arange(start, start + 10_000)
            feed.produce(pa.table({"id": ids, "name": pa.array(ids).cast(pa.string())}))
        bounds = np.linspace(0, ROWS, PIECES + 1).astype(int).tolist()
        pieces = [
            feed.piece(
                *each, number=n, directory="/nowhere/at/all", flight=serving.addresses.flight
            )
            for n, each in enumerate(pairwise(bounds))
        ]
        done = succeeded(run_pieces(lake.spark(), pieces, tasks_max=10))
        feed.commit(pieces, done)
        rows = feed.table.refresh().scan().to_arrow().sort_by("_calve_offset")
        expected = np.arange(ROWS)
        print(
            json.dumps(
                {
                    "rows": rows.num_rows,
                    "dense": bool((rows["_calve_offset"].to_numpy() == expected).all()),
                    "same": bool((rows["id"].to_numpy() == expected).all()),
                    "dead_letters": len(letters_of(done)),
                }
            )
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
