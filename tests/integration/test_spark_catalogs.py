"""Spark opens what Python opens, from the same settings: with TLS, logins and vended keys."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from calve.errors import InvalidRequest
from calve.settings import Settings
from calve.spark.conf import catalog_conf, kinds_of, session_conf
from calve.spark.login import jvm_needs
from calve.spark.truststore import trust_options
from tests.servers.fixtures import ServeFront, ServeTemporaryS3
from tests.servers.gates import Bearer, Vended
from tests.servers.rest import Rest
from tests.servers.tls import Authority

MakeSettings = Callable[..., Settings]

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


@pytest.mark.usefixtures("more_jars")
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


def jdbc_of(settings: Settings) -> dict[str, str]:
    prefix = "spark.sql.catalog.calve."
    conf = {key.removeprefix(prefix): value for key, value in catalog_conf(settings).items()}
    wanted = ("uri", "jdbc.user", "jdbc.password", "jdbc.sslmode", "jdbc.sslrootcert")
    return {key.removeprefix("jdbc."): conf[key] for key in wanted if key in conf}


POSTGRES = "jdbc:postgresql://"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("sqlite:////lake/c.db", {"uri": "jdbc:sqlite:/lake/c.db"}),
        ("sqlite+pysqlite:////lake/c.db", {"uri": "jdbc:sqlite:/lake/c.db"}),
        ("sqlite:////a%20lake/c.db", {"uri": "jdbc:sqlite:/a lake/c.db"}),
        ("postgresql://u@h/db", {"uri": f"{POSTGRES}h:5432/db", "user": "u"}),
        ("postgresql+psycopg://h:65535/db", {"uri": f"{POSTGRES}h:65535/db"}),
        ("postgresql://u@h", {"uri": f"{POSTGRES}h:5432/u", "user": "u"}),
        (
            "postgresql://u:p/w%40%25@[::1]:5433/my%20db",
            {"uri": f"{POSTGRES}[::1]:5433/my%20db", "user": "u", "password": "p/w@%"},
        ),
        (
            "postgresql://h/db?sslmode=verify-full&sslrootcert=/a%20b/ca.pem&connect_timeout=1",
            {"uri": f"{POSTGRES}h:5432/db", "sslmode": "verify-full", "sslrootcert": "/a b/ca.pem"},
        ),
        (
            "postgresql:///db?host=::1&port=1&user=u&password=p%26",
            {"uri": f"{POSTGRES}[::1]:1/db", "user": "u", "password": "p&"},
        ),
    ],
)
def test_a_database_is_the_same_for_java(
    make_settings: MakeSettings, uri: str, expected: dict[str, str]
) -> None:
    settings = make_settings(catalog__uri=uri)
    assert jdbc_of(settings) == expected
    assert kinds_of(settings) == {"postgres" if "postgres" in uri else "sqlite"}


def test_a_relative_database_is_found_from_javas_directory_too(make_settings: MakeSettings) -> None:
    settings = make_settings(catalog__uri="sqlite:///here.db")
    assert jdbc_of(settings) == {"uri": f"jdbc:sqlite:{Path.cwd() / 'here.db'}"}


@pytest.mark.parametrize(
    ("uri", "word"),
    [
        ("sqlite://", "memory"),
        ("sqlite:///:memory:", "memory"),
        ("sqlite:////c.db?mode=ro", "options"),
        ("sqlite://host/c.db", "names a host"),
        ("mysql://u:hunter2@h/db", "unknown kind mysql"),
        ("nothing", "not a database URL"),
        ("postgresql://u:hunter2@h:65536/db", "port 65536"),
        ("postgresql://u:hunter2@h:0/db", "port 0"),
        ("postgresql://u:hunter2@h:x/db", "port x"),
        ("postgresql:///db", "Unix socket"),
        ("postgresql://u:hunter2@/db?host=/var/run/postgresql", "Unix socket"),
        ("postgresql://u:hunter2@%2Fvar%2Frun/db", "Unix socket"),
        ("postgresql://u:hun@ter2@h/db", "more than one @"),
        ("postgresql://one,two/db", "several hosts"),
        ("postgresql://h", "names no database"),
        ("postgresql://h/db?krbsrvname=x", "krbsrvname"),
    ],
)
def test_a_database_that_java_cannot_open_is_refused_with_a_hint(
    make_settings: MakeSettings, uri: str, word: str
) -> None:
    with pytest.raises(InvalidRequest, match=word) as caught:
        catalog_conf(make_settings(catalog__uri=uri))
    assert caught.value.hint
    assert "hunter2" not in str(caught.value)


def test_a_space_in_a_path_stays_within_its_option(
    make_settings: MakeSettings, authority: Authority, tmp_path: Path
) -> None:
    settings = make_settings(catalog__properties__ssl__cabundle=str(authority.pem))
    trusted = trust_options(settings, tmp_path / "a lake")
    options = [*trusted, "-Da.name=my name", "-Dit's=x"]
    conf = session_conf(settings, jars=[], java_options=options)
    assert " " in trusted[0]
    assert shlex.split(conf["spark.driver.extraJavaOptions"])[1:] == options


IN_A_SPACE = """
import json, sys
from calve.lake import Lake
from calve.settings import load_settings
with Lake(load_settings(flags=json.loads(sys.argv[1]), environ={}).settings) as lake:
    spark = lake.spark()
    spark.sql("create table numbers as select id from range(3)")
    system = spark._jvm.java.lang.System
    print(json.dumps({
        "rows": spark.table("numbers").count(),
        "store": system.getProperty("javax.net.ssl.trustStore"),
        "zone": system.getProperty("user.timezone"),
    }))
