"""The log's figures, each beside the machine's own limit measured in the same run.

    python benchmarks/wal.py            all rows; writes 9 GiB below --directory, and removes them
    python benchmarks/wal.py --quick    a sixteenth of the data, for a first look

Limit and log take turns in short rounds, so that both meet the same moods of the disk. The figures
are printed, not judged: only an error ends with another exit code than 0.
"""

from __future__ import annotations

import argparse
import operator
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from calve.model import TableName
from calve.wal import Log, LogOptions, LogReader, NewStream, PendingAppend, Stream

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
TOPIC = TableName.parse("bench")
SMALL = pa.record_batch({"value": pa.array([b"x" * KIB], pa.binary())})
LARGE = pa.record_batch({"value": pa.array([b"x" * KIB] * KIB, pa.binary())})


class Bench:
    def __init__(self, directory: Path, scale: int) -> None:
        self.directory = directory
        self.scale = scale
        self._count = 0

    def fresh(self) -> Path:
        self._count += 1
        return self.directory / f"log-{self._count}"

    @contextmanager
    def log(self, topics: int = 1, **options: object) -> Iterator[tuple[Log, list[Stream]]]:
        path = self.fresh()
        with Log(path, LogOptions(free_bytes_min=0, **options)) as log:  # type: ignore[arg-type]
            names = [NewStream(TableName.parse(f"t{i}")) for i in range(topics)]
            yield log, log.create_streams(names)
        shutil.rmtree(path)

    @contextmanager
    def bare_file(self) -> Iterator[int]:
        path = self.directory / "bare"
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
            path.unlink()


def timed(work: Callable[[], object], count: int) -> list[float]:
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return found


def bare_append(descriptor: int, content: bytes) -> Callable[[], None]:
    def work() -> None:
        os.write(descriptor, content)
        os.fdatasync(descriptor)

    return work


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(int(len(values) * part), len(values) - 1)]


def row(work: str, found: str, limit: str, ratio: str, wanted: str) -> None:
    print(f"{work:<44} {found:>20} {limit:>22} {ratio:>9}   {wanted}", flush=True)


def one_thread(bench: Bench) -> None:
    bare: list[float] = []
    ours: list[float] = []
    with bench.bare_file() as descriptor, bench.log() as (log, (stream,)):
        for _ in range(40):
            bare += timed(bare_append(descriptor, b"x" * KIB), 100)
            ours += timed(lambda: log.append(stream, SMALL), 100)
    for part, wanted in ((0.5, "≤ 1.5 x"), (0.99, "≤ 3 x")):
        limit, found = quantile(bare, part), quantile(ours, part)
        row(
            f"durable append of 1 KiB, one thread, p{part * 100:.0f}",
            f"{found * 1e6:.0f} µs",
            f"{limit * 1e6:.0f} µs",
            f"{found / limit:.2f} x",
            wanted,
        )


