"""What Spark raises, in one line that says what happened."""

from __future__ import annotations

from py4j.protocol import Py4JNetworkError
from pyspark.errors import PythonException

from calve.spark.translate import translate_spark

WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "task.py", line 14, in <module>
    import msgspec
ModuleNotFoundError: No module named 'msgspec'
"""
DIED = """An error occurred while calling o48.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most \
recent failure: Lost task 0.0 in stage 0.0 (TID 0) (worker1 executor driver): org.apache.spark.SparkException: Python \
worker exited unexpectedly (crashed). Consider more.
Caused by: java.net.SocketException: Connection reset
"""


def test_of_an_error_in_a_python_worker_the_last_line_is_told() -> None:
    told = translate_spark(PythonException(WORKER))
    assert told.message == "Spark: ModuleNotFoundError: No module named 'msgspec'"


def test_of_another_error_the_first_line_is_told() -> None:
    told = translate_spark(PythonException("\n  the table is gone\n\tat org.apache"))
    assert told.message == "Spark: the table is gone"


def test_of_a_worker_that_has_died_is_told_that_it_has() -> None:
    told = translate_spark(PythonException(DIED))
    assert told.message == "Spark: Python worker exited unexpectedly (crashed). Consider more."


def test_of_a_jvm_that_is_gone_is_told_that_it_is() -> None:
    for error in (ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("empty")):
        assert translate_spark(error).message == "Spark: its JVM does not answer any more"


def test_of_a_lost_task_with_a_traceback_the_job_is_told() -> None:
    text = DIED.replace("Python worker exited", "Traceback (most recent call last)")
    assert (
        "Job aborted" in translate_spark(PythonException(text.split("Caused by: ", 1)[1])).message
    )
