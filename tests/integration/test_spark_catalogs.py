"""Spark opens what Python opens, from the same settings: with TLS, logins, vended keys, and Glue."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from calve.spark.jars import pinned_jars
from tests.servers.fixtures import ServeFront, ServeTemporaryS3
from tests.servers.gates import Bearer, Vended
from tests.servers.glue import Glue
from tests.servers.rest import Rest
from tests.servers.s3 import S3
from tests.servers.tls import Authority

# A trust store and the jars are given to a JVM when it starts, so this needs one of its own.
BOTH_WAYS = """
import json, sys
import pyarrow as pa
from calve.lake import Lake
from calve.settings import load_settings
flags, name, namespace = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
with Lake(load_settings(flags=flags, environ={}).settings) as lake:
    table = lake.catalog.create_table(name, pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1]}))
    spark = lake.spark()
    spark.sql(f"insert into {name} values (2)")
    spark.sql(f"insert into {flags['catalog.name']}.{namespace}.{name} values (3)")
    print(json.dumps({
        "python": sorted(lake.catalog.load_table(name).scan().to_arrow()["id"].to_pylist()),
        "spark": sorted(row.id for row in spark.table(name).collect()),
        "conf": str(sorted(row for row in spark.sql("set").collect())),
    }))
"""


def both_ways(flags: dict[str, object], directory: Path, namespace: str) -> dict[str, object]:
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("CALVE_", "AWS_"))
    }
    flags = {"data": str(directory / "lake"), "catalog.name": "lake", **flags}
    run = subprocess.run(
        [sys.executable, "-c", BOTH_WAYS, json.dumps(flags), f"t_{uuid4().hex}", namespace],
        capture_output=True, text=True, timeout=180, check=False, cwd=directory, env=environment,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    answer: dict[str, object] = json.loads(run.stdout)
    return answer


@pytest.fixture(autouse=True)
def all_jars(spark_running: None) -> None:
    """The jars are there after the run's own Spark was started."""
    assert pinned_jars()


def test_rest_with_tls_client_credentials_and_vended_keys(
    rest_server_on_s3: Rest,
    serve_front: ServeFront,
    serve_temporary_s3: ServeTemporaryS3,
    authority: Authority,
    tmp_path: Path,
) -> None:
    temporary = serve_temporary_s3(lifetime_seconds=600)
    bearer = Bearer(lifetime_seconds=600)
    vended = Vended(lambda: temporary.sessions.new().file_io_properties)
    front = serve_front(rest_server_on_s3.port, gates=[bearer, vended], tls=authority.server)
    answer = both_ways(
        {
            "catalog.type": "rest",
            "catalog.uri": front.url,
            "catalog.properties.credential": bearer.credential,
            "catalog.properties.ssl.cabundle": str(authority.pem),
            "storage.endpoint": temporary.store.endpoint,
            "storage.region": temporary.store.region,
            "storage.path_style": True,
        },
        tmp_path,
        "default.default",
    )
    assert answer["python"] == answer["spark"] == [1, 2, 3]
    assert bearer.client_secret not in str(answer["conf"])
    assert set(vended.delegations) == {"vended-credentials"}
    assert temporary.sessions.refused == 0


def test_glue_with_s3(glue_server: Glue, s3_server: S3, tmp_path: Path) -> None:
    answer = both_ways(
        {
            "catalog.type": "glue",
            "catalog.uri": glue_server.endpoint,
            "catalog.properties.glue.id": glue_server.catalog_id,
            "storage.dsn": f"s3://{s3_server.bucket}/{uuid4().hex}",
            "storage.endpoint": s3_server.endpoint,
            "storage.region": s3_server.region,
            "storage.path_style": True,
            "storage.access_key_id": s3_server.keys.access_key,
            "storage.secret_access_key": s3_server.keys.secret_key,
        },
        tmp_path,
        "default__default",
    )
    assert answer["python"] == answer["spark"] == [1, 2, 3]
    assert s3_server.keys.secret_key not in str(answer["conf"])