@contextmanager
def with_threads(log: Log, stream: Stream, count: int) -> Iterator[Callable[[], float]]:
    """64 threads that wait; each call has all of them append, and returns the rate."""
    barrier = threading.Barrier(65)
    is_over = False

    def work() -> None:
        while True:
            barrier.wait()
            if is_over:
                return
            for _ in range(count // 64):
                log.append(stream, SMALL)
            barrier.wait()

    def measure() -> float:
        begin = time.perf_counter()
        barrier.wait()
        barrier.wait()
        return count / (time.perf_counter() - begin)

    threads = [threading.Thread(target=work) for _ in range(64)]
    for thread in threads:
        thread.start()
    yield measure
    is_over = True
    barrier.wait()
    for thread in threads:
        thread.join()


def in_flight(log: Log, streams: list[Stream], count: int) -> tuple[float, list[float]]:
    """Rate and latencies with 64 appends on their way."""
    latencies: list[float] = []
    waiting: deque[tuple[float, PendingAppend]] = deque()
    begin = time.perf_counter()
    for i in range(count):
        if len(waiting) == 64:
            since, handle = waiting.popleft()
            handle.wait()
            latencies.append(time.perf_counter() - since)
        stream = streams[i % len(streams)]
        waiting.append((time.perf_counter(), log.submit(stream, SMALL)))
    log.flush()
    return count / (time.perf_counter() - begin), latencies


def together(bench: Bench) -> None:
    """Short slices in turn, each compared with the bare ones right before and after it."""
    bare: list[float] = []
    threads: list[float] = []
    flights: list[float] = []
    with (
        bench.bare_file() as descriptor,
        bench.log() as (log, streams),
        with_threads(log, streams[0], 3_200) as measure,
    ):
        work = bare_append(descriptor, b"x" * KIB)
        for _ in range(25):
            bare.append(150 / sum(timed(work, 150)))
            threads.append(measure())
            bare.append(150 / sum(timed(work, 150)))
            flights.append(in_flight(log, streams, 6_400)[0])
        bare.append(150 / sum(timed(work, 150)))
    for name, found, first, wanted in (
        ("durable appends of 1 KiB, 64 threads", threads, 0, "≥ 4 x"),
        ("durable appends of 1 KiB, 64 in flight", flights, 1, "≥ 8 x"),
    ):
        limits = [(bare[i] + bare[i + 1]) / 2 for i in range(first, len(bare) - 1, 2)]
        ratio = statistics.median(map(operator.truediv, found, limits))
        middle, limit = statistics.median(found), statistics.median(limits)
        row(name, f"{middle:,.0f} /s", f"{limit:,.0f} /s", f"{ratio:.1f} x", wanted)


def large_batches(bench: Bench) -> None:
    bare: list[float] = []
    ours: list[float] = []
    size = LARGE.get_total_buffer_size()
    with bench.bare_file() as descriptor, bench.log() as (log, (stream,)):
        for _ in range(30):
            bare += timed(bare_append(descriptor, b"x" * size), 10)
            ours += timed(lambda: log.append(stream, LARGE), 10)
    limit, found = len(bare) * size / sum(bare), len(ours) * size / sum(ours)
    row(
        "durable 1 MiB batches",
        f"{found / 1e6:,.0f} MB/s",
        f"{limit / 1e6:,.0f} MB/s",
        f"{found / limit:.0%}",
        "≥ 70 %",
    )


def many_topics(bench: Bench) -> None:
    rates: dict[int, list[float]] = {1: [], 1000: []}
    latencies: dict[int, list[float]] = {1: [], 1000: []}
    with bench.log(1) as (one_log, one_stream), bench.log(1000) as (log, streams):
        for stream in streams:
            log.submit(stream, SMALL)
        log.flush()
        for _ in range(20):
            for topics, found in (
                (1, in_flight(one_log, one_stream, 8_000)),
                (1000, in_flight(log, streams, 8_000)),
            ):
                rates[topics].append(found[0])
                latencies[topics] += found[1]
    one, many = statistics.median(rates[1]), statistics.median(rates[1000])
    row(
        "1,000 topics round-robin, 64 in flight",
        f"{many:,.0f} /s",
        f"{one:,.0f} /s (1 topic)",
        f"{many / one:.0%}",
        "≥ 50 %",
    )
    one, many = quantile(latencies[1], 0.99), quantile(latencies[1000], 0.99)
    row(
        "1,000 topics round-robin, p99",
        f"{many * 1e3:.2f} ms",
        f"{one * 1e3:.2f} ms (1 topic)",
        f"{many / one:.2f} x",
        "≤ 5 x",
    )


def file_per_topic(bench: Bench) -> None:
    """The layout that was not chosen: 64 appends to 64 of 1,000 files are 64 syncs, made by eight
    threads at once. Bare writes: the least that it would cost."""
    rates: dict[str, list[float]] = {"files": [], "shared": []}
    paths = [bench.directory / f"topic-{i}" for i in range(1000)]
    descriptors = [os.open(path, os.O_CREAT | os.O_WRONLY) for path in paths]
    with ThreadPoolExecutor(8) as pool, bench.bare_file() as shared:
        for begin in range(0, 1000, 64):
            some = descriptors[begin : begin + 64]
            one = timed(lambda some=some: list(pool.map(append_bare, some)), 1)  # type: ignore[misc]
            other = timed(bare_append(shared, b"x" * KIB * len(some)), 1)
            rates["files"].append(len(some) / sum(one))
            rates["shared"].append(len(some) / sum(other))
    for descriptor, path in zip(descriptors, paths, strict=True):
        os.close(descriptor)
        path.unlink()
    files, together = (statistics.median(rates[name]) for name in ("files", "shared"))
    row(
        "(bare: a file per topic, 1,000 topics)",
        f"{files:,.0f} /s",
        f"{together:,.0f} /s (one file)",
        f"{files / together:.1%}",
        "why topics share files",
    )


def append_bare(descriptor: int) -> None:
    os.write(descriptor, b"x" * KIB)
    os.fdatasync(descriptor)


def child_fill(path: Path, size: int) -> None:
    """A log of about `size`, half a segment of it open, left as a killed process leaves it."""
    log = Log(path, LogOptions(sync_mode="none", free_bytes_min=0))
    stream = log.create_stream(TOPIC)
    for _ in range(size // MIB - 32):
        log.append(stream, LARGE)
    log.rotate()
    for _ in range(32):
        log.append(stream, LARGE)
    log.flush()
    os._exit(0)


def read_back(bench: Bench) -> None:
    path = bench.fresh()
    run_child("fill", path, GIB // bench.scale)
    found, limit, copied = map(float, run_child("read", path).split())
    row(
        "read back in another process",
        f"{found / 1e9:.2f} GB/s",
        f"{limit / 1e9:.2f} GB/s (read)",
        f"{found / limit:.2f} x",
        f"≥ 1 GB/s, uncopied: {copied:.0f} bytes copied",
    )
    shutil.rmtree(path)


def child_read(path: Path) -> None:
    """Every batch from the page cache, each frame checked; beside it, read() into one buffer."""
    buffer = bytearray(MIB)
    allocated = pa.total_allocated_bytes()
    size = sum(file.stat().st_size for file in path.glob("*.seg"))
    rates: list[float] = []
    limits: list[float] = []
    for _ in range(5):
        begin = time.perf_counter()
        for file in path.glob("*.seg"):
            with file.open("rb", buffering=0) as opened:
                while opened.readinto(buffer):
                    pass
        limits.append(size / (time.perf_counter() - begin))
        begin = time.perf_counter()
        with LogReader(path) as reader:
            batches = [entry.batch for entry in reader.read(reader.stream(TOPIC), 0)]
        rates.append(size / (time.perf_counter() - begin))
        assert len(batches) > 0
    copied = pa.total_allocated_bytes() - allocated
    print(statistics.median(rates), statistics.median(limits), copied)


def opening(bench: Bench) -> None:
    small, large = bench.fresh(), bench.fresh()
    run_child("fill", small, GIB // bench.scale)
    run_child("fill", large, 8 * GIB // bench.scale)
    times: dict[Path, list[float]] = {small: [], large: []}
    for _ in range(31):
        for path in (small, large):
            times[path] += timed(
                lambda path=path: Log(path, LogOptions(free_bytes_min=0)).close(),  # type: ignore[misc]
                1,
            )
    for name, one, eight in (
        (" after a kill", times[small][0], times[large][0]),
        ("", statistics.median(times[small][1:]), statistics.median(times[large][1:])),
    ):
        row(
            f"open {8 / bench.scale:g} GiB{name}",
            f"{eight * 1e3:.1f} ms",
            f"{one * 1e3:.1f} ms ({1 / bench.scale:g} GiB)",
            f"{eight / one:.2f} x",
            "≤ 1.5 x, both under 1 s",
        )
    shutil.rmtree(small)
    shutil.rmtree(large)


def memory(bench: Bench) -> None:
    path = bench.fresh()
    peak, base, descriptors = map(int, run_child("topics", path).split())
    row(
        "memory with 10,000 topics",
        f"{peak / MIB:,.0f} MiB",
        f"{base / MIB:,.0f} MiB (imports)",
        "",
        f"< 1 GiB; {descriptors} file descriptors",
    )
    shutil.rmtree(path)


def child_topics(path: Path) -> None:
    """10,000 topics, each with a producer of its own and ten appends, then read by one reader."""
    base = peak_memory()
    options = LogOptions(sync_mode="none", free_bytes_min=0)
    with Log(path, options) as log:
        streams = log.create_streams([NewStream(TableName.parse(f"t{i}")) for i in range(10_000)])
        for sequence in range(10):
            for stream in streams:
                log.submit(stream, SMALL, producer="p", sequence=sequence)
            log.flush()
        with log.reader() as reader:
            assert sum(reader.offsets(stream).durable for stream in streams) == 100_000
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with Log(path, options) as log:
        assert len(log.streams) == 10_000
    print(peak_memory(), base, descriptors)


def peak_memory() -> int:
    """Of this program only: what getrusage says includes the parent that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith("VmHWM"))


def run_child(name: str, path: Path, *numbers: int) -> str:
    command = [sys.executable, __file__, "--child", name, str(path), *map(str, numbers)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


CHILDREN: dict[str, Callable[..., None]] = {
    "fill": child_fill,
    "read": child_read,
    "topics": child_topics,
}
ROWS = [
    one_thread,
    together,
    large_batches,
    many_topics,
    file_per_topic,
    read_back,
    opening,
    memory,
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the data")
    parser.add_argument(
        "--directory", type=Path, help="where to write; a temporary one if not given"
    )
    parser.add_argument("--only", choices=[work.__name__ for work in ROWS], help="one row")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        name, path, *numbers = arguments.child
        CHILDREN[name](Path(path), *map(int, numbers))
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        bench = Bench(Path(directory), 16 if arguments.quick else 1)
        row("work", "found", "limit", "ratio", "wanted")
        for work in ROWS:
            if arguments.only in (None, work.__name__):
                work(bench)


if __name__ == "__main__":
    main()
