"""The one Spark of a process: quiet, in UTC, off the network, without secrets on its command line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from calve.errors import InvalidRequest
from calve.lake import Lake
from calve.settings import Settings
from calve.spark.conf import catalog_conf, session_conf, without_secrets
from calve.spark.jars import JarCache, needed_jars

MakeSettings = Callable[..., Settings]


def test_two_lakes_share_spark_and_keep_their_catalogs(
    make_settings: MakeSettings, tmp_path: Path, spark_running: None
) -> None:
    with (
        Lake(make_settings(data=str(tmp_path / "one"))) as one,
        Lake(make_settings(data=str(tmp_path / "two"))) as two,
    ):
        for lake, rows in ((one, 1), (two, 2)):
            lake.catalog.create_table("numbers", pa.schema([("id", pa.int64())]))
            lake.spark().sql(f"insert into numbers select id from range({rows})")
        assert one.spark().table("numbers").count() == 1
        assert two.spark().table("numbers").count() == 2
        assert one.spark() is one.spark()
        assert one.spark().sparkContext is two.spark().sparkContext


def test_a_session_is_in_utc_and_has_no_web_page(spark_lake: Lake) -> None:
    spark = spark_lake.spark()
    assert spark.sql("select current_timezone()").collect()[0][0] == "UTC"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.conf.get("spark.driver.memory") == "1g"


def test_the_catalogs_address_is_redacted_where_spark_shows_its_settings(spark_lake: Lake) -> None:
    spark = spark_lake.spark()
    spark.conf.set("spark.sql.catalog.calve.jdbc.password", "canary-1")
    shown = {row.key: row.value for row in spark.sql("set").collect()}
    assert "canary-1" not in str(shown)
    assert "redacted" in shown["spark.sql.catalog.calve.uri"]


def test_a_users_own_session_is_used_and_not_stopped(
    spark_lake: Lake, make_settings: MakeSettings, tmp_path: Path
) -> None:
    own = spark_lake.spark().newSession()
    with Lake(make_settings(data=str(tmp_path / "own")), spark=own) as lake:
        lake.catalog.create_table("users", pa.schema([("id", pa.int64())]))
        assert lake.spark() is own
        assert own.sql("show tables").count() == 1
    assert own.sql("select 1").count() == 1


WITHOUT_ICEBERG = """
import sys
from pyspark.sql import SparkSession
import calve
session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for passed in (session, None):
    try:
        with calve.open(sys.argv[1], spark=passed) as lake:
            lake.spark()
    except calve.CalveError as error:
        print(type(error).__name__, error.message, "|", error.hint.split("=")[0])
session.stop()
"""


def test_a_session_without_iceberg_is_refused_and_a_second_spark_too(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_ICEBERG, tmp_path / "lake"],
        capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path,
    )  # fmt: skip
    first, second = run.stdout.splitlines()
    assert first.startswith(
        "InvalidRequest the Spark session that was passed in has no Iceberg | start it with"
    )
    assert second.startswith(
        "InvalidRequest this program has a Spark session of its own already | pass it in"
    )


ON_A_PAGE = """
import socket, sys, urllib.parse
from pathlib import Path
import calve
from calve.settings import load_settings
# Put together here, so that this program's own command line does not hold it.
secret = "-".join(("canary", "2"))
flags = {"data": sys.argv[1], "spark.conf.spark.ui.enabled": "true", "spark.conf.spark.ui.port": "0",
         "spark.conf.spark.hadoop.fs.s3a.secret.key": secret}
with calve.open(load_settings(flags=flags, environ={}).settings) as lake:
    spark = lake.spark()
    page = urllib.parse.urlparse(spark.sparkContext.uiWebUrl)
    print(page.hostname)
    pid = spark.sparkContext._gateway.proc.pid
    listening = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        address, state = line.split()[1], line.split()[3]
        if state == "0A" and int(address.split(":")[1], 16) == page.port:
            listening.add(socket.inet_ntoa(bytes.fromhex(address.split(":")[0])[::-1]))
    for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]:
        address, state = line.split()[1], line.split()[3]
        if state == "0A" and int(address.split(":")[1], 16) == page.port:
            listening.add(address.split(":")[0])
    print(sorted(listening))
    words = [Path(p, "cmdline").read_bytes() for p in Path("/proc").glob("[0-9]*") if Path(p, "cmdline").exists()]
    print(any(secret.encode() in each for each in words), spark.conf.get("spark.hadoop.fs.s3a.secret.key"))
