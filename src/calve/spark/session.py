"""The one place that makes a Spark session.

A process has at most one Spark; lakes that are opened side by side share it, each with a session
and a catalog of its own, and the last one to let go ends it. What Spark writes goes to a file.
"""

from __future__ import annotations

import importlib.resources
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from calve.errors import InvalidRequest, Unavailable
from calve.paths import DataLayout
from calve.settings import Settings
from calve.spark.conf import (
    CATALOG_CLASS,
    ICEBERG_EXTENSIONS,
    catalog_conf,
    is_local,
    java_properties,
    kinds_of,
    session_conf,
    without_secrets,
)
from calve.spark.jars import JarCache, needed_jars
from calve.spark.java import find_java
from calve.spark.truststore import trust_options

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway

_STOP_SECONDS_MAX: Final = 30
_LOG_LINES: Final = 15


def keep_words(error: BaseException) -> None:
    """Let an error of Spark's, which asks its JVM for its text, outlive that JVM."""
    if isinstance(error, Py4JError | PySparkException):
        kind, text = type(error), str(error)
        error.__class__ = type(kind.__name__, (kind,), {"__str__": lambda _: text})


class _SharedSpark:
    """The process's own Spark, and how many use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._context: SparkContext | None = None

    def acquire(self, settings: Settings) -> SparkContext:
        with self._lock:
            if self._context is None:
                self._context = _start(settings)
            else:
                _require_jars(self._context, settings)
            self._users += 1
            return self._context

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._context is not None:
                context, self._context = self._context, None
                _stop(context)


_shared: Final = _SharedSpark()


class LakeSpark:
    """A session with the lake's catalog. `close` lets go of it."""

    def __init__(self, settings: Settings, session: SparkSession | None = None) -> None:
        conf = catalog_conf(settings)
        self._is_own = session is None
        self.session = _own_session(settings) if session is None else session
        try:
            if session is not None:
                _require_iceberg(session)
            for key, value in conf.items():
                self.session.conf.set(key, value)
            for key, value in java_properties(settings).items():
                _jvm(self.session).java.lang.System.setProperty(key, value)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._is_own:
            self._is_own = False
            _shared.release()


def _own_session(settings: Settings) -> SparkSession:
    return SparkSession(_shared.acquire(settings)).newSession()


def _start(settings: Settings) -> SparkContext:
    find_java()
    if SparkContext._active_spark_context is not None:  # noqa: SLF001
        raise InvalidRequest(
            "this program has a Spark session of its own already",
            hint="pass it in: calve.open(..., spark=session)",
        )
    layout = DataLayout(settings.data)
    jars = JarCache(Path(str(settings.cache))).verified_paths(needed_jars(kinds_of(settings)))
    log_config = importlib.resources.files("calve.spark") / "log4j2.properties"
    with importlib.resources.as_file(log_config) as config:
        options = [
            f"-Dlog4j2.configurationFile={config.as_uri()}",
            *trust_options(settings, layout.own / "spark"),
            *([f"-Daws.profile={settings.storage.profile}"] if settings.storage.profile else []),
        ]
        conf = session_conf(settings, jars=jars, java_options=options)
        try:
            gateway = _launch(conf, layout.spark_log, on_loopback=is_local(settings))
            return _context(conf, gateway)
        except (PySparkException, Py4JError, OSError) as error:
            raise Unavailable(
                f"Spark did not start: {str(error).splitlines()[0]}\n"
                f"{_last_lines(layout.spark_log)}",
                hint=f"the whole story is in {layout.spark_log}; `calve doctor` checks the rest",
            ) from error


def _context(conf: dict[str, str], gateway: Any) -> SparkContext:
    # PySpark keeps the gateway of a session that was stopped, and would prefer it to ours.
    SparkContext._gateway = None  # noqa: SLF001
    SparkContext._jvm = None  # noqa: SLF001
    try:
        return SparkContext(
            conf=SparkConf(loadDefaults=False).setAll(list(conf.items())), gateway=gateway
        )
    except BaseException:
        _end_jvm(gateway)
        raise


def _launch(conf: dict[str, str], log: Path, *, on_loopback: bool) -> JavaGateway:
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    launch_conf = SparkConf(loadDefaults=False).setAll(list(without_secrets(conf).items()))
    # Spark reads the address of its web page from nowhere else.
    environment = {"SPARK_LOCAL_IP": "127.0.0.1"} if on_loopback else {}
    with log.open("wb") as output, _environment(environment):
        return launch_gateway(  # type: ignore[no-untyped-call]
            conf=launch_conf, popen_kwargs={"stdout": output, "stderr": subprocess.STDOUT}
        )


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _stop(context: SparkContext) -> None:
    """Stop Spark and its JVM, which PySpark would keep until the program ends."""
    gateway: Any = context._gateway  # noqa: SLF001
    with suppress(Py4JError, OSError):
        context.stop()
    _end_jvm(gateway)


def _end_jvm(gateway: Any) -> None:
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    SparkContext._gateway = None  # noqa: SLF001
    SparkContext._jvm = None  # noqa: SLF001
    process: subprocess.Popen[bytes] | None = gateway.proc
    if process is None:
        return
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _require_jars(context: SparkContext, settings: Settings) -> None:
    """Spark loads jars when it starts; a lake of another kind may need more of them."""
    loaded = context.getConf().get("spark.jars", "") or ""
    missing = [jar for jar in needed_jars(kinds_of(settings)) if jar.file_name not in loaded]
    if missing:
        raise InvalidRequest(
            f"this program's Spark was started without {missing[0].file_name}",
            hint="open this lake's Spark first, or in another process",
        )


def _require_iceberg(session: SparkSession) -> None:
    """Refuse a user's session that could not open the catalog, before anything is changed in it."""
    extensions = session.conf.get("spark.sql.extensions", "") or ""
    if ICEBERG_EXTENSIONS in extensions and _can_load(session, CATALOG_CLASS):
        return
    raise InvalidRequest(
        "the Spark session that was passed in has no Iceberg",
        hint=f"start it with Iceberg's runtime jar and spark.sql.extensions={ICEBERG_EXTENSIONS}, "
        "or leave the session to Calve",
    )


def _can_load(session: SparkSession, class_name: str) -> bool:
    try:
        _jvm(session).Thread.currentThread().getContextClassLoader().loadClass(class_name)
    except Py4JError:
        return False
    return True


def _jvm(session: SparkSession) -> Any:
    return session._jvm  # noqa: SLF001


def _last_lines(log: Path) -> str:
    if not log.exists():
        return ""
    lines = log.read_text("utf-8", "replace").splitlines()
    return "\n".join(f"  {line[:300]}" for line in lines[-_LOG_LINES:])
