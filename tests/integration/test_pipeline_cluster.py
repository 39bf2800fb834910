"""A Spark cluster whose machines have neither Calve nor the log: tasks get both over the network."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from calve.pipeline.package import build_package
from tests.servers import cluster as clusters
from tests.services import ROOT, environment

_DRIVER = "from tests.integration.cluster_driver import main; import sys; main(*sys.argv[1:])"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(build_package(tmp_path_factory.mktemp("package") / "executors.zip").path)


def imported(python: Path, path: Path | None, code: str) -> subprocess.CompletedProcess[str]:
    env = {} if path is None else {"PYTHONPATH": str(path)}
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, env=env, check=False
    )


@pytest.mark.timeout(600)
def test_rows_get_through_a_cluster_once_though_a_worker_is_killed(
    tmp_path: Path, package: Path
) -> None:
    data = tmp_path / "lake"
    with clusters.serve(tmp_path, workers=2) as cluster:
        assert "No module named 'calve'" in imported(cluster.python, None, "import calve").stderr
        driver = subprocess.Popen(
            [sys.executable, "-c", _DRIVER, data, cluster.url, package, cluster.python],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=ROOT,
        )
        try:
            while driver.poll() is None and len(list(data.rglob("offsets-*.parquet"))) < 3:
                time.sleep(0.05)
            assert driver.poll() is None, driver.communicate()
            cluster.kill_worker()
            told, words = driver.communicate(timeout=500)
        finally:
            driver.kill()
            driver.wait()
    assert driver.returncode == 0, words
    assert json.loads(told.splitlines()[-1]) == {
        "rows": 400_000,
        "dense": True,
        "same": True,
        "dead_letters": 0,
    }
