"""A state on a server: away, restarted under load, silent about what it did, damaged, another's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from calve.errors import (
    CalveError,
    Conflict,
    Corruption,
    Denied,
    InvalidRequest,
    InvalidSettings,
    NotFound,
    Unavailable,
    UnknownOutcome,
)
from calve.model import TableName
from calve.state import Progress, State, SubscriptionName, open_state
from tests.conftest import MakeSettings
from tests.contract.states import SERVERS, StateStore, state_store
from tests.servers import etcd, process
from tests.servers.etcd import Etcd
from tests.servers.faults import FOREVER, delay_answer, drop_answer
from tests.servers.fixtures import ServeFront, ServeTcpFront
from tests.servers.needs import needed
from tests.servers.postgres import Postgres
from tests.servers.restartable import Restartable
from tests.servers.tcp import TcpFront
from tests.servers.tls import Authority

ORDERS = TableName.parse("orders")
BILLING = SubscriptionName.parse(ORDERS, "billing")
LOG, TOPIC = UUID(int=1), UUID(int=3)
QUICK = {"retry__max_attempts": 2, "retry__initial_delay_ms": 10}


@pytest.fixture(params=SERVERS)
def restartable(request: pytest.FixtureRequest) -> Iterator[Restartable]:
    with Restartable(request.param) as made:
        yield made


class Load:
    """Two threads that change a state and remember what was answered."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._done = threading.Event()
        self.offset = self.count = self.unknown = 0
        self.problems: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._repeat, args=[work])
            for work in (self._publish, self._count)
        ]
        for thread in self._threads:
            thread.start()

    def _repeat(self, work: Callable[[], None]) -> None:
        try:
            while not self._done.is_set():
                work()
        except (CalveError, AssertionError) as error:
            self.problems.append(error)

    def _publish(self) -> None:
        wanted = self.offset + 1
        self.offset = self._state.publish_committed(TOPIC, 0, log_id=LOG, offset=wanted).offset
        assert self.offset == wanted

    def _count(self) -> None:
        record = self._state.topic(ORDERS)
        assert record is not None
        try:
            replaced = self._state.replace_topic(record, b"%d" % (int(record.content) + 1))
        except UnknownOutcome:
            self.unknown += 1
        else:
            self.count += replaced is not None

    def await_more(self) -> None:
        count, offset = self.count + 5, self.offset + 5
        deadline = time.monotonic() + 60
        while self.count < count or self.offset < offset:
            assert not self.problems
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def stop(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()
        assert not self.problems


def test_a_restart_under_load_loses_nothing_that_was_answered(
    restartable: Restartable, make_settings: MakeSettings
) -> None:
    state = open_state(make_settings(state__dsn=restartable.dsn, retry__max_attempts=10))
    assert state.create_topic(ORDERS, b"0") is not None
    load = Load(state)
    load.await_more()
    restartable.stop()
    restartable.start()
    load.await_more()
    load.stop()
    known, record = state.committed(TOPIC, 0), state.topic(ORDERS)
    state.close()
    assert known is not None
    assert known.offset == load.offset
    assert record is not None
    assert 0 <= int(record.content) - load.count <= load.unknown


def test_a_server_that_is_away_is_told_and_one_that_is_back_answers(
    restartable: Restartable, make_settings: MakeSettings
) -> None:
    settings = make_settings(state__dsn=restartable.dsn, **QUICK)
    state = open_state(settings)
    state.publish_committed(TOPIC, 0, log_id=LOG, offset=7)
    restartable.stop()
    for call in (
        lambda: state.committed(TOPIC, 0),
        lambda: state.publish_committed(TOPIC, 0, log_id=LOG, offset=8),
        lambda: open_state(settings),
    ):
        with pytest.raises(Unavailable) as raised:
            call()
        assert raised.value.exit_code == 6
        assert raised.value.hint
        assert "calve-password" not in str(raised.value)
    restartable.start()
    assert state.publish_committed(TOPIC, 0, log_id=LOG, offset=9).offset == 9
    state.close()


@pytest.fixture(params=SERVERS)
def server_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore]:
    with state_store(request.param, request.getfixturevalue, tmp_path) as made:
        yield made


def through_front(store: StateStore, serve_tcp_front: ServeTcpFront) -> TcpFront:
    """Put a proxy before a state that has been made."""
    store.open().close()
    port = store.dsn.rpartition(":")[2].partition("/")[0]
    front = serve_tcp_front(int(port))
    store.dsn = store.dsn.replace(f":{port}/", f":{front.port}/")
    return front


