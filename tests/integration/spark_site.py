"""A lake with an intake, a pipeline on Spark, and Spark's SQL over the same tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from calve.lake import Lake
from calve.pipeline.job import run_pieces
from calve.pipeline.pipeline import Pipeline
from calve.settings import Settings
from tests.conftest import QUICK_RETRIES
from tests.fakes.pipelines import Site, site

FLAGS = {
    "wal__free_bytes_min": 0,
    "pipeline__flush_interval_ms": 1,
    "spark__master": "local[2]",
    **QUICK_RETRIES,
}


@dataclass
class SparkSite:
    lake: Lake
    site: Site

    def pipeline(self, **options: Any) -> Pipeline:
        given = {"session": self.lake.spark(), "run_pieces": run_pieces, **options}
        return self.site.pipeline(**given)

    def sql(self, statement: str) -> list[Any]:
        return list(self.lake.spark().sql(statement).collect())


@contextmanager
def spark_site(settings: Settings) -> Iterator[SparkSite]:
    with site(settings) as made, Lake(settings) as lake:
        yield SparkSite(lake, made)
