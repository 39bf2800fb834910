"""The service with its state on a server: the whole way of a row, a restart, and a server that is away."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from calve import Client
from calve.ingest.keeper import TRIM_SECONDS
from calve.lake import Lake
from calve.model import TableName
from calve.state import PIPELINE_LEASE, open_state
from calve.topics import TopicRegistry
from tests.contract.states import state_store
from tests.servers.restartable import Restartable
from tests.services import post_rows, settings_of, up

pytestmark = pytest.mark.timeout(300)
SPARK_SECONDS = 120.0


KINDS = pytest.mark.parametrize(
    "kind", [pytest.param("postgres", marks=pytest.mark.torture), "etcd"]
)


@KINDS
def test_rows_get_into_tables_with_the_state_on_a_server(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    data = tmp_path / "lake"
    with state_store(kind, request.getfixturevalue, tmp_path) as store:
        given = ("--set", f"state.dsn={store.dsn}")
        with up(data, *given, only=None) as service:
            at = service.addresses()
            assert post_rows(at["http"], "events", [{"id": 1}, {"id": 2}])["end"] == 2
            with Client(at["flight"]) as client:
                client.flush("events", SPARK_SECONDS, to_table=True)
        settings = settings_of(data, state__dsn=store.dsn)
        with Lake(settings, create=False) as lake:
            rows = lake.sql("select id from events order by id", fresh=False)
            assert [row["id"] for row in rows] == [1, 2]
        state = open_state(settings)
        topic = TopicRegistry(state).topic(TableName.parse("events"))
        known = state.committed(topic.id, 0)
        assert known is not None
        assert known.offset == 2
        assert state.lease(PIPELINE_LEASE) is None, "it was given back"
        state.close()
        assert not (data / "_calve" / "state.db").exists()
        with up(data, *given) as service:
            assert post_rows(service.addresses()["http"], "events", [{"id": 3}])["end"] == 3


@KINDS
def test_rows_are_taken_in_while_the_state_is_away(kind: str, tmp_path: Path) -> None:
    with (
        Restartable(kind) as server,
        up(tmp_path / "lake", "--set", f"state.dsn={server.dsn}") as service,
    ):
        http = service.addresses()["http"]
        assert post_rows(http, "events", [{"id": 1}])["end"] == 1
        server.stop()
        # For longer than the log goes without being looked after, which needs the state.
        end, slowest, until = 1, 0.0, time.monotonic() + TRIM_SECONDS + 3
        while (begin := time.monotonic()) < until:
            end += 1
            assert post_rows(http, "events", [{"id": end}])["end"] == end
            slowest = max(slowest, time.monotonic() - begin)
        assert slowest < 2
        server.start()
        assert post_rows(http, "events", [{"id": 0, "more": "columns"}])["end"] == end + 1