def test_a_change_whose_answer_is_lost_is_repeated_or_told(
    server_store: StateStore, serve_tcp_front: ServeTcpFront
) -> None:
    front = through_front(server_store, serve_tcp_front)
    state = open_state(server_store.settings(**QUICK))

    def lose_next_change() -> None:
        # PostgreSQL's end of a transaction, etcd's transaction.
        front.faults.inject(
            drop_answer(), when=lambda data: b"COMMIT" in data or b"/v3/kv/txn" in data
        )

    lose_next_change()
    assert state.publish_committed(TOPIC, 0, log_id=LOG, offset=7).offset == 7
    lose_next_change()
    with pytest.raises(UnknownOutcome):
        state.create_topic(ORDERS, b"one")
    assert state.topic(ORDERS) is not None
    assert state.create_topic(ORDERS, b"two") is None
    state.close()


def test_a_server_that_is_silent_is_an_error_and_not_a_hang(
    server_store: StateStore, serve_tcp_front: ServeTcpFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calve.postgres.ANSWER_SECONDS_MAX", 0.5)
    monkeypatch.setattr("calve.state.etcd_client._ANSWER_SECONDS_MAX", 0.5)
    front = through_front(server_store, serve_tcp_front)
    state = open_state(server_store.settings(**QUICK))
    front.faults.inject(delay_answer(60), times=FOREVER)
    begin = time.monotonic()
    with pytest.raises(Unavailable):
        state.committed(TOPIC, 0)
    assert time.monotonic() - begin < 10
    state.close()


def test_a_damaged_record_is_an_error_with_a_way_out(store: StateStore, state: State) -> None:
    state.publish_progress([Progress(topic_id=TOPIC, partition=0)])
    state.publish_committed(TOPIC, 0, log_id=LOG, offset=7)
    store.damage("progress")
    store.damage("committed")
    for call in (
        state.progress,
        lambda: state.committed(TOPIC, 0),
        lambda: state.publish_committed(TOPIC, 0, log_id=LOG, offset=9),
        lambda: state.reset_committed(TOPIC, 0, log_id=LOG, offset=9),
    ):
        with pytest.raises(Corruption, match="cannot be read") as raised:
            call()
        assert "copy" in str(raised.value.hint) or "snapshot" in str(raised.value.hint)


@pytest.mark.parametrize("counter", ["changes", "generations"])
def test_a_missing_counter_is_an_error(store: StateStore, state: State, counter: str) -> None:
    store.forget(counter)
    calls: dict[str, Callable[[], object]] = {
        "changes": lambda: state.create_topic(ORDERS, b""),
        "generations": lambda: state.create_subscription(BILLING, TOPIC, {}),
    }
    with pytest.raises(Corruption, match=f"{counter} is missing"):
        calls[counter]()


def test_a_state_without_its_format_is_not_made_anew(
    postgres_server: Postgres, etcd_server: Etcd, make_settings: MakeSettings
) -> None:
    url = postgres_server.url.replace("+psycopg", "")
    first = make_settings(state__dsn=f"{url}?schema=formless")
    second = make_settings(state__dsn=f"{etcd_server.url}/formless")
    for settings in (first, second):
        state = open_state(settings)
        state.create_topic(ORDERS, b"")
        state.close()
    postgres_server.query("DROP TABLE formless.format")
    etcd_server.delete("/formless/persistent_storage/iceberg/state/format")
    for settings in (first, second):
        with pytest.raises(Corruption):
            open_state(settings)
    assert len(postgres_server.query("SELECT * FROM formless.topics")) == 1
    postgres_server.query("DROP SCHEMA formless CASCADE")


def test_a_newer_format_is_refused_with_both_numbers(
    postgres_server: Postgres, etcd_server: Etcd, make_settings: MakeSettings
) -> None:
    url = postgres_server.url.replace("+psycopg", "")
    first = make_settings(state__dsn=f"{url}?schema=newer")
    second = make_settings(state__dsn=f"{etcd_server.url}/newer")
    for settings in (first, second):
        open_state(settings).close()
    postgres_server.query("UPDATE newer.format SET version = 99")
    key = "/newer/persistent_storage/iceberg/state/format"
    etcd_server.overwrite(key, b'{"application":"calve","version":99}')
    for settings in (first, second):
        with pytest.raises(Conflict, match=r"format 99, this Calve knows [13]"):
            open_state(settings)
    postgres_server.query("DROP SCHEMA newer CASCADE")


def test_a_state_of_an_older_version_gets_the_tables_that_came_since(
    postgres_server: Postgres, make_settings: MakeSettings
) -> None:
    url = postgres_server.url.replace("+psycopg", "")
    settings = make_settings(state__dsn=f"{url}?schema=older")
    with closing(open_state(settings)) as state:
        state.create_topic(ORDERS, b"")
    postgres_server.query("DROP TABLE older.tokens")
    postgres_server.query("DROP TABLE older.signing_keys")
    postgres_server.query("DROP TABLE older.rewound")
    postgres_server.query("UPDATE older.format SET version = 1")
    with closing(open_state(settings)) as state:
        assert state.create_token("a", b"")
        assert state.topic(ORDERS) is not None
    assert postgres_server.query("SELECT version FROM older.format") == [(3,)]
    postgres_server.query("DROP SCHEMA older CASCADE")


def test_what_is_wrong_with_an_address_is_told(
    postgres_server: Postgres, make_settings: MakeSettings
) -> None:
    url = postgres_server.url.replace("+psycopg", "")
    with pytest.raises(Denied, match="refused the login") as raised:
        open_state(make_settings(state__dsn=url.replace("calve-password", "guess")))
    assert "guess" not in str(raised.value)
    with pytest.raises(NotFound, match="does not exist"):
        open_state(make_settings(state__dsn=f"{url}x"))
    for dsn in (f"{url}?schema=A.b", "etcd://", "etcd://host:x", "etcd://host?nonsense=1"):
        with pytest.raises(InvalidSettings, match=r"state\.dsn"):
            open_state(make_settings(state__dsn=dsn))


@pytest.mark.parametrize("name", ["", "ä/ö%2F", "日本", "a\nb", "../..", "x" * 1000, "'; DROP"])
def test_any_text_is_a_name_of_a_lease_by_itself(state: State, name: str) -> None:
    assert state.take_lease(name, f"owner {name}"[:1000], 60)
    assert state.take_lease(name + "x" if len(name) < 1000 else "y", "another", 60)
    held = state.lease(name)
    assert held is not None
    assert held.owner == f"owner {name}"[:1000]
    state.release_lease(name, held.owner)
    assert state.lease(name) is None


@pytest.mark.parametrize("name", ["\0", "a\ud800", "x" * 1001])
def test_what_no_store_can_keep_is_refused(state: State, name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be kept"):
        state.take_lease(name, "a", 60)
    with pytest.raises(InvalidRequest, match="cannot be kept"):
        state.take_lease("a", name, 60)
    with pytest.raises(InvalidRequest, match="out of range"):
        state.publish_committed(TOPIC, 0, log_id=LOG, offset=2**63)
    assert state.lease("a") is None


def test_a_lease_ends_with_its_time(state: State) -> None:
    assert state.take_lease("pipeline", "a", 1)
    assert not state.take_lease("pipeline", "b", 1)
    deadline = time.monotonic() + 10
    while not state.take_lease("pipeline", "b", 60):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not state.take_lease("pipeline", "a", 60)
    assert state.take_lease("pipeline", "b", 60)


def test_a_keeper_that_died_is_replaced_by_the_next(server_store: StateStore) -> None:
    state = server_store.open()
    state.publish_committed(TOPIC, 0, log_id=LOG, offset=7)
    dead = state.keeping_committed(0)
    dead.__enter__()  # and never left, as of a process that was killed
    with state.keeping_committed(0) as known:
        assert known[TOPIC].offset == 7
    assert state.hold_committed(TOPIC, 0, log_id=LOG, offset=3, seconds=60).offset == 3
    state.close()


def test_etcd_behind_a_login(make_settings: MakeSettings) -> None:
    with needed(etcd.serve()) as server:
        server.call("auth/role/add", {"name": "root"})
        server.require_login("root", "pass/word")
        for login in ("root:guess@", "nobody:pass@", ""):
            with pytest.raises(Denied) as raised:
                open_state(make_settings(state__dsn=server.url.replace("://", f"://{login}")))
            assert "guess" not in str(raised.value)
        dsn = server.url.replace("://", "://root:pass%2Fword@")
        state = open_state(make_settings(state__dsn=dsn))
        assert state.create_topic(ORDERS, b"") is not None
        state.close()


def test_etcd_over_tls(
    etcd_server: Etcd, serve_front: ServeFront, authority: Authority, make_settings: MakeSettings
) -> None:
    front = serve_front(etcd_server.port, tls=authority.server)
    dsn = f"etcd://127.0.0.1:{front.port}/tls?tls=true"
    with pytest.raises(Denied, match="certificate"):
        open_state(make_settings(state__dsn=dsn))
    state = open_state(make_settings(state__dsn=f"{dsn}&ca_file={authority.pem}"))
    assert state.create_topic(ORDERS, b"") is not None
    state.close()


def test_another_member_of_etcd_is_asked_when_one_is_away(
    etcd_server: Etcd, make_settings: MakeSettings
) -> None:
    dsn = etcd_server.url.replace("://", f"://127.0.0.1:{process.free_port()},") + "/members"
    state = open_state(make_settings(state__dsn=dsn, **QUICK))
    assert state.create_topic(ORDERS, b"") is not None
    state.close()
