"""Spark's configuration from Calve's settings. Values only; nothing is started here.

Two kinds: what must be known when the JVM starts, and the catalog, which is set on a running
session. Secrets are only in the second kind, because the first is on a process's command line.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from calve.errors import InvalidRequest
from calve.settings import Settings, looks_secret
from calve.settings.secret import SECRET_WORDS
from calve.spark.jdbc import POSTGRESQL, SQLITE, database_kind, jdbc
from calve.spark.login import catalog_login, signs_requests

ICEBERG_EXTENSIONS: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
CATALOG_CLASS: Final = "org.apache.iceberg.spark.SparkCatalog"

# Spark places a table that it creates itself without asking Calve. Below this directory such a
# table can never lie inside one of Calve's, whose names begin with a letter.
SPARK_DIRECTORY: Final = "_spark"

REST_DEFAULTS: Final = {
    "header.X-Iceberg-Access-Delegation": "vended-credentials",
    "rest.client.connection-timeout-ms": "5000",
    "rest.client.socket-timeout-ms": "30000",
}

_ANSWER_SECONDS_MAX: Final = 30
_BUSY_TIMEOUT_MS: Final = 60_000
_LOOPBACK: Final = "127.0.0.1"
# What settings hide, and what Spark shows besides: a catalog's address may hold a password.
_REDACTED: Final = rf"{SECRET_WORDS.pattern}|access[.-]?key|\.uri$|://[^/\s:@]*:[^\s?]+@"
_UNPACKED: Final = "calve-executors"
_JOINED: Final = {
    "spark.archives": ",",
    "spark.driver.extraJavaOptions": " ",
    "spark.jars": ",",
    "spark.sql.extensions": ",",
}


def is_local(settings: Settings) -> bool:
    return settings.spark.master.startswith("local")


def session_conf(
    settings: Settings, *, jars: Iterable[Path], java_options: Iterable[str]
) -> dict[str, str]:
    """What a new session is started with; the user's own values win, or are added to lists."""
    conf = {
        "spark.master": settings.spark.master,
        "spark.app.name": "calve",
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.extensions": ICEBERG_EXTENSIONS,
        "spark.driver.memory": "1g",
        # Spark's launcher splits this as a shell would, and a path may hold a space.
        "spark.driver.extraJavaOptions": shlex.join(("-Duser.timezone=UTC", *java_options)),
        "spark.pyspark.python": sys.executable,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.redaction.regex": _REDACTED,
        "spark.sql.redaction.options.regex": _REDACTED,
    }
    if is_local(settings):
        conf |= {
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.sql.shuffle.partitions": "8",
        }
    else:
        conf |= _executors(settings)
    for key, value in settings.spark.conf.items():
        separator = _JOINED.get(key)
        conf[key] = f"{conf[key]}{separator}{value}" if separator and key in conf else value
    return conf


def _executors(settings: Settings) -> dict[str, str]:
    """What other machines run tasks with: their own Python, and Calve from the archive."""
    conf = {"spark.pyspark.python": "python3"}
    if settings.spark.package is not None:
        conf |= {
            "spark.archives": f"{settings.spark.package}#{_UNPACKED}",
            "spark.executorEnv.PYTHONPATH": f"./{_UNPACKED}",
        }
    return conf


def without_secrets(conf: dict[str, str]) -> dict[str, str]:
    """What may stand on a command line."""
    return {key: value for key, value in conf.items() if not looks_secret(key)}


def is_redacted(key: str, value: str) -> bool:
    """Whether Spark is to hide a value, by its name or by what it looks like."""
    return re.search(_REDACTED, key) is not None or re.search(_REDACTED, value) is not None


def kinds_of(settings: Settings) -> frozenset[str]:
    """What the lake's catalog and store are, as far as it decides which jars Spark needs."""
    kinds: set[str] = set()
    if settings.catalog.type == "sql":
        assert settings.catalog.uri is not None
        kinds.add("postgres" if database_kind(settings.catalog.uri) == POSTGRESQL else "sqlite")
    if settings.catalog.type == "glue" or signs_requests(settings) or _is_s3(settings):
        kinds.add("aws")
    return frozenset(kinds)


