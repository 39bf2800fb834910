"""The one place that makes a Spark session.

A process has at most one Spark; lakes that are opened side by side share it, each with a session
and a catalog of its own, and the last one to let go ends it. What Spark writes goes to a file.
"""

from __future__ import annotations

import importlib.resources
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from calve.errors import Denied, InvalidRequest, Unavailable
from calve.paths import DataLayout, make_private
from calve.settings import MASK, Settings
from calve.spark.conf import (
    CATALOG_CLASS,
    ICEBERG_EXTENSIONS,
    catalog_conf,
    is_local,
    is_redacted,
    kinds_of,
    session_conf,
    without_secrets,
)
from calve.spark.jars import JarCache, needed_jars
from calve.spark.java import find_java
from calve.spark.login import jvm_needs
from calve.spark.process import SparkProcess
from calve.spark.shared_login import shared_login
from calve.spark.translate import SPARK_ERRORS, first_line, translating_spark
from calve.spark.truststore import trust_options

_LOG_BYTES_MAX: Final = 10 * 1024 * 1024
_LOG_LINES: Final = 15
_SESSION_HINT: Final = (
    "pass a running classic session, from SparkSession.builder, or leave the session to Calve"
)


class _SharedSpark:
    """The process's own Spark, and how many use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spark: SparkProcess | None = None

    def acquire(self, settings: Settings) -> SparkProcess:
        """The Spark that runs; a new one, if none does or somebody stopped it or killed its JVM."""
        with self._lock:
            if self._spark is not None and not self._spark.is_alive():
                ended, self._spark = self._spark, None
                ended.stop()
            if self._spark is None:
                self._spark = _start(settings)
            else:
                _require_jars(self._spark.context, settings)
            self._spark.users += 1
            return self._spark

    def release(self, spark: SparkProcess) -> None:
        with self._lock:
            spark.users -= 1
            if spark.users:
                return
            if self._spark is spark:
                self._spark = None
            spark.stop()


_shared: Final = _SharedSpark()


class LakeSpark:
    """A session with the lake's catalog. `close` lets go of it."""

    def __init__(self, settings: Settings, session: SparkSession | None = None) -> None:
        conf = catalog_conf(settings)
        if session is not None:
            _require_session(session)
        self._own: SparkProcess | None = None
        self._logout: Callable[[], None] | None = None
        try:
            with translating_spark() if session is None else _refusing_session():
                self.session = self._own_session(settings) if session is None else session
                self._log_in(settings)
                _hide_secrets(self.session, conf)
                if session is None:
                    _forget_others(self.session, conf)
                for key, value in conf.items():
                    self.session.conf.set(key, value)
        except BaseException:
            self.close()
            raise

    def is_alive(self) -> bool:
        """Whether the session can be used; one of the user's own is left to the user."""
        return self._own is None or self._own.is_alive()

    def close(self) -> None:
        logout, self._logout = self._logout, None
        if logout is not None:
            logout()
        own, self._own = self._own, None
        if own is not None:
            _shared.release(own)

    def _own_session(self, settings: Settings) -> SparkSession:
        self._own = _shared.acquire(settings)
        return SparkSession(self._own.context).newSession()

    def _log_in(self, settings: Settings) -> None:
        needs = jvm_needs(settings) if "aws" in kinds_of(settings) else []
        login = shared_login(self.session)
        login.claim(needs)
        self._logout = partial(login.release, needs)


def _hide_secrets(session: SparkSession, conf: dict[str, str]) -> None:
    """Have Spark's event log leave secrets of the catalog out.

    Each job is logged with all that its session has, and what is redacted there is only what the
    context has, too. So it is told the names.
    """
    own = session.sparkContext._jsc.sc().conf()  # noqa: SLF001
    for key, value in conf.items():
        if is_redacted(key, value) and not own.contains(key):
            own.set(key, MASK)


def _forget_others(session: SparkSession, conf: dict[str, str]) -> None:
    """Take what a new session has got of the names that lakes before it have told the context."""
    prefix = f"{next(iter(conf))}."
    for key in session.conf.getAll:
        if key.startswith(prefix) and key not in conf:
            session.conf.unset(key)


