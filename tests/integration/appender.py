"""Appends to a table of a lake again and again, as one of several processes. Run by the tests.

python appender.py FLAGS TABLE WRITER APPENDS      (FLAGS: the lake's settings as JSON)
"""

from __future__ import annotations

import json
import sys

import pyarrow as pa

import calve
from calve.settings import load_settings


def main(flags: str, table: str, writer: int, appends: int) -> None:
    settings = load_settings(flags=json.loads(flags), environ={}).settings
    with calve.open(settings) as lake:
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(appends):
            row = {
                "writer": pa.array([writer], pa.int32()),
                "number": pa.array([number], pa.int32()),
            }
            lake.catalog.load_table(table).append(pa.table(row))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
