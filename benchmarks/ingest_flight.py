"""Rows in over Flight, durable, beside the disk's own limit and beside other logs, in the same run.

    python benchmarks/ingest_flight.py              all rows, with every peer that is found
    python benchmarks/ingest_flight.py --quick      a tenth of it, for a first look
    python benchmarks/ingest_flight.py --kafka DIR  with Kafka whose jars are in DIR

NATS JetStream takes part where `nats-server` and the package `nats-py` are installed, Kafka where
its jars are in the user's cache or Maven can fetch them there. Whatever did not take part is named.
Everyone takes turns in short rounds, so that all meet the same moods of the disk; medians of rounds
are printed, not judged.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from platformdirs import user_cache_path
from pyarrow import flight

from calve.ingest import Intake
from calve.ingest.flight import FlightServer
from calve.settings import load_settings

KIB, MIB = 1 << 10, 1 << 20
ROUNDS = 5
SMALL = pa.record_batch({"value": pa.array([b"x" * KIB], pa.binary())})
LARGE = pa.record_batch({"value": pa.array([b"x" * KIB] * 1_000, pa.binary())})
KAFKA_VERSION = "4.3.1"
KAFKA_POM = f"""<project><modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>bench</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
<version>{KAFKA_VERSION}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId>
<version>{KAFKA_VERSION}</version></dependency></dependencies></project>"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def wait_for(port: int, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError(f"nobody listens on {port}")


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


def serve(data: str, port: str) -> None:
    """The ingest process, of which this program makes another."""
    flags = {"data": data, "ingest.flight_port": port, "wal.free_bytes_min": "0"}
    settings = load_settings(flags=flags, environ={}).settings
    with Intake(settings) as intake, FlightServer(intake):
        sys.stdin.read()


def timed(work: Callable[[], object], count: int) -> list[float]:
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return found


