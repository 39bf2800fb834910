"""The one Spark of a process: quiet, in UTC, off the network, without secrets on its command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from calve.errors import InvalidRequest, Unavailable
from calve.lake import Lake
from calve.settings import Settings, looks_secret
from calve.spark import session
from calve.spark.conf import catalog_conf, session_conf, without_secrets
from calve.spark.jars import JarCache, needed_jars

MakeSettings = Callable[..., Settings]

SECRET_KEYS = (
    "header.Authorization",
    "header.X-Api-Key",
    "passwd",
    "private_key",
    "s3.session-token",
)


class Programs:
    """Programs that start a Spark of their own, all begun at once: each waits most of its time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, subprocess.Popen[str]] = {}

    def directory(self, program: str) -> Path:
        return self._directory / str(PROGRAMS.index(program))

    def begin(self, program: str) -> None:
        place = self.directory(program)
        place.mkdir()
        self._running[program] = subprocess.Popen(
            [sys.executable, "-c", program, place / "lake"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=place,
        )  # fmt: skip

    def ended(self, program: str) -> subprocess.CompletedProcess[str]:
        run = self._running[program]
        out, err = run.communicate(timeout=240)
        return subprocess.CompletedProcess(run.args, run.returncode, out, err)

    def stop(self) -> None:
        for run in self._running.values():
            run.kill()
            run.communicate()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    programs = Programs(tmp_path_factory.mktemp("programs"))
    try:
        for program in PROGRAMS:
            programs.begin(program)
        yield programs
    finally:
        programs.stop()


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
    for key in SECRET_KEYS:
        assert looks_secret(key)
        spark.conf.set(f"spark.sql.catalog.calve.{key}", "canary-1")
    shown = {row.key: row.value for row in spark.sql("set").collect()}
    assert {f"spark.sql.catalog.calve.{key}" for key in SECRET_KEYS} <= set(shown)
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


ON_A_PAGE = """
import signal, socket, sys, urllib.parse
from pathlib import Path
import psutil
import calve
from calve.settings import load_settings
# Put together here, so that this program's own command line does not hold it.
secret = "-".join(("canary", "2"))
flags = {"data": sys.argv[1], "spark.conf.spark.ui.enabled": "true", "spark.conf.spark.ui.port": "0",
         "spark.conf.spark.hadoop.fs.s3a.secret.key": secret}
try:
    with calve.open(load_settings(flags=flags | {"spark.master": "spark://nowhere"}, environ={}).settings) as lake:
        lake.spark()
except calve.CalveError as error:
    print(type(error).__name__, error.message.splitlines()[0])
handler = signal.getsignal(signal.SIGINT)
print(psutil.Process().children(), handler is signal.default_int_handler)
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
print(Path(f"/proc/{pid}").exists(), psutil.Process().children(), signal.getsignal(signal.SIGINT) is handler)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which Linux has")
def test_after_a_failed_start_spark_works_its_page_on_loopback_its_secrets_unseen(
    programs: Programs,
) -> None:
    run = programs.ended(ON_A_PAGE)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    said, after, host, listening, secrets, survives = run.stdout.splitlines()
    assert said.startswith("Unavailable Spark did not start: ")
    assert "spark://nowhere" in said
    assert after == "[] True"
    assert host == "127.0.0.1"
    assert listening in ("['127.0.0.1']", "['0000000000000000FFFF00000100007F']")
    assert secrets == "False canary-2"
    assert survives == "False [] True"
    assert (programs.directory(ON_A_PAGE) / "lake" / "_calve" / "logs" / "spark.log").exists()


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


SESSIONS_OF_THE_USER = """
import sys
from pyspark.sql import SparkSession
import calve

def own_session():
    return SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()

own = own_session()
for passed in (own, None):
    try:
        with calve.open(sys.argv[1], spark=passed) as lake:
            lake.spark()
    except calve.CalveError as error:
        print(type(error).__name__, error.message, "|", error.hint.split("=")[0])
own.stop()
try:
    with calve.open(sys.argv[1]) as lake:
        spark = lake.spark()
        print(spark.conf.get("spark.app.name"), spark.sql("show tables").collect())
        spark.sql("select nothing")
except Exception as error:
    print(type(error).__name__, "nothing" in str(error))
with calve.open(sys.argv[1]) as lake:
    lake.spark().stop()
    own = own_session()
    try:
        lake.spark()
    except calve.CalveError as error:
        print(type(error).__name__, error.message)
print(own.sql("select 1").count())
own.stop()
"""


def test_sessions_of_the_user_are_respected_before_between_and_after_ours(
    programs: Programs,
) -> None:
    run = programs.ended(SESSIONS_OF_THE_USER)
    assert run.returncode == 0, run.stderr
    without_iceberg, beside, *between, after, still_there = run.stdout.splitlines()
    assert without_iceberg.startswith(
        "InvalidRequest the Spark session that was passed in has no Iceberg | start it with"
    )
    assert beside.startswith(
        "InvalidRequest this program has a Spark session of its own already | pass it in"
    )
    # One that was stopped is no hindrance, and an error of Spark's can be read when Spark has gone.
    assert between == ["calve []", "AnalysisException True"]
    assert after == "InvalidRequest this program has a Spark session of its own already"
    assert still_there == "1"


INTERRUPTED = """
import signal, sys
import calve
with calve.open(sys.argv[1]) as lake:
    lake.spark()
    signal.pause()  # on a fast machine, Spark runs before the interrupt comes
"""


def group_members(group: int) -> list[psutil.Process]:
    """Whoever is in the process group, but for those that have ended and only wait to be noticed."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def await_launch(group: int) -> None:
    """Until the group has Spark's launch script, or what follows it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process in group_members(group):
            try:
                if "pyspark-shell" in process.cmdline():
                    return
            except psutil.Error:
                continue
        time.sleep(0.01)
    pytest.fail("Spark is not launched")


# From the launch script, through a JVM that has not told its port, to one that makes the context.
@pytest.mark.skipif(sys.platform != "linux", reason="the process group is read as Linux tells it")
def test_an_interrupted_start_leaves_no_jvm(tmp_path: Path) -> None:
    moments = (0, 0.7, 2.5, 5)
    with ThreadPoolExecutor(len(moments)) as pool:
        assert len(list(pool.map(partial(interrupt, tmp_path), moments))) == len(moments)


def interrupt(tmp_path: Path, seconds: float) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, tmp_path / f"lake{seconds}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, process_group=0,
    )  # fmt: skip
    try:
        await_launch(program.pid)
        time.sleep(seconds)
        os.killpg(program.pid, signal.SIGINT)
        _, errors = program.communicate(timeout=120)
        # In the middle of a question to Spark, the interrupt is its error.
        assert "KeyboardInterrupt" in errors or "calve.errors.Unavailable" in errors
        # Read once it was waited for: whatever is left now would be left for good.
        assert group_members(program.pid) == []
    finally:
        for process in group_members(program.pid):
            process.kill()


REPLACED = """
import os, signal, sys
import psutil
import calve
from calve.lake import Lake
from calve.settings import load_settings
from calve.spark.translate import translating_spark

def lake(name):
    return Lake(load_settings(flags={"data": f"{sys.argv[1]}/{name}"}, environ={}).settings)

def stop(session):
    session.stop()

def kill(session):
    child, = psutil.Process().children()
    os.kill(child.pid, signal.SIGKILL)
    try:
        with translating_spark():
            session.sql("select 1").collect()
    except calve.CalveError as error:
        print(type(error).__name__)

with lake("one") as one, lake("two") as two:
    two.spark()
    for end in (stop, kill):
        before = one.spark()
        end(before)
        with lake("three") as three:
            print(three.spark().sql("select 1").count())
            print(one.spark().sql("select 1").count(), one.spark() is not before)
            print(two.spark().sql("show tables").count())
            print(len(psutil.Process().children()))
        print(two.spark().sql("select 1").count())
print(psutil.Process().children())
"""


PROGRAMS = (ON_A_PAGE, SESSIONS_OF_THE_USER, REPLACED)


def test_a_spark_that_was_stopped_or_killed_is_replaced(programs: Programs) -> None:
    run = programs.ended(REPLACED)
    assert run.returncode == 0, run.stderr
    replaced = ["1", "1 True", "0", "1", "1"]
    assert run.stdout.splitlines() == [*replaced, "Unavailable", *replaced, "[]"]


def test_what_is_no_session_or_a_stopped_one_is_refused(
    make_settings: MakeSettings, tmp_path: Path, spark_lake: Lake
) -> None:
    stopped = spark_lake.spark().newSession()
    stopped._sc = SparkContext.__new__(SparkContext)
    stopped._sc._jsc = None
    for wrong, word in (("hello", "is a str"), (stopped, "is stopped")):
        with (
            Lake(make_settings(data=str(tmp_path / "other")), spark=wrong) as lake,  # type: ignore[arg-type]
            pytest.raises(InvalidRequest, match=word) as caught,
        ):
            lake.spark()
        assert "leave the session to Calve" in str(caught.value.hint)
    assert spark_lake.spark().sql("select 1").count() == 1


def test_a_session_that_cannot_be_made_is_let_go_of(
    spark_lake: Lake,
    make_settings: MakeSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark_lake.spark()
    shared = session._shared._spark
    assert shared is not None
    before = shared.users

    def fail(_: object) -> SparkSession:
        raise Py4JError("no session")

    monkeypatch.setattr(SparkSession, "newSession", fail)
    with (
        Lake(make_settings(data=str(tmp_path / "other"))) as lake,
        pytest.raises(Unavailable, match="no session"),
    ):
        lake.spark()
    assert shared.users == before


def test_the_catalog_is_closed_even_if_closing_spark_fails(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    monkeypatch.setattr(lake.catalog, "close", lambda: closed.append(1))

    class Failing:
        def close(self) -> None:
            raise RuntimeError("spark")

    lake._connections._spark = Failing()  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="spark"):
        lake.close()
    assert closed == [1]
    monkeypatch.undo()


def test_programs_add_to_one_log_which_is_begun_anew_when_it_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "logs" / "spark.log"
    with session._open_log(log) as first, session._open_log(log) as second:
        first.write(b"first\n")
        first.flush()
        second.write(b"second\n")
    assert log.read_bytes() == b"first\nsecond\n"
    assert session._last_lines(log, 6) == "  second"
    monkeypatch.setattr(session, "_LOG_BYTES_MAX", 10)
    with session._open_log(log):
        assert log.read_bytes() == b""


def test_the_pinned_jars_are_what_the_cache_holds(make_settings: MakeSettings) -> None:
    cache = make_settings().cache
    assert cache is not None
    assert [path.suffix for path in JarCache(cache).verified_paths(needed_jars({"sqlite"}))] == [
        ".jar",
        ".jar",
    ]
    assert SparkSession is not None