def _start(settings: Settings) -> SparkProcess:
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
        ]
        conf = session_conf(settings, jars=jars, java_options=options)
        with _open_log(layout.spark_log) as log:
            return _started(conf, log, on_loopback=is_local(settings))


def _started(conf: dict[str, str], log: BinaryIO, *, on_loopback: bool) -> SparkProcess:
    begin = log.tell()
    spark = SparkProcess(lambda: _launch(conf, log, on_loopback=on_loopback), conf)
    try:
        spark.start()
    except (*SPARK_ERRORS, OSError, subprocess.SubprocessError) as error:
        raise Unavailable(
            f"Spark did not start: {first_line(error)}\n{_last_lines(Path(log.name), begin)}",
            hint=f"the whole story is in {log.name}; `calve doctor` checks the rest",
        ) from error
    return spark


def _open_log(path: Path) -> BinaryIO:
    """Several programs may work on one lake; each adds to the log, and it stays bounded."""
    try:
        make_private(path.parent)
        if path.exists() and path.stat().st_size > _LOG_BYTES_MAX:
            os.truncate(path, 0)
        return path.open("ab")
    except OSError as error:
        raise Denied(
            f"Spark's log {path} cannot be written: {error.strerror}",
            hint="change its permissions, or use another --data",
        ) from error


def _launch(conf: dict[str, str], log: BinaryIO, *, on_loopback: bool) -> Any:
    launch_conf = SparkConf(loadDefaults=False).setAll(list(without_secrets(conf).items()))
    # Spark reads the address of its web page from nowhere else.
    with _environment({"SPARK_LOCAL_IP": "127.0.0.1"} if on_loopback else {}):
        return launch_gateway(  # type: ignore[no-untyped-call]
            conf=launch_conf, popen_kwargs={"stdout": log, "stderr": subprocess.STDOUT}
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


def _require_jars(context: SparkContext, settings: Settings) -> None:
    """Spark loads jars when it starts; a lake of another kind may need more of them."""
    loaded = context.getConf().get("spark.jars", "") or ""
    missing = [jar for jar in needed_jars(kinds_of(settings)) if jar.file_name not in loaded]
    if missing:
        raise InvalidRequest(
            f"this program's Spark was started without {missing[0].file_name}",
            hint="open this lake's Spark first, or in another process",
        )


def _require_session(session: object) -> None:
    """Refuse a session that could not open the catalog, before anything is changed in it."""
    if not isinstance(session, SparkSession):
        raise InvalidRequest(
            f"what was passed in as spark is a {type(session).__name__}, not a Spark session",
            hint=_SESSION_HINT,
        )
    if session.sparkContext._jsc is None:  # noqa: SLF001
        raise InvalidRequest("the Spark session that was passed in is stopped", hint=_SESSION_HINT)
    with _refusing_session():
        extensions = session.conf.get("spark.sql.extensions", "") or ""
        if ICEBERG_EXTENSIONS in extensions and _can_load(session, CATALOG_CLASS):
            return
    raise InvalidRequest(
        "the Spark session that was passed in has no Iceberg",
        hint=f"start it with Iceberg's runtime jar and spark.sql.extensions={ICEBERG_EXTENSIONS}, "
        "or leave the session to Calve",
    )


@contextmanager
def _refusing_session() -> Iterator[None]:
    try:
        yield
    except SPARK_ERRORS as error:
        raise InvalidRequest(
            f"the Spark session that was passed in does not work: {first_line(error)}",
            hint=_SESSION_HINT,
        ) from error


def _can_load(session: SparkSession, class_name: str) -> bool:
    try:
        _jvm(session).Thread.currentThread().getContextClassLoader().loadClass(class_name)
    except Py4JJavaError:
        return False
    return True


def _jvm(session: SparkSession) -> Any:
    return session._jvm  # noqa: SLF001


def _last_lines(log: Path, begin: int) -> str:
    """The end of what was written since `begin`."""
    with log.open("rb") as text:
        text.seek(begin)
        lines = text.read().decode("utf-8", "replace").splitlines()
    return "\n".join(f"  {line[:300]}" for line in lines[-_LOG_LINES:])
