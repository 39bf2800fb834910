"""Errors of PySpark and of Py4J, its bridge to Java, as the errors of Calve."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from calve.errors import CalveError, Unavailable
from calve.settings import mask_url

# Without its JVM, Spark is a connection that is refused or reset.
SPARK_ERRORS: Final = (Py4JError, PySparkException, ConnectionError)

_CALLING: Final = "An error occurred while calling"
_IN_WORKER: Final = "An exception was thrown from the Python worker"
# What became of a task, inside of what became of its stage, its job and whoever waited for that.
_LOST_TASK: Final = re.compile(r"Lost task .* executor \S+\): (?:[\w.$]+: )?(?!.*Traceback)(.+)")


def translate_spark(error: Exception) -> CalveError:
    """The error as one of Calve's, in one line."""
    is_gone = isinstance(error, Py4JNetworkError | ConnectionError)
    return Unavailable(
        f"Spark: {'its JVM does not answer any more' if is_gone else first_line(error)}",
        hint="`lake.spark()` starts Spark anew if it has ended; `calve doctor` checks it",
    )


@contextmanager
def translating_spark() -> Iterator[None]:
    """Raise what Spark raises inside as an error of Calve."""
    try:
        yield
    except SPARK_ERRORS as error:
        raise translate_spark(error) from error


def first_line(error: BaseException) -> str:
    """What happened, without the call that Py4J names first and without the stack trace."""
    lines = [line.removeprefix(": ").strip() for line in _words(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(_CALLING)]
    if told and told[0].startswith(_IN_WORKER):
        told = told[-1:]  # Python says last what happened
    elif lost := next(filter(None, map(_LOST_TASK.search, told)), None):
        told = [lost[1]]
    return mask_url(told[0] if told else type(error).__name__)


def keep_words(error: BaseException) -> None:
    """Let an error of Spark's, which asks its JVM for its text, outlive that JVM."""
    if isinstance(error, Py4JError | PySparkException):
        kind, text = type(error), _words(error)
        error.__class__ = type(kind.__name__, (kind,), {"__str__": lambda _: text})


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except (Py4JError, OSError):
        # The JVM, which has the text, is gone.
        return type(error).__name__
