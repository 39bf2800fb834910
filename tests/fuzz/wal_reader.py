"""Coverage-guided fuzzing of whatever reads a log: readers, recovery, survey.

    python -m tests.fuzz.wal_reader -max_total_time=60

The input is a list of edits on a golden log. Whatever they do, a row that is handed out is the row
that was written at its offset, and every error is one of Calve's own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["calve.wal"]):
    from calve.errors import CalveError
    from calve.wal import Log, LogOptions, LogReader
    from calve.wal.frame import Kind
    from calve.wal.layout import LogLayout
    from calve.wal.survey import survey

from tests.fakes.disk import SimulatedDisk
from tests.fakes.oracle import TOPIC

GOLDEN = Path(__file__).parents[1] / "golden" / "wal" / "v1_linked" / "zero_tail"
DIRECTORY = Path("/wal")
LAYOUT = LogLayout(DIRECTORY)
OPTIONS = LogOptions(segment_bytes_max=16_384, free_bytes_min=0)
ROWS: dict[int, list[object]] = {0: [0, 1, 2, "3", "4", 7, 8, 9], 1: [5, 6, None, None, 40, 41, 40]}
NAMES = sorted(path.name for path in GOLDEN.iterdir() if path.name != "lock")


def load() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_directory(DIRECTORY)
    for path in sorted(GOLDEN.iterdir(), key=lambda path: path.name != "lock"):
        file = disk.create(DIRECTORY / path.name)
        file.write_at(0, [path.read_bytes()])
        file.sync()
    disk.sync_directory(DIRECTORY)
    return disk


WHOLE = load()


def edit(disk: SimulatedDisk, data: atheris.FuzzedDataProvider) -> None:
    for _ in range(data.ConsumeIntInRange(1, 4)):
        name = NAMES[data.ConsumeIntInRange(0, len(NAMES) - 1)]
        size = disk.size(DIRECTORY / name)
        begin = data.ConsumeIntInRange(0, size)
        end = min(size, begin + data.ConsumeIntInRange(0, 256))
        content = data.ConsumeBytes(data.ConsumeIntInRange(0, 256))
        if data.ConsumeBool():  # move a part of the file instead
            other = data.ConsumeIntInRange(0, size)
            content = disk.read(DIRECTORY / name)[other : other + end - begin]
        disk.damage(
            DIRECTORY / name,
            lambda old, b=begin, e=end, c=content: old.__setitem__(slice(b, e), c),  # type: ignore[misc]
        )


def read(disk: SimulatedDisk) -> None:
    with LogReader(DIRECTORY, files=disk) as reader:
        for partition, expected in ROWS.items():
            stream = reader.stream(TOPIC, partition)
            for entry in reader.read(stream, reader.offsets(stream).first):
                if entry.kind == Kind.REJECTED:
                    found: list[object] = [row.original.decode() for row in entry.rejected]
                elif entry.kind == Kind.HOLE:
                    found = [None] * (entry.end_offset - entry.first_offset)
                else:
                    assert entry.batch is not None
                    found = entry.batch["id"].to_pylist()
                assert found == expected[entry.first_offset : entry.end_offset]


def try_input(content: bytes) -> None:
    disk = WHOLE.copy()
    edit(disk, atheris.FuzzedDataProvider(content))
    for look in (
        lambda: read(disk),
        lambda: survey(disk, LAYOUT),
        lambda: Log(DIRECTORY, OPTIONS, files=disk, background=False).close(),
    ):
        try:
            look()
        except CalveError:
            continue


def main() -> None:
    atheris.Setup(sys.argv, try_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
