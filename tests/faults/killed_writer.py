"""A process that appends from 64 threads until it is killed, and notes what was acknowledged.

    killed_writer.py LOG NOTES

Each thread is a producer and goes on where its notes end: it sends its last acknowledged row
again, then the next ones. A note is one write of `thread sequence offset`, after the
acknowledgement; what is written outlives the process.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pyarrow as pa

from calve.model import TableName
from calve.wal import Log, LogOptions, Stream

TOPIC = TableName.parse("orders")
THREADS = 64


def last_notes(notes: Path) -> dict[int, tuple[int, int]]:
    """Thread → sequence and offset of its last acknowledged row."""
    found: dict[int, tuple[int, int]] = {}
    for line in notes.read_text().splitlines():
        thread, sequence, offset = map(int, line.split())
        found[thread] = (sequence, offset)
    return found


def produce(
    log: Log, stream: Stream, thread: int, last: tuple[int, int] | None, notes: int
) -> None:
    sequence = 0
    if last is not None:
        sequence, offset = last
        again = send(log, stream, thread, sequence)
        assert again == (offset, True), (again, offset)
        sequence += 1
    while True:
        offset, _ = send(log, stream, thread, sequence)
        os.write(notes, f"{thread} {sequence} {offset}\n".encode())
        sequence += 1


def rows(thread: int, sequence: int) -> pa.RecordBatch:
    return pa.record_batch({"thread": [thread], "sequence": [sequence]})


def send(log: Log, stream: Stream, thread: int, sequence: int) -> tuple[int, bool]:
    batch = rows(thread, sequence)
    result = log.append(stream, batch, producer=f"t{thread}", sequence=sequence)
    assert result.first is not None
    return result.first, result.is_repeat


def main() -> None:
    path, notes = Path(sys.argv[1]), Path(sys.argv[2])
    known = last_notes(notes)
    log = Log(path, LogOptions(segment_bytes_max=1 << 18, free_bytes_min=0))
    stream = log.streams[0] if log.streams else log.create_stream(TOPIC)
    descriptor = os.open(notes, os.O_WRONLY | os.O_APPEND)
    threads = [
        threading.Thread(target=produce, args=(log, stream, thread, known.get(thread), descriptor))
        for thread in range(THREADS)
    ]
    # Arrow loads pandas, where it is installed, for its first batch: not while the clock runs.
    rows(0, 0)
    for thread in threads:
        thread.start()
    print("started", flush=True)
    # A main thread that ends begins the interpreter's end, in which libraries cannot be loaded.
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    threading.excepthook = lambda failure: (print(failure, flush=True), os._exit(3))
    main()
