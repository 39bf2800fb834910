"""The pipeline process, as a supervisor starts it: `python -m calve.service.pipeline`.

The driver of Spark, whose JVM ends with it, however that happens. It reports once Spark is there.
Asked to end, it brings what waits to the tables, within `pipeline.drain_ms`.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from calve.errors import Unavailable
from calve.parts import load_part
from calve.paths import DataLayout
from calve.service.orders import Report
from calve.service.process import Surroundings, run_process
from calve.tables.catalog import LakeCatalog

if TYPE_CHECKING:
    from calve.settings import Settings

_log: Final = logging.getLogger("calve.service.pipeline")  # as it is run, its name is __main__


def main() -> int:
    return run_process(_work)


def _work(settings: Settings, surroundings: Surroundings) -> None:
    session = load_part("spark", "calve.spark.session")
    with ExitStack() as opened:
        catalog = LakeCatalog(settings)
        opened.callback(catalog.close)
        catalog.create_default_namespace()
        spark = session.LakeSpark(settings)
        opened.callback(spark.close)
        surroundings.hear_signals()  # which PySpark has taken
        surroundings.report(Report())
        from calve.service.pipelining import run_pipeline

        try:
            run_pipeline(settings, spark, catalog, surroundings.ending, owner=_owner())
        except Unavailable as error:
            _log.warning(
                "the pipeline ends, and is started again: %s", error.message,
                extra={"spark_log": str(DataLayout(settings.data).spark_log)},
            )  # fmt: skip
            raise


def _owner() -> str:
    """The supervisor, not this process: one that it starts again goes on at once."""
    return f"process {os.getppid()} on {platform.node()}"


if __name__ == "__main__":
    sys.exit(main())