"""


def test_spark_starts_for_a_lake_in_a_directory_with_a_space(
    authority: Authority, tmp_path: Path
) -> None:
    data = tmp_path / "my lake's"
    flags = {"data": str(data), "catalog.properties.ssl.cabundle": str(authority.pem)}
    run = subprocess.run(
        [sys.executable, "-c", IN_A_SPACE, json.dumps(flags)],
        capture_output=True, text=True, timeout=180, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    answer = json.loads(run.stdout)
    assert answer["rows"] == 3
    assert Path(answer["store"]).parent == data / "_calve" / "spark"
    assert Path(answer["store"]).is_file()
    assert answer["zone"] == "UTC"


KEYS = {"storage__access_key_id": "id", "storage__secret_access_key": "key"}
SIGNED = {
    "catalog__type": "rest",
    "catalog__uri": "http://h",
    "catalog.properties.rest.sigv4-enabled": "true",
}


def jvm_properties(settings: Settings) -> dict[str, str]:
    return {key: value for need in jvm_needs(settings) for key, value in need.properties.items()}


def test_glue_gets_a_temporary_keys_token_too(make_settings: MakeSettings) -> None:
    token = {"storage.properties.s3.session-token": "token"}
    settings = make_settings(catalog__type="glue", storage__dsn="s3://b/p", **KEYS, **token)
    assert jvm_properties(settings) == {
        "aws.accessKeyId": "id",
        "aws.secretAccessKey": "key",
        "aws.sessionToken": "token",
    }
    assert "key" not in str(jvm_needs(settings)).split("'")
    without = make_settings(catalog__type="glue", storage__dsn="s3://b/p", **KEYS)
    assert jvm_properties(without)["aws.sessionToken"] == ""


def test_keys_of_the_settings_sign_for_spark_too(make_settings: MakeSettings) -> None:
    conf = catalog_conf(make_settings(**SIGNED, **KEYS))
    assert conf["spark.sql.catalog.calve.rest.access-key-id"] == "id"
    assert conf["spark.sql.catalog.calve.rest.secret-access-key"] == "key"


def test_a_login_that_the_user_gives_to_iceberg_is_left_alone(make_settings: MakeSettings) -> None:
    own = {"catalog.properties.client.credentials-provider": "org.example.Provider"}
    settings = make_settings(catalog__type="glue", storage__dsn="s3://b/p", **KEYS, **own)
    assert jvm_needs(settings) == []
    conf = catalog_conf(settings)
    assert conf["spark.sql.catalog.calve.client.credentials-provider"] == "org.example.Provider"
