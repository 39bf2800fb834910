"""What Spark raises, in one line that says what happened."""

from __future__ import annotations

from pyspark.errors import PythonException

from calve.spark.translate import translate_spark

WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "task.py", line 14, in <module>
    import msgspec
ModuleNotFoundError: No module named 'msgspec'
"""


def test_of_an_error_in_a_python_worker_the_last_line_is_told() -> None:
    told = translate_spark(PythonException(WORKER))
    assert told.message == "Spark: ModuleNotFoundError: No module named 'msgspec'"


def test_of_another_error_the_first_line_is_told() -> None:
    told = translate_spark(PythonException("\n  the table is gone\n\tat org.apache"))
    assert told.message == "Spark: the table is gone"