def together(work: Callable[[int], None], count: int) -> float:
    """How long it takes so many threads, which begin at once."""
    gate = threading.Barrier(count + 1)

    def run(number: int) -> None:
        gate.wait()
        work(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    gate.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begin


class Bare:
    """The disk alone: one write and one fdatasync at a time."""

    def __init__(self, directory: Path) -> None:
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND
        self._file = os.open(directory / "bare", flags)

    def append(self, content: bytes) -> None:
        os.write(self._file, content)
        os.fdatasync(self._file)

    def one_by_one(self, count: int) -> list[float]:
        content = b"x" * KIB
        return timed(lambda: self.append(content), count)

    def large(self, count: int) -> float:
        content = b"x" * (1_000 * KIB)
        return count * len(content) / sum(timed(lambda: self.append(content), count))


class Calve:
    def __init__(self, port: int) -> None:
        self._url = f"grpc://127.0.0.1:{port}"
        self._client = flight.FlightClient(self._url)

    def _stream(self, batch: pa.RecordBatch, client: Any = None) -> tuple[Any, Any]:
        path = flight.FlightDescriptor.for_path("bench")
        writer, reader = (client or self._client).do_put(path, batch.schema)
        return writer, reader

    def one_by_one(self, count: int) -> list[float]:
        writer, reader = self._stream(SMALL)

        def send() -> None:
            writer.write_batch(SMALL)
            reader.read()

        found = timed(send, count)
        writer.close()
        return found

    def large(self, count: int, producers: int) -> float:
        """Bytes a second of producers that read acknowledgements while they send."""

        def produce(_: int) -> None:
            with flight.FlightClient(self._url) as client:
                writer, reader = self._stream(LARGE, client)
                reading = threading.Thread(target=lambda: [reader.read() for _ in range(count)])
                reading.start()
                for _ in range(count):
                    writer.write_batch(LARGE)
                reading.join()
                writer.close()

        return producers * count * 1_000 * KIB / together(produce, producers)

    def many(self, count: int, producers: int) -> float:
        """Rows a second of producers that each wait for every acknowledgement."""
        clients = [flight.FlightClient(self._url) for _ in range(producers)]
        streams = [self._stream(SMALL, client) for client in clients]

        def produce(number: int) -> None:
            writer, reader = streams[number]
            for _ in range(count):
                writer.write_batch(SMALL)
                reader.read()

        seconds = together(produce, producers)
        for writer, _ in streams:
            writer.close()
        for client in clients:
            client.close()
        return producers * count / seconds


class Nats:
    """JetStream, which syncs each message before it acknowledges it."""

    def __init__(self, port: int) -> None:
        self.url = f"nats://127.0.0.1:{port}"

    async def _connected(self) -> tuple[Any, Any]:
        import nats

        connection = await nats.connect(self.url)
        return connection, connection.jetstream()

    async def set_up(self) -> None:
        connection, stream = await self._connected()
        await stream.add_stream(name="bench", subjects=["bench"])
        await connection.close()

    async def one_by_one(self, count: int) -> list[float]:
        connection, stream = await self._connected()
        content, found = b"x" * KIB, []
        for _ in range(count):
            begin = time.perf_counter()
            await stream.publish("bench", content)
            found.append(time.perf_counter() - begin)
        await connection.close()
        return found

    async def many(self, count: int, producers: int) -> float:
        opened = [await self._connected() for _ in range(producers)]
        content = b"x" * KIB

        async def produce(stream: Any) -> None:
            for _ in range(count):
                await stream.publish("bench", content)

        begin = time.perf_counter()
        await asyncio.gather(*(produce(stream) for _, stream in opened))
        seconds = time.perf_counter() - begin
        for connection, _ in opened:
            await connection.close()
        return producers * count / seconds


@contextmanager
def nats_server(directory: Path) -> Iterator[Nats | None]:
    beside_python = Path(sys.executable).parent
    program = shutil.which("nats-server", path=f"{beside_python}{os.pathsep}{os.environ['PATH']}")
    if program is None or importlib.util.find_spec("nats") is None:
        print("NATS does not take part: nats-server or the package nats-py is missing")
        yield None
        return
    port = free_port()
    config = directory / "nats.conf"
    config.write_text(
        f"listen: 127.0.0.1:{port}\n"
        f'jetstream {{ store_dir: "{directory / "nats"}", sync_interval: always }}\n'
    )
    with running([program, "-c", str(config)], directory / "nats.log"):
        wait_for(port)
        nats = Nats(port)
        asyncio.run(nats.set_up())
        words = [program, "--version"]
        told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        print(f"NATS: {told.strip()}; one stream on files, sync_interval: always, replicas: 1")
        yield nats


class Kafka:
    """One broker that syncs each batch before it acknowledges it; its own tool produces."""

    def __init__(self, jars: Path, port: int) -> None:
        self._jars = jars
        self._port = port

    def large(self, count: int, producers: int) -> float:
        command = [
            *java(self._jars), "org.apache.kafka.tools.ProducerPerformance", "--topic", "bench",
            "--num-records", str(count * 1_000), "--record-size", str(KIB), "--throughput", "-1",
            "--producer-props", f"bootstrap.servers=127.0.0.1:{self._port}", "acks=all",
            f"batch.size={MIB}", "linger.ms=5", f"buffer.memory={64 * MIB}",
        ]  # fmt: skip
        started = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            for _ in range(producers)
        ]
        said = [process.communicate(timeout=300)[0] for process in started]
        return sum(float(re.findall(r"\(([\d.]+) MB/sec\)", text)[-1]) for text in said) * MIB


def java(jars: Path) -> list[str]:
    return ["java", "-Xmx1g", "-cp", f"{jars}/*"]


@contextmanager
def kafka_server(directory: Path, jars: Path) -> Iterator[Kafka | None]:
    if not any(jars.glob("kafka_*.jar")) and shutil.which("mvn") is None:
        print(f"Kafka does not take part: {jars} has no jars, and there is no Maven to fetch them")
        yield None
        return
    fetch_kafka(jars)
    port, controller = free_port(), free_port()
    config = directory / "kafka.properties"
    config.write_text(
        "process.roles=broker,controller\nnode.id=1\n"
        f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
        "controller.listener.names=CONTROLLER\n"
        f"log.dirs={directory / 'kafka'}\n"
        "log.flush.interval.messages=1\nnum.partitions=4\n"
        "offsets.topic.replication.factor=1\nmessage.max.bytes=4194304\n"
    )
    form = ["kafka.tools.StorageTool", "format", "-t", "bench-bench-bench-benchA", "-c"]
    subprocess.run([*java(jars), *form, str(config)], check=True, capture_output=True, timeout=120)
    with running([*java(jars), "kafka.Kafka", str(config)], directory / "kafka.log"):
        wait_for(port)
        kafka = Kafka(jars, port)
        kafka.large(1, 1)  # makes the topic
        print(
            f"Kafka: {_kafka_version(jars)}; one broker, 4 partitions, log.flush.interval.messages"
            "=1; producers: acks=all, batch.size=1 MiB, linger.ms=5"
        )
        yield kafka


