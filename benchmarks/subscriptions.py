"""Live subscribers of a service, over Flight: how late rows come, and what many of them cost.

    .venv/bin/python -m benchmarks.subscriptions [--live 2000] [--rows 100000] [--quick]

The service is a process of its own. NATS JetStream's push consumer takes part where `nats-server`
and the package `nats-py` are installed: its server syncs each message, and so does the log. Both
get rows at the same pace, in turns: one every 5 ms, then one every quarter of a second. CPU is that
of the service's process, of all its threads, by its own clock of nanoseconds; the median of rounds
counts. Each figure that must be reached is told with whether it was. `benchmarks/reader.py` has
history and the start of a reader.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from benchmarks.ingest_flight import Nats, free_port, nats_server, running, serve, wait_for
from benchmarks.reader import at_least, at_most, in_time, quantiles
from calve import Client

ROUNDS: Final = 4
PACE_SECONDS: Final = 0.005
SELDOM_SECONDS: Final = 0.25
SELDOM_SHARE: Final = 20  # so many times fewer rows, for they take so much longer
SUBSCRIBERS: Final = (1, 10, 100)
BATCH_ROWS: Final = 1_000
ROW_BYTES: Final = 100
_CPU_CLOCK_SCHED: Final = 2  # as clock_getcpuclockid(3) makes a clock of a process's id


class Service:
    """A service, and the CPU seconds that it has used."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self._clock = (~pid << 3) | _CPU_CLOCK_SCHED

    @property
    def cpu_seconds(self) -> float:
        return time.clock_gettime(self._clock)


@contextmanager
def service(directory: Path) -> Iterator[Service]:
    port = free_port()
    words = [
        sys.executable,
        "-m",
        "benchmarks.subscriptions",
        "--serve",
        str(directory / "lake"),
        str(port),
    ]
    with running(words, directory / "service.log") as process:
        wait_for(port)
        yield Service(f"grpc://127.0.0.1:{port}", process.pid)


def delays_of_calve(
    found: Service, count: int, name: str, pace_seconds: float = PACE_SECONDS
) -> list[float]:
    delays: list[float] = []
    with (
        Client(found.url) as client,
        client.subscribe("live", name, "latest") as subscription,
    ):
        subscription.poll(1)

        def follow() -> None:
            while len(delays) < count:
                batch = subscription.poll(30)
                now = time.perf_counter_ns()
                assert batch is not None
                sent = batch.to_arrow()["sent_at"].to_pylist()
                delays.extend((now - each) / 1e6 for each in sent)

        thread = threading.Thread(target=follow)
        thread.start()
        for _ in range(count):
            client.produce("live", [{"sent_at": time.perf_counter_ns()}]).result()
            time.sleep(pace_seconds)
        thread.join()
    return delays


async def delays_of_nats(url: str, count: int, number: int) -> list[float]:
    """Of a push consumer, which the server sends messages to as they are stored."""
    import nats
    from nats.js.api import DeliverPolicy

    delays: list[float] = []
    done = asyncio.Event()

    async def take(message: Any) -> None:
        delays.append((time.perf_counter_ns() - int(message.data)) / 1e6)
        await message.ack()
        if len(delays) == count:
            done.set()

    connection, other = await nats.connect(url), await nats.connect(url)
    consumer = await connection.jetstream().subscribe(
        "bench", durable=f"live{number}", cb=take, manual_ack=True, deliver_policy=DeliverPolicy.NEW
    )
    stream = other.jetstream()
    for _ in range(count):
        await stream.publish("bench", str(time.perf_counter_ns()).encode())
        await asyncio.sleep(PACE_SECONDS)
    await asyncio.wait_for(done.wait(), 30)
    await consumer.unsubscribe()
    await connection.close()
    await other.close()
    return delays


