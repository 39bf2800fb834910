"""Appends to a table of a lake again and again, as one of several processes. Run by the tests.

python appender.py DATA TABLE WRITER APPENDS
"""

from __future__ import annotations

import sys

import pyarrow as pa

import calve
from calve.settings import load_settings


def main(data: str, table: str, writer: int, appends: int) -> None:
    settings = load_settings(flags={"data": data}, environ={}).settings
    with calve.open(settings) as lake:
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(appends):
            row = pa.table(
                {"writer": pa.array([writer], pa.int32()), "number": pa.array([number], pa.int32())}
            )
            lake.catalog.load_table(table).append(row)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
