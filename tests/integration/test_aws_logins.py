"""Glue and S3 with keys, a profile, a role: who signed each request is read at the servers.

In Python and in Spark, from the same settings. What stands in for STS gives keys of S3Proxy's
second user with a session token, so that a role's requests cannot be mistaken for its caller's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from calve.errors import InvalidRequest, InvalidSettings
from calve.lake import Lake
from calve.settings import Settings
from calve.spark.conf import catalog_conf
from tests.servers.fixtures import ServeFront, ServeTemporaryS3
from tests.servers.gates import Signed, Signers
from tests.servers.glue import CATALOG_ID, Glue
from tests.servers.rest import Rest
from tests.servers.s3 import ADMIN, S3, WRITER
from tests.servers.sessions import ROLE_ARN, TemporaryS3

pytestmark = pytest.mark.usefixtures("no_aws_login")

MakeSettings = Callable[..., Settings]
Flags = dict[str, object]
ROOT = Path(__file__).parents[2]
IDS = pa.schema([("id", pa.int64())])
LIFETIME_SECONDS = 2

BASE_KEYS: Flags = {"storage.access_key_id": "base", "storage.secret_access_key": "base-secret"}
ADMIN_KEYS: Flags = {
    "storage.access_key_id": ADMIN.access_key,
    "storage.secret_access_key": ADMIN.secret_key,
}
PROFILES = f"""
[base]
aws_access_key_id = base
aws_secret_access_key = base-secret
[admin]
aws_access_key_id = {ADMIN.access_key}
aws_secret_access_key = {ADMIN.secret_key}
"""
IN_ROLE = {(WRITER.access_key, True)}
AS_BASE = {("base", False)}
AS_ADMIN = {(ADMIN.access_key, False)}


@dataclass(frozen=True)
class Servers:
    """Glue and S3 behind fronts that remember signers, and a store for roles alone."""

    glue_url: str
    glue: Signers
    store: S3
    signers: Signers
    temporary: TemporaryS3

    def flags(self, catalog: str, *, role: bool) -> Flags:
        store = self.temporary.store if role else self.store
        glue = {
            "catalog.type": "glue",
            "catalog.uri": self.glue_url,
            "catalog.properties.glue.id": CATALOG_ID,
        }
        return {
            "storage.dsn": f"s3://{store.bucket}/{uuid4().hex}",
            "storage.endpoint": store.endpoint,
            "storage.region": store.region,
            "storage.path_style": True,
            "retry.max_attempts": 2,
            **({"storage.role_arn": ROLE_ARN} if role else {}),
            **(glue if catalog == "glue" else {}),
        }


@pytest.fixture
def servers(
    glue_server: Glue,
    s3_server: S3,
    serve_front: ServeFront,
    serve_temporary_s3: ServeTemporaryS3,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Servers:
    glue, signers = Signers(), Signers()
    port = int(glue_server.endpoint.rpartition(":")[2])
    temporary = serve_temporary_s3(lifetime_seconds=3600)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", temporary.service_url)
    (tmp_path / "credentials").write_text(PROFILES)
    store = S3(serve_front(s3_server.port, gates=[signers]).url)
    return Servers(serve_front(port, gates=[glue]).url, glue, store, signers, temporary)


@pytest.fixture
def jvm(spark_running: None, servers: Servers, tmp_path: Path) -> Iterator[Any]:
    """The properties of the run's JVM, which looks for STS and profiles where this test has them."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    system = context._jvm.java.lang.System
    properties = {
        "aws.endpointUrlSts": servers.temporary.service_url,
        "aws.disableEc2Metadata": "true",
        "aws.configFile": str(tmp_path / "config"),
        "aws.sharedCredentialsFile": str(tmp_path / "credentials"),
    }
    for name, value in properties.items():
        system.setProperty(name, value)
    yield system
    for name in properties:
        system.clearProperty(name)


@pytest.fixture
def make(make_settings: MakeSettings, tmp_path: Path) -> Callable[[Flags], Settings]:
    def make(flags: Flags) -> Settings:
        return make_settings(data=str(tmp_path / uuid4().hex), **flags)

    return make


def append_and_read(lake: Lake, name: str) -> list[int]:
    table = lake.catalog.create_table(name, IDS)
    table.append(pa.table({"id": [1]}, schema=IDS))
    ids: list[int] = lake.catalog.load_table(name).scan().to_arrow()["id"].to_pylist()
    return ids


