"""The pipeline at work: with the lease, until it is told to end, and drained then."""

from __future__ import annotations

import logging
import platform
from contextlib import closing
from typing import TYPE_CHECKING, Final, Protocol

from calve.clock import SystemClock
from calve.pipeline.pipeline import Pipeline
from calve.service.lease import LeaseKeeper
from calve.state import open_state

if TYPE_CHECKING:
    import threading

    from pyspark.sql import SparkSession

    from calve.settings import Settings
    from calve.settings.tree import IngestSettings
    from calve.tables.catalog import LakeCatalog

_log: Final = logging.getLogger(__name__)


class Spark(Protocol):
    @property
    def session(self) -> SparkSession: ...

    def is_alive(self) -> bool: ...


def run_pipeline(
    settings: Settings, spark: Spark, catalog: LakeCatalog, ending: threading.Event, *, owner: str
) -> None:
    """Bring rows to their tables until `ending` is set, then those that wait, within a bound.

    Waits while another owner has the lease. Unavailable if it is lost, or Spark.
    """
    with (
        closing(open_state(settings)) as state,
        LeaseKeeper(state, owner, ending, is_able=spark.is_alive) as lease,
    ):
        if not lease.await_turn():
            return
        _log.info("the pipeline brings rows to their tables")
        pipeline = Pipeline(
            settings,
            spark.session,
            state,
            catalog,
            clock=SystemClock(),
            flight=_flight_url(settings.ingest),
        )
        with closing(pipeline):
            pipeline.run(ending)
            lease.require()
            if not pipeline.drain(settings.pipeline.drain_ms / 1000):
                _log.info("not all rows got to their tables in time; the others are in the log")


def _flight_url(ingest: IngestSettings) -> str | None:
    """Where this machine's service is asked for rows, by executors that do not see its disk."""
    if ingest.flight_port == 0:
        return None
    everywhere = {"0.0.0.0", "::"}  # noqa: S104
    host = platform.node() if ingest.host in everywhere else ingest.host
    scheme = "grpc+tls" if ingest.tls_cert else "grpc"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{ingest.flight_port}"
