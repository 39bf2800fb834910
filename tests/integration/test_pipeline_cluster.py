"""`calve up` on a Spark cluster whose machines have neither Calve nor the log: tasks get both over
the network, and machines are killed while they write."""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from calve import Client
from calve.lake import Lake
from calve.maintenance.verify import verify_topic
from calve.pipeline.package import build_package
from tests.servers import cluster as clusters
from tests.servers.process import free_port
from tests.services import settings_of, up

ROWS = 20_000


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(build_package(tmp_path_factory.mktemp("package") / "executors.zip").path)


def words_for(cluster: clusters.Cluster, package: Path, log: Path) -> list[str]:
    flags = {
        "spark.master": cluster.url,
        "spark.package": package,
        "spark.conf.spark.driver.host": "127.0.0.1",
        "spark.conf.spark.driver.bindAddress": "127.0.0.1",
        "spark.conf.spark.pyspark.python": cluster.python,
        "spark.conf.spark.executor.memory": "512m",
        "wal.path": log,
        "wal.free_bytes_min": 0,
        "pipeline.flush_interval_ms": 300,
        "ingest.flight_port": free_port(),
        "ingest.http_port": 0,
        "ingest.otlp_grpc_port": 0,
        "ingest.otlp_http_port": 0,
    }
    if options := clusters.jvm_options():
        flags["spark.conf.spark.executor.extraJavaOptions"] = options
    return [word for name, value in flags.items() for word in ("--set", f"{name}={value}")]


@contextmanager
def sending(client: Client) -> Iterator[Counter[str]]:
    """Rows without end, so that there is always something to write, and how many they are."""
    stop = threading.Event()
    sent: Counter[str] = Counter()

    def send() -> None:
        ids = np.arange(sent["rows"], sent["rows"] + ROWS)
        noise = np.random.default_rng(sent["rows"]).integers(0, 2**62, ROWS)
        text = pa.array(noise).cast(pa.string())
        rows = pa.table({"id": ids, "text": text, "again": text})
        client.produce("events", rows).result()
        sent["rows"] += ROWS

    def send_until_told() -> None:
        while not stop.wait(0.1):
            send()

    send()
    client.flush("events", 300, to_table=True)  # the first task waits for its executor
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(send_until_told)
        try:
            yield sent
        finally:
            stop.set()
            work.result()


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="hides the log as Linux can")
@pytest.mark.parametrize(
    "kills",
    [pytest.param(1, marks=pytest.mark.timeout(600)), pytest.param(20, marks=pytest.mark.torture)],
)
def test_rows_get_through_a_cluster_once_though_its_workers_are_killed(
    tmp_path: Path, package: Path, kills: int, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "lake"
    with clusters.serve(tmp_path, workers=2) as cluster:
        bare = subprocess.run(
            [cluster.python, "-c", "import calve"],
            env={}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "No module named 'calve'" in bare.stderr
        # Another directory for whoever works in another one: only the service finds the log there.
        (tmp_path / "here").symlink_to("/proc/self/cwd")
        words = words_for(cluster, package, tmp_path / "here" / "log")
        with (
            up(data, *words, only=None, ports=()) as service,
            Client(service.addresses()["flight"]) as client,
        ):
            with sending(client) as sent:
                for _ in range(kills):
                    cluster.kill_worker_that_writes(data / "events" / "data")
                    cluster.add_worker()
            client.flush("events", 300, to_table=True)
    expected = np.arange(sent["rows"])
    with Lake(settings_of(data)) as lake:
        rows = lake.catalog.load_table("events").scan().to_arrow().sort_by("_calve_offset")
        verified = verify_topic(lake.catalog, "events", own_log=tmp_path / "log")
    assert (rows["_calve_offset"].to_numpy() == expected).all()
    assert (rows["id"].to_numpy() == expected).all()
    assert rows["text"].equals(rows["again"])
    assert verified.is_sound, verified
    with capsys.disabled():
        print(f"\n{kills} killed workers, {rows.num_rows} rows acknowledged, 0 lost, 0 doubled")