def live(found: Service, nats: Nats | None, count: int) -> None:
    with Client(found.url) as client:
        client.produce("live", [{"sent_at": 0}]).result()
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(ROUNDS):
        ours += delays_of_calve(found, count // ROUNDS, f"live{number}")
        if nats is not None:
            theirs += asyncio.run(delays_of_nats(nats.url, count // ROUNDS, number))
    print(f"produced to delivered, {len(ours):,} single rows: calve {quantiles(ours)}")
    in_time(ours)
    if theirs:
        print(f"the same to a push consumer of NATS JetStream: {quantiles(theirs)}")
    seldom = delays_of_calve(found, max(1, count // SELDOM_SHARE), "seldom", SELDOM_SECONDS)
    print(f"one every {SELDOM_SECONDS:g} s, {len(seldom):,} single rows: calve {quantiles(seldom)}")
    in_time(seldom)


class Cost(NamedTuple):
    """Of one round of a number of subscribers."""

    rows_per_second: float  # delivered in all
    cpu_seconds: float  # of the service, for a million rows delivered


class Crowd:
    """Live subscribers of a topic of their own, all of which get all rows."""

    def __init__(self, found: Service, count: int, opened: ExitStack) -> None:
        self.count = count
        self._found = found
        self._topic = f"many{count}"
        self._client = opened.enter_context(Client(found.url))
        self._batch = pa.record_batch(
            {"id": pa.array(range(BATCH_ROWS)), "text": ["x" * ROW_BYTES] * BATCH_ROWS}
        )
        self._client.produce(self._topic, self._batch.slice(0, 1)).result()
        self._all = [
            opened.enter_context(self._client.subscribe(self._topic, f"s{number}", "latest"))
            for number in range(count)
        ]
        for each in self._all:
            each.poll(0.05)

    def round(self, rows: int) -> Cost:
        def follow(number: int) -> None:
            seen = 0
            while seen < rows:
                taken = self._all[number].poll(60)
                assert taken is not None
                seen += len(taken)

        threads = [threading.Thread(target=follow, args=(n,)) for n in range(self.count)]
        for thread in threads:
            thread.start()
        cpu, begun = self._found.cpu_seconds, time.perf_counter()
        for _ in range(rows // BATCH_ROWS):
            self._client.produce(self._topic, self._batch)
        for thread in threads:
            thread.join()
        took, used = time.perf_counter() - begun, self._found.cpu_seconds - cpu
        delivered = self.count * rows
        return Cost(delivered / took, used / delivered * 1e6)


def many(found: Service, rows: int) -> None:
    """What each further subscriber costs the service, which reads for all of them once."""
    costs: dict[int, float] = {}
    for count in SUBSCRIBERS:
        with ExitStack() as opened:
            crowd = Crowd(found, count, opened)
            crowd.round(BATCH_ROWS)  # the first ones pay for what is loaded, and for the columns
            rounds = [crowd.round(rows) for _ in range(ROUNDS)]
        costs[count] = statistics.median(each.cpu_seconds for each in rounds)
        speed = statistics.median(each.rows_per_second for each in rounds)
        print(
            f"{count} live subscribers, {rows:,} rows each, {ROUNDS} times: {speed / 1e6:.2f} M "
            f"rows/s in all; CPU of the service {costs[count]:.3f} s for a million rows delivered",
            flush=True,
        )
    at_least("M rows/s delivered to the last number of them", speed / 1e6, 1.0)
    for few, more in pairwise(SUBSCRIBERS):
        what = f"of the CPU that each of {few} costs, for each of {more}"
        at_most(what, costs[more] / costs[few], 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--live", type=int, default=2_000)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="a tenth of it, for a first look")
    parser.add_argument("--serve", nargs=2, metavar=("DATA", "PORT"), help=argparse.SUPPRESS)
    given: Any = parser.parse_args()
    if given.serve:
        serve(*given.serve)
        return
    scale = 10 if given.quick else 1
    with tempfile.TemporaryDirectory() as directory, ExitStack() as opened:
        place = Path(directory)
        nats = opened.enter_context(nats_server(place))
        found = opened.enter_context(service(place))
        live(found, nats, given.live // scale)
        many(found, given.rows // scale)


if __name__ == "__main__":
    main()