def both_ways(lake: Lake) -> list[int]:
    name = f"t_{uuid4().hex}"
    append_and_read(lake, name)
    spark = lake.spark()
    spark.sql(f"insert into {name} values (2)")
    ids = sorted(row.id for row in spark.table(name).collect())
    assert sorted(lake.catalog.load_table(name).scan().to_arrow()["id"].to_pylist()) == ids
    return ids


@pytest.mark.parametrize("base", ["keys", "profile", "environment"])
def test_glue_in_a_role(
    servers: Servers,
    make: Callable[[Flags], Settings],
    base: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if base == "environment":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "base")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "base-secret")
    login: dict[str, Flags] = {"keys": BASE_KEYS, "profile": {"storage.profile": "base"}}
    with Lake(make(servers.flags("glue", role=True) | login.get(base, {}))) as lake:
        assert append_and_read(lake, f"t_{uuid4().hex}") == [1]
    assert set(servers.temporary.service.actions) == {"AssumeRole"}
    assert servers.temporary.service_signers.seen(in_spark=False) == AS_BASE
    assert servers.glue.seen(in_spark=False) == IN_ROLE
    assert servers.temporary.signers.seen(in_spark=False) == IN_ROLE


@pytest.mark.parametrize(
    ("catalog", "login"),
    [("sql", BASE_KEYS), ("glue", BASE_KEYS), ("glue", {"storage.profile": "base"})],
    ids=["s3-keys", "glue-keys", "glue-profile"],
)
def test_spark_in_a_role(
    jvm: Any, servers: Servers, make: Callable[[Flags], Settings], catalog: str, login: Flags
) -> None:
    with Lake(make(servers.flags(catalog, role=True) | login)) as lake:
        assert both_ways(lake) == [1, 2]
    assert set(servers.temporary.service.actions) == {"AssumeRole"}
    assert servers.temporary.service_signers.seen(in_spark=True) == AS_BASE
    assert servers.temporary.signers.seen(in_spark=True) == IN_ROLE
    assert servers.glue.seen(in_spark=True) == (IN_ROLE if catalog == "glue" else set())


@pytest.mark.parametrize("catalog", ["sql", "glue"])
def test_spark_with_a_profile(
    jvm: Any, servers: Servers, make: Callable[[Flags], Settings], catalog: str
) -> None:
    flags = servers.flags(catalog, role=False) | {"storage.profile": "admin"}
    with Lake(make(flags)) as lake:
        assert both_ways(lake) == [1, 2]
    assert servers.signers.seen(in_spark=True) == AS_ADMIN
    assert servers.glue.seen(in_spark=True) == (AS_ADMIN if catalog == "glue" else set())


@pytest.mark.parametrize("catalog", ["sql", "glue"])
def test_keys_go_before_a_profile(
    jvm: Any, servers: Servers, make: Callable[[Flags], Settings], catalog: str
) -> None:
    flags = servers.flags(catalog, role=False) | ADMIN_KEYS | {"storage.profile": "base"}
    with Lake(make(flags)) as lake:
        assert both_ways(lake) == [1, 2]
    for in_spark in (False, True):
        assert servers.signers.seen(in_spark=in_spark) == AS_ADMIN
        assert servers.glue.seen(in_spark=in_spark) == (AS_ADMIN if catalog == "glue" else set())


def test_spark_signs_for_a_rest_catalog_with_the_keys_of_the_settings(
    jvm: Any, rest_server: Rest, serve_front: ServeFront, make: Callable[[Flags], Settings]
) -> None:
    signed = Signed(access_key="base", region="eu-west-1", service="glue")
    properties = {"sigv4-enabled": "true", "signing-region": "eu-west-1", "signing-name": "glue"}
    flags: Flags = {
        "catalog.type": "rest",
        "catalog.uri": serve_front(rest_server.port, gates=[signed]).url,
        **{f"catalog.properties.rest.{name}": value for name, value in properties.items()},
    }
    with Lake(make(flags | BASE_KEYS)) as lake:
        assert both_ways(lake) == [1, 2]
    assert signed.refused == 0


