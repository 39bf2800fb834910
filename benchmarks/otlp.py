"""OpenTelemetry over gRPC, durable: records per second, the CPU that they take, decoding alone.

    python -m benchmarks.otlp                   5 rounds of 3 seconds for each signal
    python -m benchmarks.otlp --quick           1 round of 1 second
    python -m benchmarks.otlp --collector PATH  and a Collector with the file exporter, in turn

The service runs in a process of its own. The requests are recorded from the OpenTelemetry SDK's
exporters, 512 records in each, and sent by four senders that wait for each answer; a record counts
when its request was answered. `PATH` is a program of the OpenTelemetry Collector that has the OTLP
receiver and the file exporter; it gets the same requests, writes its default, JSON, and syncs
nothing. The figures are printed, not judged.
"""

from __future__ import annotations

import argparse
import gzip
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import psutil

from benchmarks.samples.telemetry import METHODS, RECORDS, recorded_requests
from calve.ingest import Intake
from calve.ingest.otlp.decoding import decode, read_message
from calve.ingest.otlp.grpc_server import OtlpGrpcServer
from calve.settings import load_settings

SENDERS = 4
WANTED = {"logs": 60_000, "traces": 40_000, "metrics": 60_000}
COLLECTOR = """
receivers: {{otlp: {{protocols: {{grpc: {{endpoint: "{address}", max_recv_msg_size_mib: 16}}}}}}}}
exporters: {{file: {{path: "{file}", rotation: {{max_megabytes: 256, max_backups: 1}}}}}}
service:
  telemetry: {{logs: {{level: error}}, metrics: {{level: none}}}}
  pipelines:
    traces: {{receivers: [otlp], exporters: [file]}}
    logs: {{receivers: [otlp], exporters: [file]}}
    metrics: {{receivers: [otlp], exporters: [file]}}
"""


class Server(NamedTuple):
    address: str
    process: psutil.Process

    def cpu_seconds(self) -> float:
        return sum(self.process.cpu_times()[:2])


class Round(NamedTuple):
    records_per_second: float
    cpu_per_million: float


def serve(directory: Path) -> None:
    """The child: serves until its standard input ends."""
    flags = {"data": str(directory), "ingest.otlp_grpc_port": 0, "wal.free_bytes_min": 0}
    settings = load_settings(flags=flags, environ={}).settings
    with Intake(settings) as intake, OtlpGrpcServer(intake) as server:
        print(server.url.removeprefix("http://"), flush=True)
        sys.stdin.read()


@contextmanager
def calve(directory: Path) -> Iterator[Server]:
    command = [sys.executable, "-m", "benchmarks.otlp", "--serve", str(directory)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield Server(child.stdout.readline().strip(), psutil.Process(child.pid))
        finally:
            child.stdin.close()
            child.wait(30)


@contextmanager
def collector(program: Path, directory: Path) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = directory / "collector.yaml"
    config.write_text(COLLECTOR.format(address=address, file=directory / "out.json"))
    with subprocess.Popen([program, "--config", config], stderr=subprocess.DEVNULL) as child:
        try:
            with grpc.insecure_channel(address) as channel:
                grpc.channel_ready_future(channel).result(30)
            yield Server(address, psutil.Process(child.pid))
        finally:
            child.terminate()
            child.wait(30)


def sent(address: str, method: str, body: bytes, seconds: float) -> int:
    """How many requests were answered."""
    until = time.perf_counter() + seconds
    done = [0] * SENDERS

    def send(place: int) -> None:
        with grpc.insecure_channel(address) as channel:
            export: Any = channel.unary_unary(method)
            while time.perf_counter() < until:
                export(body, timeout=60)
                done[place] += 1

    threads = [threading.Thread(target=send, args=(place,)) for place in range(SENDERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done)


def one_round(server: Server, signal: str, body: bytes, seconds: float) -> Round:
    before, begin = server.cpu_seconds(), time.perf_counter()
    records = RECORDS * sent(server.address, METHODS[signal], body, seconds)
    rate = records / (time.perf_counter() - begin)
    return Round(rate, (server.cpu_seconds() - before) / records * 1e6)


def decoding_alone(signal: str, body: bytes, seconds: float) -> float:
    begin = time.perf_counter()
    count = 0
    while time.perf_counter() - begin < seconds:
        decode(signal, read_message(signal, body))
        count += RECORDS
    return count / (time.perf_counter() - begin)


def measure(signal: str, body: bytes, rounds: int, seconds: float, program: Path | None) -> None:
    with ExitStack() as open_:
        directory = Path(open_.enter_context(tempfile.TemporaryDirectory()))
        servers = {"Calve": open_.enter_context(calve(directory / "lake"))}
        if program is not None:
            servers["Collector"] = open_.enter_context(collector(program, directory))
        for server in servers.values():
            sent(server.address, METHODS[signal], body, 0.5)
        found: dict[str, list[Round]] = {name: [] for name in servers}
        for _ in range(rounds):
            for name, server in servers.items():
                found[name].append(one_round(server, signal, body, seconds))
    rates = {n: statistics.median(r.records_per_second for r in of) for n, of in found.items()}
    cpu = {n: statistics.median(r.cpu_per_million for r in of) for n, of in found.items()}
    alone = decoding_alone(signal, body, seconds)
    packed = len(gzip.compress(body)) / RECORDS
    print(
        f"{signal:8} {rates['Calve']:9,.0f} records/s (wanted {WANTED[signal]:,})   "
        f"decoding alone {alone:9,.0f}/s   {cpu['Calve']:6.1f} s of CPU per million   "
        f"{len(body) / RECORDS:4.0f} bytes each, {packed:.0f} with gzip"
    )
    if program is not None:
        print(
            f"{'':8} {rates['Collector']:9,.0f} records/s and {cpu['Collector']:.1f} s of CPU per "
            f"million by the Collector: Calve takes {cpu['Calve'] / cpu['Collector']:.2f} times "
            "its CPU (wanted for spans: at most 2)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--collector", type=Path, metavar="PATH")
    parser.add_argument("--serve", type=Path)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    rounds, seconds = (1, 1.0) if arguments.quick else (5, 3.0)
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{os.cpu_count()} processors, load before {load}")
    if arguments.collector is None:
        print("no Collector was given (--collector PATH): nothing to compare the CPU with")
    requests = recorded_requests()
    for signal in METHODS:
        measure(signal, requests[signal], rounds, seconds, arguments.collector)


if __name__ == "__main__":
    main()
