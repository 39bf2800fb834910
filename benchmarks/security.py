"""What tokens and TLS cost: Flight's throughput and its acknowledgements, with and without.

    python -m benchmarks.security              all rounds
    python -m benchmarks.security --quick      a fraction of it, for a first look

Three services run beside each other: one bare, one that needs tokens, one that needs tokens and
speaks TLS. They take turns in short rounds, so that all meet the same moods of the machine, in an
order that changes from round to round. The medians are printed beside the bounds: at most 15 % of
the throughput, and 0.3 ms of the acknowledgement's p50. The processor's time, of client and
service together, tells the cost also where others use the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from operator import sub, truediv
from pathlib import Path
from typing import Any, Final, TypeVar

import psutil
import pyarrow as pa
from pyarrow import flight

from calve.access import Caller, NewToken
from calve.ingest import Intake
from calve.ingest.flight import FlightServer
from calve.settings import load_settings

KIB: Final = 1 << 10
ROUNDS, QUICK_ROUNDS = 15, 5
PRODUCERS: Final = 4
SMALL: Final = pa.record_batch({"value": pa.array([b"x" * KIB], pa.binary())})
LARGE: Final = pa.record_batch({"value": pa.array([b"x" * KIB] * 1_000, pa.binary())})
COST_MAX: Final = 0.15
Figure = TypeVar("Figure")
ACKNOWLEDGEMENT_MS_MAX: Final = 0.3


def serve(flags: dict[str, Any]) -> None:
    """One service, of which this program makes several: prints its address and a token."""
    settings = load_settings(flags=flags, environ={}).settings
    with Intake(settings) as intake, FlightServer(intake) as server:
        wanted = NewToken(name="bench", tenant="acme", scopes=("produce",))
        secret = intake.doorkeeper.tokens(Caller.of_host()).create(wanted).secret
        print(json.dumps({"url": server.url, "token": secret}), flush=True)
        sys.stdin.read()


class Service:
    """A service in a process of its own, and calls to it."""

    def __init__(
        self, said: dict[str, str], roots: bytes | None, process: int, *, shows_token: bool
    ) -> None:
        self._processes = (psutil.Process(), psutil.Process(process))
        self._url = said["url"].replace("127.0.0.1", "localhost") if roots else said["url"]
        self._tls = {"tls_root_certs": roots} if roots else {}
        token = [(b"authorization", f"Bearer {said['token']}".encode())]
        self._options = flight.FlightCallOptions(headers=token if shows_token else [])

    def client(self) -> Any:
        return flight.FlightClient(self._url, **self._tls)

    def stream(self, client: Any, batch: pa.RecordBatch) -> tuple[Any, Any]:
        path = flight.FlightDescriptor.for_path("bench")
        writer, reader = client.do_put(path, batch.schema, self._options)
        return writer, reader

    def processor_seconds(self) -> float:
        times = [each.cpu_times() for each in self._processes]
        return sum(each.user + each.system for each in times)

    def acknowledged_ms(self, count: int) -> float:
        """The p50 of a producer that waits for each acknowledgement."""
        found = []
        with self.client() as client:
            writer, reader = self.stream(client, SMALL)
            for _ in range(count):
                begin = time.perf_counter()
                writer.write_batch(SMALL)
                assert reader.read() is not None
                found.append(time.perf_counter() - begin)
            writer.close()
        return statistics.median(found) * 1_000

    def sent(self, count: int) -> tuple[float, float]:
        """Bytes a second of producers that read acknowledgements while they send, and how many
        seconds of the processor a gigabyte takes."""
        gate = threading.Barrier(PRODUCERS + 1)

        def produce() -> None:
            with self.client() as client:
                writer, reader = self.stream(client, LARGE)
                reading = threading.Thread(target=lambda: [reader.read() for _ in range(count)])
                reading.start()
                gate.wait()
                for _ in range(count):
                    writer.write_batch(LARGE)
                reading.join()
                writer.close()

        threads = [threading.Thread(target=produce) for _ in range(PRODUCERS)]
        for thread in threads:
            thread.start()
        gate.wait()
        begin, before = time.perf_counter(), self.processor_seconds()
        for thread in threads:
            thread.join()
        size = PRODUCERS * count * 1_000 * KIB
        worked = self.processor_seconds() - before
        return size / (time.perf_counter() - begin), worked / size * 1e9


@contextmanager
def services(directory: Path) -> Iterator[dict[str, Service]]:
    tls = directory / "tls"
    calve = [sys.executable, "-c", "from calve.cli.main import calve; calve()"]
    making = [*calve, "tls", "init", "--directory", str(tls), "--data", str(directory / "none")]
    subprocess.run(making, check=True, capture_output=True)
    certificate = {
        "ingest.tls_cert": str(tls / "server.pem"),
        "ingest.tls_key": str(tls / "server.key"),
    }
    kinds: dict[str, dict[str, Any]] = {
        "bare": {},
        "tokens": {"auth.required": True},
        "tokens and TLS": {"auth.required": True, **certificate},
    }
    with ExitStack() as opened:
        yield {
            name: opened.enter_context(service(directory / name.replace(" ", "-"), flags, tls))
            for name, flags in kinds.items()
        }


@contextmanager
def service(data: Path, flags: dict[str, Any], tls: Path) -> Iterator[Service]:
    given = {"data": str(data), "ingest.flight_port": 0, "wal.free_bytes_min": 0, **flags}
    command = [sys.executable, "-m", "benchmarks.security", "--serve", json.dumps(given)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        roots = (tls / "ca.pem").read_bytes() if "ingest.tls_cert" in flags else None
        try:
            yield Service(said, roots, process.pid, shows_token="auth.required" in flags)
        finally:
            process.stdin.close()


def measured(
    found: dict[str, Service], rounds: int, measure: Callable[[Service], Figure]
) -> dict[str, list[Figure]]:
    for each in found.values():
        measure(each)  # to warm up
    figures: dict[str, list[Figure]] = {name: [] for name in found}
    names = list(found)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            figures[name].append(measure(found[name]))
    return figures


def compared(own: list[float], bare: list[float], how: Callable[[float, float], float]) -> float:
    """Each round with the bare one of the same round, which met the same moods."""
    return statistics.median(how(*pair) for pair in zip(own, bare, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--directory", type=Path, help="where to write; the disk that is measured")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(json.loads(options.serve))
        return
    scale, rounds = (0.1, QUICK_ROUNDS) if options.quick else (1.0, ROUNDS)
    with (
        tempfile.TemporaryDirectory(dir=options.directory) as directory,
        services(Path(directory)) as found,
    ):
        sent = measured(found, rounds, lambda each: each.sent(max(int(60 * scale), 10)))
        waits = measured(
            found, rounds, lambda each: each.acknowledged_ms(max(int(600 * scale), 60))
        )
    rates = {name: [rate for rate, _ in each] for name, each in sent.items()}
    work = {name: [seconds for _, seconds in each] for name, each in sent.items()}
    print(f"medians of {rounds} rounds in turns; 1,000-row batches of 1 KiB, {PRODUCERS} producers")
    for name in found:
        slower = 1 - compared(rates[name], rates["bare"], truediv)
        dearer = compared(work[name], work["bare"], truediv) - 1
        later = compared(waits[name], waits["bare"], sub)
        print(
            f"{name:<16}{statistics.median(rates[name]) / 1e6:>5.0f} MB/s ({-slower:+.1%})"
            f"{statistics.median(work[name]):>7.2f} s of the processor for a GB ({dearer:+.1%})"
            f"    p50 {statistics.median(waits[name]):.3f} ms ({later:+.3f} ms)"
        )
    print(f"bounds: {COST_MAX:.0%} of the throughput, {ACKNOWLEDGEMENT_MS_MAX} ms of the p50")


if __name__ == "__main__":
    main()