print(Path(f"/proc/{pid}").exists())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which Linux has")
def test_the_web_page_is_on_loopback_secrets_on_no_command_line_and_the_jvm_ends(
    tmp_path: Path,
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", ON_A_PAGE, tmp_path / "lake"],
        capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert run.stderr == ""
    host, listening, secrets, survives = run.stdout.splitlines()
    assert host == "127.0.0.1"
    assert listening in ("['127.0.0.1']", "['0000000000000000FFFF00000100007F']")
    assert secrets == "False canary-2"
    assert survives == "False"
    assert (tmp_path / "lake" / "_calve" / "logs" / "spark.log").exists()


def test_the_users_values_win_and_lists_are_added_to(make_settings: MakeSettings) -> None:
    own = '{"spark.driver.memory": "4g", "spark.jars": "mine.jar", "spark.sql.extensions": "My"}'
    settings = make_settings(spark__conf=own)
    conf = session_conf(settings, jars=[Path("a.jar")], java_options=[])
    assert conf["spark.driver.memory"] == "4g"
    assert conf["spark.jars"] == "a.jar,mine.jar"
    assert conf["spark.sql.extensions"].endswith("IcebergSparkSessionExtensions,My")
    assert "x.password" not in without_secrets({"x.password": "a", "y": "b"})


def test_a_cluster_gets_no_loopback_address(make_settings: MakeSettings) -> None:
    settings = make_settings(spark__master="spark://host:7077")
    conf = session_conf(settings, jars=[], java_options=[])
    assert conf["spark.master"] == "spark://host:7077"
    assert "spark.driver.host" not in conf


@pytest.mark.parametrize("flags", [{"catalog__type": "memory"}, {"storage__dsn": "memory://"}])
def test_what_is_in_memory_cannot_be_sparks(
    make_settings: MakeSettings, flags: dict[str, str]
) -> None:
    settings = make_settings(**flags)
    with pytest.raises(InvalidRequest):
        catalog_conf(settings)


def test_spark_that_cannot_start_says_why_and_where(tmp_path: Path) -> None:
    code = (
        "import sys, calve\n"
        "from calve.settings import load_settings\n"
        "flags = {'data': sys.argv[1], 'spark.conf': '{\"spark.driver.memory\": \"lots\"}'}\n"
        "try:\n"
        "    calve.open(load_settings(flags=flags, environ={}).settings).spark()\n"
        "except calve.CalveError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "lake"],
        capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert run.stdout.startswith("Unavailable Spark did not start")
    assert "lots" in run.stdout
    assert "spark.log" in run.stdout


AFTER_ANOTHER = """
import sys
from pyspark.sql import SparkSession
import calve
SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate().stop()
try:
    with calve.open(sys.argv[1]) as lake:
        spark = lake.spark()
        print(spark.conf.get("spark.app.name"), spark.sql("show tables").collect())
        spark.sql("select nothing")
except Exception as error:
    print(type(error).__name__, "nothing" in str(error))
"""


def test_a_stopped_session_of_the_user_is_no_hindrance_and_errors_outlive_spark(
    tmp_path: Path,
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", AFTER_ANOTHER, tmp_path / "lake"],
        capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert run.stdout.splitlines() == ["calve []", "AnalysisException True"]


def test_the_pinned_jars_are_what_the_cache_holds(make_settings: MakeSettings) -> None:
    cache = make_settings().cache
    assert cache is not None
    assert [path.suffix for path in JarCache(cache).verified_paths(needed_jars({"sqlite"}))] == [
        ".jar",
        ".jar",
    ]
    assert SparkSession is not None
