"""Spark's classes as one JVM has parsed them, for all later ones: each needs 5 s less of a core.

Made beside the first tests of a long run, for one Java and one place of Spark. Until it is there,
and where it does not fit, a JVM starts as it always does.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from calve.lake import Lake
from calve.settings import load_settings

ROOT: Final = Path(__file__).resolve().parents[1]
_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
# Making it takes as much as six starts without it.
_TESTS_MIN: Final = 50


class ClassData:
    """The archive, in a directory that `make clean` removes."""

    def __init__(self) -> None:
        home = os.environ.get("JAVA_HOME")
        java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
        spark = find_spec("pyspark")
        origin = Path(spark.origin) if spark is not None and spark.origin else Path()
        made_for = f"{java.resolve()} {origin} {origin.stat().st_mtime_ns}"
        key = hashlib.sha256(made_for.encode()).hexdigest()[:12]
        self.path = ROOT / ".build" / f"spark-classes-{key}.jsa"
        self._making: subprocess.Popen[bytes] | None = None
        self._draft = self.path.with_suffix(f".{os.getpid()}")

    def use(self) -> None:
        """As soon as it is there, have every JVM of Spark take it; one that cannot says nothing."""
        if _OPTIONS not in os.environ and self.path.exists():
            quiet = "-Xlog:cds=off -Xlog:cds+dynamic=off"
            os.environ[_OPTIONS] = f"-XX:SharedArchiveFile={self.path} {quiet}"

    def make_for(self, tests: int) -> None:
        """Begin to make it, if so many tests with Spark are worth it."""
        if self.path.exists() or tests < _TESTS_MIN:
            return
        self.path.parent.mkdir(exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CALVE_")}
        self._making = subprocess.Popen(
            [sys.executable, "-m", "tests.class_data", str(self._draft), str(self.path)],
            cwd=ROOT,
            env={**kept, _OPTIONS: f"-XX:ArchiveClassesAtExit={self._draft}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        making = self._making
        if making is not None and making.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(making.pid, signal.SIGKILL)
            making.wait()
        if making is not None:
            self._draft.unlink(missing_ok=True)


def main(draft: str, path: str) -> None:
    """Start Spark, use it a little, and have its JVM write down what it has parsed as it ends."""
    from calve.spark import process

    process._STOP_SECONDS_MAX = 300  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as directory:
        settings = load_settings(flags={"data": directory}, environ={}).settings
        with Lake(settings) as lake:
            spark = lake.spark()
            spark.sql("create table t (id bigint) using iceberg")
            spark.sql("insert into t values (1)")
            spark.sql("delete from t where id = 2")
            spark.table("t").groupBy("id").count().toArrow()
    Path(draft).rename(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