def catalog_conf(settings: Settings) -> dict[str, str]:
    """What makes the lake's catalog the default one of a session, under its own name."""
    prefix = f"spark.sql.catalog.{settings.catalog.name}"
    properties = {
        # With Spark's cache on, work that follows another program's commit does not see it.
        "cache-enabled": "false",
        "default-namespace": "default.default",
        **_store(settings),
        **_catalog(settings),
        **settings.storage.properties,
        **settings.catalog.properties,
    }
    conf = {f"{prefix}.{key}": value for key, value in properties.items()}
    return {prefix: CATALOG_CLASS, **conf, "spark.sql.defaultCatalog": settings.catalog.name}


def _catalog(settings: Settings) -> dict[str, str]:
    match settings.catalog.type:
        case "sql":
            return {**_database(settings), "warehouse": _warehouse(settings)}
        case "rest":
            login = catalog_login(settings) if signs_requests(settings) else {}
            return {"type": "rest", "uri": _uri(settings), **REST_DEFAULTS, **login}
        case "glue":
            return _glue(settings)
        case "memory":
            raise InvalidRequest(
                "a catalog in memory is in this Python process, where Spark cannot see it",
                hint="use the SQL catalog, the default, to work with Spark",
            )


def _database(settings: Settings) -> dict[str, str]:
    uri = settings.catalog.uri
    assert uri is not None
    database = jdbc(uri)
    common = {
        "type": "jdbc",
        "jdbc.schema-version": "V1",
        "uri": database.uri,
        **{f"jdbc.{name}": value for name, value in database.properties.items()},
    }
    if database_kind(uri) == SQLITE:
        return common | {
            "jdbc.busy_timeout": str(_BUSY_TIMEOUT_MS),
            "jdbc.synchronous": "FULL",
        }
    return common | {
        "jdbc.connectTimeout": str(max(1, settings.catalog.pool.connection_timeout_ms // 1000)),
        "jdbc.socketTimeout": str(_ANSWER_SECONDS_MAX),
        "jdbc.ApplicationName": "calve",
    }


def _glue(settings: Settings) -> dict[str, str]:
    given = {"glue.endpoint": _uri(settings), "client.region": settings.storage.region}
    return {
        "catalog-impl": "org.apache.iceberg.aws.glue.GlueCatalog",
        "default-namespace": "default__default",
        "warehouse": _warehouse(settings),
        **({} if _is_s3(settings) else {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}),
        **catalog_login(settings),
        **{key: value for key, value in given.items() if value},
    }


def _store(settings: Settings) -> dict[str, str]:
    if not _is_s3(settings):
        return {}
    storage = settings.storage
    given = {"s3.endpoint": storage.endpoint, "client.region": storage.region}
    return {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.path-style-access": "true" if storage.path_style else "false",
        **catalog_login(settings),
        **{key: value for key, value in given.items() if value},
    }


def _warehouse(settings: Settings) -> str:
    dsn = str(settings.storage.dsn)
    if dsn.startswith("memory://"):
        raise InvalidRequest(
            "files in memory:// are in this Python process, where Spark cannot see them",
            hint="use a local directory, file:///…, to work with Spark",
        )
    return f"{dsn.rstrip('/')}/{SPARK_DIRECTORY}"


def _is_s3(settings: Settings) -> bool:
    dsn = settings.storage.dsn
    # Where a server chooses the place of tables, an address or a region says that it is in S3.
    return (
        dsn.startswith("s3://")
        if dsn
        else bool(settings.storage.endpoint or settings.storage.region)
    )


def _uri(settings: Settings) -> str:
    return settings.catalog.uri.reveal() if settings.catalog.uri else ""