def _kafka_version(jars: Path) -> str:
    """Of the jars that run, which may be others than would be fetched."""
    return ", ".join(sorted(each.stem for each in jars.glob("kafka_*.jar")))


def fetch_kafka(jars: Path) -> None:
    if any(jars.glob("kafka_*.jar")):
        return
    jars.mkdir(parents=True, exist_ok=True)
    (jars / "pom.xml").write_text(KAFKA_POM)
    words = ["mvn", "-q", "-f", str(jars / "pom.xml"), "dependency:copy-dependencies"]
    subprocess.run([*words, f"-DoutputDirectory={jars}"], check=True, timeout=600)


def median_ms(rounds: list[list[float]], part: float) -> float:
    """The median over the rounds of a quantile within each."""
    each = [sorted(found)[int(len(found) * part)] for found in rounds]
    return statistics.median(each) * 1_000


def beside(peer: str, theirs: list[Any], figure: float, ours: float, unit: str) -> str:
    """A peer's figure and what ours is of it; or that it is missing."""
    if not theirs:
        return f"{peer} is missing"
    return f"{peer} {figure:,.{3 if unit == ' ms' else 0}f}{unit} ({ours / figure:.2f} x)"


def row(work: str, *figures: str) -> None:
    print(f"{work:<58}" + "".join(f"{figure:>34}" for figure in figures), flush=True)


def latency(bare: Bare, calve: Calve, nats: Nats | None, scale: float) -> None:
    count = max(int(600 * scale), 60)
    disk, ours, theirs = [], [], []
    for _ in range(ROUNDS):
        disk.append(bare.one_by_one(count))
        ours.append(calve.one_by_one(count))
        if nats is not None:
            theirs.append(asyncio.run(nats.one_by_one(count)))
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        row(
            f"1 KiB, one producer, durable acknowledgement, {name}",
            f"calve {(own := median_ms(ours, part)):.3f} ms",
            beside("fdatasync", disk, median_ms(disk, part), own, " ms"),
            beside("nats", theirs, median_ms(theirs or disk, part), own, " ms"),
        )


def throughput(bare: Bare, calve: Calve, kafka: Kafka | None, scale: float) -> None:
    count = max(int(100 * scale), 20)
    disk, ours, theirs = [], [], []
    for _ in range(ROUNDS):
        disk.append(bare.large(2 * count))
        ours.append(calve.large(count, 4))
        if kafka is not None:
            theirs.append(kafka.large(count, 4))
    row(
        "1 KiB rows in 1,000-row batches, 4 producers, durable",
        f"calve {(own := statistics.median(ours) / 1e6):.0f} MB/s",
        beside("write+fdatasync", disk, statistics.median(disk) / 1e6, own, " MB/s"),
        beside("kafka", theirs, statistics.median(theirs or disk) / 1e6, own, " MB/s"),
    )


def concurrency(calve: Calve, nats: Nats | None, scale: float) -> None:
    count = max(int(60 * scale), 10)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(calve.many(count, 64))
        if nats is not None:
            theirs.append(asyncio.run(nats.many(count, 64)))
    row(
        "1 KiB, 64 single-row producers, durable",
        f"calve {(own := statistics.median(ours)):,.0f}/s",
        "",
        beside("nats", theirs, statistics.median(theirs or ours), own, "/s"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true")
    kafka_jars = user_cache_path("calve") / "bench" / f"kafka-{KAFKA_VERSION}"
    parser.add_argument("--kafka", type=Path, metavar="DIR", default=kafka_jars)
    parser.add_argument("--directory", type=Path, help="where to write; the disk that is measured")
    parser.add_argument("--serve", nargs=2, metavar=("DATA", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return
    scale = 0.1 if options.quick else 1.0
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.directory)))
        nats = stack.enter_context(nats_server(directory))
        kafka = stack.enter_context(kafka_server(directory, options.kafka))
        port = free_port()
        words = [sys.executable, __file__, "--serve", str(directory / "lake"), str(port)]
        stack.enter_context(running(words, directory / "calve.log"))
        wait_for(port)
        bare, calve = Bare(directory), Calve(port)
        latency(bare, calve, nats, scale)
        concurrency(calve, nats, scale)
        throughput(bare, calve, kafka, scale)


if __name__ == "__main__":
    main()
