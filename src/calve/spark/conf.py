"""Spark's configuration from Calve's settings. Values only; nothing is started here.

Two kinds: what must be known when the JVM starts, and the catalog, which is set on a running
session. Secrets are only in the second kind, because the first is on a process's command line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from calve.errors import InvalidRequest
from calve.settings import Settings, looks_secret

ICEBERG_EXTENSIONS: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
CATALOG_CLASS: Final = "org.apache.iceberg.spark.SparkCatalog"

# Spark places a table that it creates itself without asking Calve. Below this directory such a
# table can never lie inside one of Calve's, whose names begin with a letter.
SPARK_DIRECTORY: Final = "_spark"

_BUSY_TIMEOUT_MS: Final = 60_000
_LOOPBACK: Final = "127.0.0.1"
_REDACTED: Final = r"(?i)secret|password|passphrase|token|credential|access[.-]?key|\.uri$"
_JOINED: Final = {
    "spark.driver.extraJavaOptions": " ",
    "spark.jars": ",",
    "spark.sql.extensions": ",",
}


def is_local(settings: Settings) -> bool:
    return settings.spark.master.startswith("local")


def session_conf(settings: Settings, *, jars: Iterable[Path], log_config: Path) -> dict[str, str]:
    """What a new session is started with; the user's own values win, or are added to lists."""
    conf = {
        "spark.master": settings.spark.master,
        "spark.app.name": "calve",
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.extensions": ICEBERG_EXTENSIONS,
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": " ".join(
            ("-Duser.timezone=UTC", f"-Dlog4j2.configurationFile={log_config.as_uri()}")
        ),
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
    for key, value in settings.spark.conf.items():
        separator = _JOINED.get(key)
        conf[key] = f"{conf[key]}{separator}{value}" if separator else value
    return conf


def without_secrets(conf: dict[str, str]) -> dict[str, str]:
    """What may stand on a command line."""
    return {key: value for key, value in conf.items() if not looks_secret(key)}


def catalog_conf(settings: Settings) -> dict[str, str]:
    """What makes the lake's catalog the default one of a session, under its own name."""
    prefix = f"spark.sql.catalog.{settings.catalog.name}"
    properties = {
        # With Spark's cache on, work that follows another program's commit does not see it.
        "cache-enabled": "false",
        "default-namespace": "default.default",
        "warehouse": f"{_warehouse(settings)}/{SPARK_DIRECTORY}",
        **settings.storage.properties,
        **settings.catalog.properties,
        **_connection(settings),
    }
    conf = {f"{prefix}.{key}": value for key, value in properties.items()}
    return {prefix: CATALOG_CLASS, **conf, "spark.sql.defaultCatalog": settings.catalog.name}


def _warehouse(settings: Settings) -> str:
    dsn = str(settings.storage.dsn)
    if dsn.startswith("memory://"):
        raise InvalidRequest(
            "files in memory:// are in this Python process, where Spark cannot see them",
            hint="use a local directory, file:///…, to work with Spark",
        )
    return dsn.rstrip("/")


def _connection(settings: Settings) -> dict[str, str]:
    uri = settings.catalog.uri.reveal() if settings.catalog.uri else ""
    if settings.catalog.type == "sql" and uri.startswith("sqlite:///"):
        return {
            "type": "jdbc",
            "uri": f"jdbc:sqlite:{uri.removeprefix('sqlite:///')}",
            "jdbc.schema-version": "V1",
            "jdbc.busy_timeout": str(_BUSY_TIMEOUT_MS),
            "jdbc.synchronous": "FULL",
        }
    raise InvalidRequest(
        f"Spark cannot open a catalog of type {settings.catalog.type!r} with this version",
        hint="use the SQL catalog on SQLite, the default, to work with Spark",
    )
