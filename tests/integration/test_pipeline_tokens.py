"""A pipeline elsewhere, beside services that need tokens: it shows one, its tasks have tickets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from calve.model import TableName
from calve.pipeline.pipeline import Pipeline
from calve.settings import Settings, load_settings
from calve.state import open_state
from calve.tables.catalog import LakeCatalog
from tests.fakes.pipelines import run_here
from tests.integration.access_site import Site, access_site

ORDERS = TableName.parse("acme.default.orders")
WAIT_SECONDS = 30.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with access_site(tmp_path / "lake") as site:
        yield site


def elsewhere(site: Site, tmp_path: Path, token: str | None) -> Settings:
    """The settings of a machine that has the state, and not the log's disk."""
    flags = {
        "data": str(site.intake.settings.data),
        "wal.path": str(tmp_path / "no-log-here"),
        "pipeline.logs": site.addresses.flight,
        "pipeline.flush_interval_ms": 1,
        "pipeline.freshness_ms": 1,
        **({"pipeline.token": token} if token else {}),
    }
    return load_settings(flags=flags, environ={}).settings


def run_pipeline(settings: Settings, site: Site, *, until: int | str) -> None:
    """Cycles of it, until an offset is committed, or an error is told."""
    topic = site.intake.topics.topic(ORDERS)
    deadline = time.monotonic() + WAIT_SECONDS
    with closing(open_state(settings)) as state, LakeCatalog(settings) as catalog:
        pipeline = Pipeline(settings, None, state, catalog, run_pieces=run_here)  # type: ignore[arg-type]
        with closing(pipeline):
            while time.monotonic() < deadline:
                pipeline.run_cycle()
                known = state.committed(topic.id, 0)
                if isinstance(until, int) and known is not None and known.offset >= until:
                    return
                told = [each.error or "" for each in state.progress().partitions.values()]
                if isinstance(until, str) and any(until in error for error in told):
                    return
                time.sleep(0.05)
    pytest.fail(f"it did not come to {until!r}: {told}")


def test_rows_of_a_service_that_needs_tokens_come_to_their_table(
    site: Site, tmp_path: Path
) -> None:
    token = site.token(("pipeline",), tenant="*")
    settings = elsewhere(site, tmp_path, token)
    run_pipeline(settings, site, until=2)
    with LakeCatalog(settings) as catalog:
        rows = catalog.load_table(ORDERS).scan().to_arrow()
    assert sorted(rows["id"].to_pylist()) == [1, 2]
    site.revoke(token)
    site.produce(ORDERS.full)
    run_pipeline(settings, site, until="the token is not known")


@pytest.mark.parametrize(
    ("scopes", "said"), [(None, "a token is needed"), (("query",), "has not the scope pipeline")]
)
def test_without_the_right_token_a_pipeline_says_what_it_lacks(
    site: Site, tmp_path: Path, scopes: tuple[str, ...] | None, said: str
) -> None:
    token = None if scopes is None else site.token(scopes, tenant="*")  # type: ignore[arg-type]
    run_pipeline(elsewhere(site, tmp_path, token), site, until=said)


def test_the_pipeline_beside_a_service_needs_no_token(site: Site) -> None:
    """It has the log's disk; executors that have not would show its tickets."""
    run_pipeline(site.intake.settings, site, until=2)
