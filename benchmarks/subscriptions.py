"""Live subscribers of a service, over Flight: how late rows come, and what many of them cost.

    .venv/bin/python -m benchmarks.subscriptions [--live 2000] [--rows 100000] [--quick]

The service is a process of its own. NATS JetStream's push consumer takes part where `nats-server`
and the package `nats-py` are installed: its server syncs each message, and so does the log. Both
get rows at the same pace, in turns. `benchmarks/reader.py` has history and the start of a reader.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa

from benchmarks.ingest_flight import Nats, free_port, nats_server, running, serve, wait_for
from benchmarks.reader import quantiles
from calve import Client

ROUNDS: Final = 4
PACE_SECONDS: Final = 0.005
BATCH_ROWS: Final = 1_000
ROW_BYTES: Final = 100


class Service:
    """A service, and the CPU seconds that it has used."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self._process = psutil.Process(pid)

    @property
    def cpu_seconds(self) -> float:
        used = self._process.cpu_times()
        return float(used.user + used.system)


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


def delays_of_calve(found: Service, count: int, number: int) -> list[float]:
    delays: list[float] = []
    with (
        Client(found.url) as client,
        client.subscribe("live", f"bench{number}", "latest") as subscription,
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
            time.sleep(PACE_SECONDS)
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
        ours += delays_of_calve(found, count // ROUNDS, number)
        if nats is not None:
            theirs += asyncio.run(delays_of_nats(nats.url, count // ROUNDS, number))
    print(f"produced to delivered, {len(ours):,} single rows: calve {quantiles(ours)}")
    if theirs:
        print(f"the same to a push consumer of NATS JetStream: {quantiles(theirs)}")


def many(found: Service, subscribers: int, rows: int) -> None:
    """All of them get all rows; how many that is in a second, and the service's CPU for each."""
    topic = f"many{subscribers}"
    batch = pa.record_batch(
        {"id": pa.array(range(BATCH_ROWS)), "text": ["x" * ROW_BYTES] * BATCH_ROWS}
    )
    with Client(found.url) as client, ExitStack() as opened:
        client.produce(topic, batch.slice(0, 1)).result()
        subscriptions = [
            opened.enter_context(client.subscribe(topic, f"s{number}", "latest"))
            for number in range(subscribers)
        ]
        for each in subscriptions:
            each.poll(0.05)

        def follow(number: int) -> None:
            seen = 0
            while seen < rows:
                taken = subscriptions[number].poll(60)
                assert taken is not None
                seen += len(taken)

        threads = [threading.Thread(target=follow, args=(n,)) for n in range(subscribers)]
        for thread in threads:
            thread.start()
        cpu, begun = found.cpu_seconds, time.perf_counter()
        for _ in range(rows // BATCH_ROWS):
            client.produce(topic, batch)
        for thread in threads:
            thread.join()
        took, used = time.perf_counter() - begun, found.cpu_seconds - cpu
    delivered = subscribers * rows
    print(
        f"{subscribers} live subscribers, {rows:,} rows each: {delivered / took / 1e6:.2f} M "
        f"rows/s in all, {used / subscribers * 1000:.0f} ms of CPU of the service for each, "
        f"{used / delivered * 1e6:.2f} s for a million rows delivered",
        flush=True,
    )


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
        for subscribers in (1, 10, 100):
            many(found, subscribers, given.rows // scale)


if __name__ == "__main__":
    main()