def test_spark_renews_a_role_while_work_goes_on(
    jvm: Any, servers: Servers, make: Callable[[Flags], Settings]
) -> None:
    temporary = servers.temporary
    temporary.sessions.lifetime_seconds = LIFETIME_SECONDS
    with Lake(make(servers.flags("sql", role=True) | BASE_KEYS)) as lake:
        lake.catalog.create_table("users", IDS)
        spark = lake.spark()
        end = time.monotonic() + 2 * LIFETIME_SECONDS
        inserted = 0
        while time.monotonic() < end:
            spark.sql(f"insert into users values ({inserted})")
            inserted += 1
        assert spark.table("users").count() == inserted
    assert temporary.signers.seen(in_spark=True) == IN_ROLE
    assert (temporary.sessions.expired, temporary.sessions.refused) == (0, 0)


def test_lakes_that_share_spark_agree_on_the_login_that_the_jvm_has(
    jvm: Any, servers: Servers, make: Callable[[Flags], Settings]
) -> None:
    def lake(*logins: Flags, catalog: str = "glue", role: bool = False) -> Lake:
        flags = servers.flags(catalog, role=role)
        return opened.enter_context(
            Lake(make(flags | {k: v for f in logins for k, v in f.items()}))
        )

    with ExitStack() as opened:
        assert both_ways(lake(ADMIN_KEYS)) == [1, 2]
        alike = lake(ADMIN_KEYS)
        assert both_ways(alike) == [1, 2]
        assert ADMIN.secret_key not in str(alike.spark().sql("set").collect())
        # Its keys go with its catalog.
        writer: Flags = {
            "storage.access_key_id": WRITER.access_key,
            "storage.secret_access_key": WRITER.secret_key,
        }
        assert both_ways(lake(writer, catalog="sql")) == [1, 2]
        for other in (
            lake(writer),
            lake({"storage.profile": "base"}),
            lake(BASE_KEYS, catalog="sql", role=True),
            lake({}, catalog="sql"),
        ):
            with pytest.raises(InvalidRequest, match="the keys of calve-admin, and for this") as no:
                other.spark()
            assert ADMIN.secret_key not in str(no.value)
            assert no.value.hint
    assert jvm.getProperty("aws.accessKeyId") is None
    assert servers.glue.seen(in_spark=True) == AS_ADMIN
    assert servers.signers.seen(in_spark=True) == AS_ADMIN | {(WRITER.access_key, False)}
    with ExitStack() as opened:
        lake({"storage.profile": "admin"}).spark()
        assert jvm.getProperty("aws.profile") == "admin"
    assert jvm.getProperty("aws.profile") is None


# A JVM's environment is that of the process that started it.
IN_AN_ENVIRONMENT = """
import json, sys
from calve.errors import InvalidRequest
from calve.lake import Lake
from calve.settings import load_settings
from tests.integration.test_aws_logins import both_ways
role, shadowed = (
    load_settings(flags=flags, environ={}).settings for flags in json.loads(sys.argv[1])
)
with Lake(role) as lake, Lake(shadowed) as other:
    ids = both_ways(lake)
    try:
        other.spark()
    except InvalidRequest as error:
        refusal = str(error)
print(json.dumps({"ids": ids, "refusal": refusal}))
"""


def test_spark_in_a_role_assumed_as_the_environment_says(
    spark_running: None, servers: Servers, tmp_path: Path
) -> None:
    role = servers.flags("glue", role=True) | {"data": str(tmp_path / "role")}
    shadowed = role | {"data": str(tmp_path / "shadowed"), "storage.profile": "admin"}
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": "base",
        "AWS_SECRET_ACCESS_KEY": "base-secret",
    }
    run = subprocess.run(
        [sys.executable, "-c", IN_AN_ENVIRONMENT, json.dumps([role, shadowed])],
        capture_output=True, text=True, timeout=180, check=False, cwd=ROOT, env=environment,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    answer = json.loads(run.stdout)
    assert answer["ids"] == [1, 2]
    assert "as AWS_ACCESS_KEY_ID says, not with the profile admin" in answer["refusal"]
    assert servers.temporary.service_signers.seen(in_spark=True) == AS_BASE
    assert servers.temporary.signers.seen(in_spark=True) == IN_ROLE
    assert servers.glue.seen(in_spark=True) == IN_ROLE


def test_spark_needs_the_region_of_a_role(make_settings: MakeSettings) -> None:
    settings = make_settings(storage__dsn="s3://b/p", storage__role_arn=ROLE_ARN)
    with pytest.raises(InvalidSettings, match=r"storage\.region"):
        catalog_conf(settings)
