"""A JVM with Spark in it, started for Calve; no interruption and no failure leaves it behind."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext

from calve.spark.translate import keep_words

_LOG: Final = logging.getLogger(__name__)
_STOP_SECONDS_MAX: Final = 30


class SparkProcess:
    """Spark in a JVM of its own. `stop` ends it, however far it came.

    The JVM is launched in a thread, which Ctrl-C does not reach: interrupted, PySpark removes the
    file in which the JVM is about to tell its port, and that JVM would never end.
    """

    def __init__(self, launch: Callable[[], Any], conf: dict[str, str]) -> None:
        self.users = 0
        self._launch = launch
        self._conf = conf
        self._context: SparkContext | None = None
        self._gateway: Any = None
        self._is_stopped = False
        self._lock = threading.Lock()
        self._launching: Future[Any] | None = None
        self._on_interrupt = signal.getsignal(signal.SIGINT)

    @property
    def context(self) -> SparkContext:
        assert self._context is not None
        return self._context

    def start(self) -> None:
        # The program waits for this thread before it ends, even if it is interrupted twice.
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="calve-spark-launch")
        try:
            self._launching = thread.submit(self._launched)
            self._context = _context(self._launching.result(), self._conf)
        except BaseException as error:
            keep_words(error)
            self.stop()
            raise
        finally:
            thread.shutdown(wait=False)

    def is_alive(self) -> bool:
        """Whether nobody stopped the context and nothing killed its JVM."""
        java_context: Any = None if self._context is None else self._context._jsc  # noqa: SLF001
        if self._is_stopped or java_context is None or _has_ended(self._gateway.proc):
            return False
        try:
            return not java_context.sc().isStopped()
        except (Py4JError, OSError):
            return False

    def stop(self) -> None:
        """End Spark and its JVM, which PySpark would keep until the program ends."""
        with self._lock:
            is_first, self._is_stopped = not self._is_stopped, True
            gateway = self._gateway
        if gateway is not None and is_first:
            self._end(gateway)
        elif gateway is None and self._launching is not None:
            # Whoever launches it ends it, as soon as that can be done.
            wait([self._launching], _STOP_SECONDS_MAX)

    def _launched(self) -> Any:
        gateway = self._launch()
        with self._lock:
            self._gateway = gateway
            is_unwanted = self._is_stopped
        if is_unwanted:
            _end_jvm(gateway)
        return gateway

    def _end(self, gateway: Any) -> None:
        try:
            self._stop_context(has_jvm=not _has_ended(gateway.proc))
            self._give_back_interrupts()
        finally:
            if self._context is None or not _serves_another(gateway):
                _end_jvm(gateway)

    def _stop_context(self, *, has_jvm: bool) -> None:
        context = self._context
        # One that the user stopped is done with; stopping it again would hurt the next one.
        if context is None or SparkContext._active_spark_context is not context:  # noqa: SLF001
            return
        if not has_jvm:
            # Nobody is left to ask; PySpark then only forgets its own half.
            context._jsc = None  # noqa: SLF001
        with suppress(Py4JError, OSError):
            context.stop()

    def _give_back_interrupts(self) -> None:
        """On Ctrl-C, PySpark's handler would ask a Spark that is gone to cancel its jobs."""
        handler = signal.getsignal(signal.SIGINT)
        is_sparks = getattr(handler, "__module__", None) == SparkContext.__module__
        if is_sparks and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._on_interrupt)


def _context(gateway: Any, conf: dict[str, str]) -> SparkContext:
    # PySpark keeps the gateway of a session that was stopped, and would prefer it to ours.
    SparkContext._gateway = None  # noqa: SLF001
    SparkContext._jvm = None  # noqa: SLF001
    settings = SparkConf(loadDefaults=False).setAll(list(conf.items()))
    context = SparkContext(conf=settings, gateway=gateway)
    # PySpark itself would look for the workers' Python in the environment alone.
    context.pythonExec = conf["spark.pyspark.python"]
    updates: Any = context._accumulatorServer  # noqa: SLF001
    updates.handle_error = _log_update_error
    return context


def _log_update_error(*_: object) -> None:
    """Where PySpark's server of accumulators would print a traceback on standard error.

    Of a JVM that is gone, whoever uses Spark tells.
    """
    is_gone = isinstance(sys.exception(), EOFError | ConnectionError)
    level = logging.DEBUG if is_gone else logging.ERROR
    _LOG.log(level, "what Spark's JVM told of its tasks could not be read", exc_info=True)


def _serves_another(gateway: Any) -> bool:
    """Whether the user, after stopping our context, made another one in the same JVM."""
    has_context = SparkContext._active_spark_context is not None  # noqa: SLF001
    return has_context and SparkContext._gateway is gateway  # noqa: SLF001


def _has_ended(process: subprocess.Popen[bytes] | None) -> bool:
    return process is not None and process.poll() is not None


def _end_jvm(gateway: Any) -> None:
    if SparkContext._gateway is gateway:  # noqa: SLF001
        SparkContext._gateway = None  # noqa: SLF001
        SparkContext._jvm = None  # noqa: SLF001
        SparkContext._active_spark_context = None  # noqa: SLF001
    process: subprocess.Popen[bytes] | None = gateway.proc
    try:
        if not _has_ended(process):
            with suppress(Py4JError, OSError):
                gateway.shutdown()
    finally:
        if process is not None:
            _end_process(process)


def _end_process(process: subprocess.Popen[bytes]) -> None:
    try:
        # Spark's JVM ends when nobody can write to it any more.
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS_MAX)
    finally:
        # For one that takes too long, or a user who interrupts once more; else without effect.
        process.kill()
        process.wait()
