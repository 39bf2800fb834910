"""A thousand tenants with limits on one service: what each gets through, beside its limit.

    python -m benchmarks.tenant_fairness            1,000 tenants, two minutes for each part
    python -m benchmarks.tenant_fairness --quick    100 tenants, one minute

The claims: where every tenant sends more than it may, what each of them gets through is within
10 % of its limit, and so of each other; where most stay within their limits beside others that
send without end and do not wait as they are told, the modest get all they ask for. Half of the
tenants have twice the limit of the others. Rows go over HTTP, from a connection and with a token
for each tenant; they count when they were answered with 200. The service has a process of its own.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from calve.access import Caller, NewToken
from calve.ingest import Intake
from calve.ingest.http import HttpServer
from calve.model import TableName
from calve.settings import load_settings
from calve.topics import TopicSpec

TENANTS, QUICK_TENANTS = 1_000, 100
SECONDS, QUICK_SECONDS = 120.0, 60.0
ROWS_PER_SECOND: Final = 10
BATCH_SECONDS: Final = 4  # so much of a tenant's limit is one request
MODEST_SHARE: Final = 0.5  # of its limit, for a tenant that asks for less than it may
GREEDY_EVERY: Final = 10  # one tenant of so many, beside modest ones
GREEDY_PAUSE_SECONDS: Final = 0.5  # whatever the service tells it
WARM_UP_SECONDS: Final = 30.0  # in which all have begun, and what may come at once has come
BOUND: Final = 0.10


def limit_of(number: int) -> int:
    return ROWS_PER_SECOND * (1 + number % 2)


def serve(flags: dict[str, Any], tenants: int) -> None:
    """The child: prints its address and a token for each tenant; serves until its input ends."""
    settings = load_settings(flags=flags, environ={}).settings
    with Intake(settings) as intake, HttpServer(intake) as server:
        tokens = intake.doorkeeper.tokens(Caller.of_host())
        secrets = []
        for number in range(tenants):
            tenant = f"t{number}"
            intake.topics.create(
                TableName(tenant, "default", "rows"), TopicSpec(schema={"id": "long"})
            )
            wanted = NewToken(name="bench", tenant=tenant, scopes=("produce",))
            secrets.append(tokens.create(wanted).secret)
        print(json.dumps({"url": server.url, "tokens": secrets}), flush=True)
        sys.stdin.read()


@contextmanager
def service(data: Path, tenants: int) -> Iterator[list[Tenant]]:
    own = {f"t{n}.rows_per_second_max": limit_of(n) for n in range(tenants) if n % 2}
    flags = {
        "data": str(data),
        "ingest.http_port": 0,
        "wal.free_bytes_min": 0,
        "auth.required": True,
        "tenants.rows_per_second_max": limit_of(0),
        "tenants.limits": json.dumps(own),
    }
    command = [sys.executable, "-m", "benchmarks.tenant_fairness", "--serve", str(tenants)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            print(json.dumps(flags), file=process.stdin, flush=True)
            said = json.loads(process.stdout.readline())
            yield [Tenant(n, said["url"], token) for n, token in enumerate(said["tokens"])]
        finally:
            process.stdin.close()


class Tenant:
    """One connection, and when which rows were taken."""

    def __init__(self, number: int, url: str, token: str) -> None:
        self.limit = limit_of(number)
        self.number = number
        self.rows = self.limit * BATCH_SECONDS
        self._host = urlsplit(url).netloc
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/x-ndjson",
        }
        self._body = b'{"id": 1}\n' * self.rows
        self.asked: list[tuple[float, bool]] = []  # when, and whether it was granted
        self.taken_at: list[float] = []

    def send(self, pause: Callable[[float], float], later: float, until: float) -> None:
        """Request after request, beginning a little later; `pause` says how long to wait, of what
        the service told."""
        time.sleep(later)
        connection = http.client.HTTPConnection(self._host, timeout=60)
        while time.monotonic() < until:
            asked_at = time.monotonic()
            connection.request("POST", "/v1/topics/rows/rows", self._body, self._headers)
            answer = connection.getresponse()
            content = json.loads(answer.read())
            self.asked.append((asked_at, answer.status == 200))
            if answer.status == 200:
                self.taken_at.append(time.monotonic())
                told = 0.0
            else:
                assert answer.status == 429, content
                told = content["retry_after_ms"] / 1000
            time.sleep(max(0.0, min(pause(told), until - time.monotonic())))
        connection.close()

    def share(self, begin: float, end: float) -> float:
        """Of its limit, what it got through."""
        count = sum(begin <= at < end for at in self.taken_at)
        return count * self.rows / (self.limit * (end - begin))

    def granted(self, begin: float, end: float) -> float:
        """Of what it asked for."""
        return statistics.mean(granted for at, granted in self.asked if begin <= at < end)


def as_told(seconds: float) -> float:
    return seconds


def rude(_: float) -> float:
    return GREEDY_PAUSE_SECONDS


def modest(_: float) -> float:
    return BATCH_SECONDS / MODEST_SHARE


def sent(
    tenants: list[Tenant], manner: Callable[[Tenant], Callable[[float], float]], seconds: float
) -> tuple[float, float]:
    """Have all of them send at once; the time that is measured."""
    begin = time.monotonic() + WARM_UP_SECONDS
    end = begin + seconds
    threads = []
    for place, tenant in enumerate(tenants):
        later = WARM_UP_SECONDS / 2 * place / len(tenants)
        threads.append(threading.Thread(target=tenant.send, args=(manner(tenant), later, end)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return begin, end


def told(name: str, shares: list[float]) -> None:
    low, middle, high = (each - 1 for each in (min(shares), statistics.median(shares), max(shares)))
    print(
        f"{name:<36}{len(shares):>6,} tenants    median {middle:+.1%}    least {low:+.1%}"
        f"    most {high:+.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--directory", type=Path, help="where to write; the disk that is measured")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(json.loads(sys.stdin.readline()), options.serve)
        return
    count, seconds = (QUICK_TENANTS, QUICK_SECONDS) if options.quick else (TENANTS, SECONDS)
    with (
        tempfile.TemporaryDirectory(dir=options.directory) as directory,
        service(Path(directory), count) as tenants,
    ):
        window = sent(tenants, lambda _: as_told, seconds)
        print(f"{seconds:.0f} s each; requests of {BATCH_SECONDS} s of a tenant's limit")
        told("all send more than their limit", [each.share(*window) for each in tenants])
        greedy, others = tenants[::GREEDY_EVERY], [t for t in tenants if t.number % GREEDY_EVERY]
        window = sent(tenants, lambda each: modest if each.number % GREEDY_EVERY else rude, seconds)
        told("beside modest ones, the greedy", [each.share(*window) for each in greedy])
        told("the modest, of what they ask for", [each.granted(*window) for each in others])
    print(f"bound: within {BOUND:.0%} of the limit, or of what is asked for")


if __name__ == "__main__":
    main()
