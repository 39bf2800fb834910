"""What a Spark session is started with, on this machine and on others."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from calve.spark.conf import session_conf
from tests.conftest import MakeSettings


def conf(make_settings: MakeSettings, **flags: object) -> dict[str, str]:
    return session_conf(make_settings(**flags), jars=[], java_options=[])


def test_a_local_session_runs_tasks_with_this_python(make_settings: MakeSettings) -> None:
    found = conf(make_settings, spark__package="/srv/shop/executors.zip")
    assert found["spark.pyspark.python"] == sys.executable
    assert "spark.archives" not in found


@pytest.mark.parametrize("master", ["spark://host:7077", "k8s://https://host:443", "yarn"])
def test_executors_elsewhere_get_calve_from_the_archive(
    make_settings: MakeSettings, master: str
) -> None:
    found = conf(make_settings, spark__master=master, spark__package="/srv/shop/executors.zip")
    assert found["spark.archives"] == "/srv/shop/executors.zip#calve-executors"
    assert found["spark.executorEnv.PYTHONPATH"] == "./calve-executors"
    assert found["spark.pyspark.python"] == "python3"
    assert "spark.driver.host" not in found


def test_what_the_user_says_of_executors_wins_or_is_added(make_settings: MakeSettings) -> None:
    own = {
        "spark__conf.spark.archives": "/srv/shop/models.zip#models",
        "spark__conf.spark.pyspark.python": "/usr/bin/python3.11",
    }
    flags = {"spark__master": "yarn", "spark__package": "/srv/shop/executors.zip", **own}
    found = conf(make_settings, **flags)
    archives = "/srv/shop/executors.zip#calve-executors,/srv/shop/models.zip#models"
    assert found["spark.archives"] == archives
    assert found["spark.pyspark.python"] == "/usr/bin/python3.11"
    alone = conf(make_settings, spark__master="yarn", **own)
    assert alone["spark.archives"] == "/srv/shop/models.zip#models"


@pytest.mark.parametrize("master", ["k8s://https://k8s.example.com:443", "yarn"])
def test_documented_submit_lines_say_what_a_session_is_started_with(
    make_settings: MakeSettings, master: str
) -> None:
    found = conf(
        make_settings, spark__master=master, spark__package="/srv/shop/calve-executors.zip"
    )
    page = Path(__file__).parents[2] / "docs" / "operating" / "pipeline.md"
    commands = page.read_text("utf-8").replace("\\\n", " ").splitlines()
    (line,) = [each.split() for each in commands if f"spark-submit --master {master} " in each]
    assert line[line.index("--archives") + 1] == found["spark.archives"]
    given = [after for word, after in pairwise(line) if word == "--conf"]
    name = "spark.executorEnv.PYTHONPATH"
    assert f"{name}={found[name]}" in given
