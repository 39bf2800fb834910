"""The bill of materials: what an installation brings, all of it, and nothing else."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sbom() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "sbom.py"))


@pytest.fixture(scope="module")
def written(sbom: dict[str, Any]) -> dict[str, Any]:
    packages = sbom["shipped"](sbom["pinned"](sbom["LOCK"].read_text()))
    made = sbom["bom"](packages, sbom["base_names"](), sbom["jars"]())
    found: dict[str, Any] = json.loads(sbom["JsonV1Dot6"](made).output_as_string())
    return found


def test_it_has_what_every_part_brings_and_nothing_of_development(written: dict[str, Any]) -> None:
    scopes = {each["name"]: each["scope"] for each in written["components"]}
    assert scopes["pyarrow"] == scopes["pyiceberg"] == scopes["urllib3"] == "required"
    assert scopes["uvicorn"] == scopes["grpcio"] == scopes["pyspark"] == "optional"
    assert scopes["iceberg-spark-runtime-4.1_2.13"] == "optional"
    assert not {"pytest", "mypy", "moto", "hypothesis"} & scopes.keys()
    assert written["metadata"]["component"]["name"] == "calve"


def test_each_package_is_named_as_others_look_it_up_and_is_asked_for_by_something(
    written: dict[str, Any],
) -> None:
    jars = [each for each in written["components"] if each["purl"].startswith("pkg:maven/")]
    assert all(each["hashes"][0]["alg"] == "SHA-256" for each in jars)
    asked = {name for each in written["dependencies"] for name in each.get("dependsOn", ())}
    assert asked == {each["bom-ref"] for each in written["components"]}


def test_the_lock_is_read_whole(sbom: dict[str, Any]) -> None:
    lock = sbom["LOCK"].read_text()
    lines = [line for line in lock.splitlines() if line[:1].isalnum()]
    assert [each.version for each in sbom["pinned"](lock)] == [
        line.partition("==")[2].split()[0] for line in lines
    ]
