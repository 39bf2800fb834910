"""The audit of a topic through a service: what the lake itself would say, one at a time."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest

from calve.client import Client
from calve.errors import InvalidRequest, NotFound, Overloaded, Unavailable
from calve.lake import Lake
from calve.maintenance import verify
from calve.maintenance.sweep import sweep
from calve.maintenance.verification import Verification
from calve.model import TableName
from calve.service.serving import Serving
from calve.settings import Settings
from calve.tables.offset_scan import OffsetFile, OffsetReader, Piece
from calve.topics import TopicSpec
from tests.commands import Run, run_command
from tests.conftest import MakeSettings
from tests.fakes.defects import forget
from tests.fakes.small_pipeline import drain
from tests.fakes.topic_table import data_files
from tests.integration.access_site import OTHER, OWN, Site, access_site, bearer
from tests.services import wait_until

ORDERS = TableName.parse("orders")
PATH = "/v1/topics/orders/verify"
WAIT_SECONDS = 30


class Served:
    """A lake with the topic `orders`, and its service without tokens."""

    def __init__(self, lake: Lake, serving: Serving, http: httpx.Client) -> None:
        self.lake = lake
        self.serving = serving
        self.http = http
        self.flight = serving.addresses.flight

    def send(self, *ids: object) -> None:
        rows = "\n".join(json.dumps({"id": each}) for each in ids)
        headers = {"Content-Type": "application/x-ndjson"}
        path = "/v1/topics/orders/rows?on_error=dead_letter"
        self.http.post(path, content=rows, headers=headers).raise_for_status()

    def drain(self) -> None:
        drain(self.lake.intake, self.lake.catalog, ORDERS)

    def verified(self, query: str = "") -> dict[str, Any]:
        found = self.http.get(PATH + query)
        assert found.status_code == 200, found.text
        values: dict[str, Any] = found.json()
        return values

    def in_lake(self, *, orphans: bool = False) -> dict[str, Any]:
        return values_of(self.lake.tables.verify_topic("orders", orphans=orphans))

    def lose_first_file(self) -> str:
        """What a broken tool does; the rows are missing then."""
        table = self.lake.catalog.load_table(ORDERS)
        task = next(iter(table.scan(row_filter="_calve_offset = 0").plan_files()))
        forget(table, [task.file.file_path])
        return task.file.file_path


def values_of(found: Verification) -> dict[str, Any]:
    """As `calve topic verify --json` prints it."""
    values: dict[str, Any] = json.loads(msgspec.json.encode(found))
    return values


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    return make_settings(ingest__http_port=0, ingest__flight_port=0, wal__free_bytes_min=0)


@pytest.fixture
def served(settings: Settings) -> Iterator[Served]:
    with Lake(settings) as lake:
        serving = lake.serve()
        lake.intake.create_topic(ORDERS, TopicSpec(schema={"id": "long"}))
        with httpx.Client(base_url=serving.addresses.http, timeout=WAIT_SECONDS) as http:
            made = Served(lake, serving, http)
            made.send(*range(10))
            made.drain()
            made.send(*range(10, 15))
            yield made


class Held:
    """An audit that has begun, and goes on when it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.ended = threading.Event()
        self._may_go_on = threading.Event()

    def sweep(self, *given: Any) -> Any:
        self.begun.set()
        assert self._may_go_on.wait(WAIT_SECONDS)
        try:
            return sweep(*given)
        finally:
            self.ended.set()

    def let_go(self) -> None:
        self._may_go_on.set()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held()
    monkeypatch.setattr(verify, "sweep", made.sweep)
    yield made
    made.let_go()


def test_a_sound_topic_is_told_as_the_lake_would(served: Served) -> None:
    found = served.verified()
    assert found == served.in_lake()
    assert (found["is_sound"], found["rows"], found["orphans"]) == (True, 10, None)
    (partition,) = found["partitions"]
    assert (partition["committed"], partition["log"]["durable"]) == (10, 15)


def test_a_topic_without_a_table_is_held_against_the_log(served: Served) -> None:
    served.http.post("/v1/topics/new/rows", json=[{"id": 1}]).raise_for_status()
    found = served.http.get("/v1/topics/new/verify").json()
    assert (found["has_table"], found["is_sound"]) == (False, True)
    assert found["partitions"][0]["log"]["durable"] == 1


def test_dead_letters_are_counted(served: Served) -> None:
    served.send(15, "no number")
    served.drain()
    found = served.verified()
    assert found == served.in_lake()
    assert (found["is_sound"], found["rows"], found["dead_letters"]) == (True, 16, 1)


def test_a_defect_is_an_answer_and_no_error(served: Served) -> None:
    served.lose_first_file()
    found = served.verified()
    assert found == served.in_lake()
    assert not found["is_sound"]
    assert found["partitions"][0]["missing"] == [{"first": 0, "end": 10, "count": 10}]


def test_orphans_are_listed_if_they_are_asked_for(served: Served) -> None:
    assert served.verified("?orphans=true")["orphans"] == []
    table = served.lake.catalog.load_table(ORDERS)
    rows = table.scan().to_arrow()
    (stray,) = data_files(table, rows)
    found = served.verified("?orphans=true")
    assert [each["path"] for each in found["orphans"]] == [stray.file_path]
    assert found == served.in_lake(orphans=True)
    assert served.verified("?orphans=false")["orphans"] is None


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/v1/topics/nothing/verify", 404, "nothing"),
        ("/v1/topics/plain/verify", 404, "no topic feeds it"),
        ("/v1/topics/orders__dead_letters/verify", 400, "dead letters"),
        (PATH + "?orphans=maybe", 400, "orphans"),
    ],
)
def test_what_cannot_be_verified_is_a_problem(
    served: Served, path: str, status: int, told: str
) -> None:
    served.lake.tables.create_table("plain", {"id": "long"})
    found = served.http.get(path)
    assert found.status_code == status, found.text
    assert found.headers["content-type"] == "application/problem+json"
    assert told in found.json()["detail"]
    assert served.verified()["is_sound"]  # and the next one may


def test_a_client_has_the_same_object(served: Served) -> None:
    served.lose_first_file()
    with Client(served.flight) as client:
        found = client.verify("orders", orphans=True)
        assert found == served.lake.tables.verify_topic("orders", orphans=True)
        assert found.partitions[0].missing[0].count == 10
        assert found.orphans is not None
        with pytest.raises(NotFound, match="there is no topic nothing"):
            client.verify("nothing")
        with pytest.raises(InvalidRequest, match="dead letters"):
            client.verify("orders__dead_letters")
    with pytest.raises(InvalidRequest, match="closed"):
        client.verify("orders")


def test_a_second_audit_is_told_to_come_back_and_rows_go_on(served: Served, held: Held) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(served.verified)
        assert held.begun.wait(WAIT_SECONDS)
        refused = served.http.get(PATH)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
        assert "being verified" in refused.json()["detail"]
        with Client(served.flight) as client, pytest.raises(Overloaded, match="being verified"):
            client.verify("orders")
        served.send(*range(15, 20))
        served.drain()
        held.let_go()
        found = first.result(WAIT_SECONDS)
    assert (found["is_sound"], found["rows"]) == (True, 10)
    assert served.verified()["rows"] == 20


def test_a_topic_is_sound_while_rows_come_in(served: Served) -> None:
    stop = threading.Event()

    def feed() -> None:
        for number in range(100, 10_000, 10):
            if stop.is_set():
                return
            served.send(*range(number, number + 9), "no number")
            served.drain()

    with ThreadPoolExecutor(1) as pool:
        feeding = pool.submit(feed)
        try:
            found = [served.verified() for _ in range(8)]
        finally:
            stop.set()
        feeding.result(WAIT_SECONDS)
    assert all(each["is_sound"] for each in found), found
    assert found[-1]["rows"] > found[0]["rows"]


def test_whoever_goes_leaves_room_for_the_next(served: Served, held: Held) -> None:
    place = urlsplit(str(served.http.base_url))
    connection = socket.create_connection((place.hostname, place.port), WAIT_SECONDS)
    connection.sendall(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % PATH.encode())
    assert held.begun.wait(WAIT_SECONDS)
    connection.close()
    wait_until(lambda: served.http.get("/v1/status").json()["requests"] == 1)
    with no_file_is_read():
        held.let_go()
        assert held.ended.wait(WAIT_SECONDS)
        wait_until(lambda: not served.lake.intake.verifying.locked())
    assert served.verified()["is_sound"]


def test_a_client_whose_time_is_over_leaves_room_for_the_next(served: Served, held: Held) -> None:
    with Client(served.flight) as client:
        with pytest.raises(Unavailable):
            client.verify("orders", timeout_seconds=0.5)
        assert held.begun.is_set()
        with no_file_is_read():
            held.let_go()
            wait_until(lambda: not served.lake.intake.verifying.locked())
        assert client.verify("orders").is_sound


def test_a_service_that_stops_does_not_wait_for_an_audit(served: Served, held: Held) -> None:
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(served.http.get, PATH)
        assert held.begun.wait(WAIT_SECONDS)
        stopping = pool.submit(served.serving.close)
        wait_until(lambda: _is_closing(served))
        with no_file_is_read():
            held.let_go()
            answer = asked.result(WAIT_SECONDS)
        stopping.result(WAIT_SECONDS)
    assert (answer.status_code, answer.json()["detail"][:9]) == (503, "the audit")


def test_a_client_over_flight_is_sent_away_when_the_service_stops(
    served: Served, held: Held
) -> None:
    with Client(served.flight) as client, ThreadPoolExecutor(2) as pool:
        asked = pool.submit(client.verify, "orders")
        assert held.begun.wait(WAIT_SECONDS)
        began = time.monotonic()
        served.serving.close()
        assert time.monotonic() - began < 8  # which is less than it waits for answers
        with no_file_is_read():
            held.let_go()
            with pytest.raises(Unavailable):
                asked.result(WAIT_SECONDS)
            assert held.ended.wait(WAIT_SECONDS)


def _is_closing(served: Served) -> bool:
    try:
        return served.http.get("/health/live").status_code == 503
    except httpx.TransportError:
        return True


@contextmanager
def no_file_is_read() -> Iterator[None]:
    """As an audit that was given up reads none."""
    read: list[object] = []
    pieces = OffsetReader.pieces

    def noted(reader: OffsetReader, file: OffsetFile) -> Iterator[Piece]:
        read.append(file)
        return pieces(reader, file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OffsetReader, "pieces", noted)
        yield
    assert read == []


class Command:
    def __init__(
        self,
        data: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self._data, self._monkeypatch, self._capsys = data, monkeypatch, capsys

    def __call__(self, *words: str) -> Run:
        given = ["calve", "topic", "verify", *words, "--data", str(self._data)]
        return run_command(given, self._monkeypatch, self._capsys)


@pytest.fixture
def command(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    return Command(settings.data, monkeypatch, capsys)


def test_the_command_asks_the_service(
    served: Served, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = command("orders", "--json", "--server", served.flight)
    assert (found.code, found.json()) == (0, served.verified())
    assert f"through the service at {served.flight}" in found.err
    monkeypatch.setenv("CALVE_SERVER", "grpc://127.0.0.1:1")
    assert command("orders").code == 6
    monkeypatch.setenv("CALVE_SERVER", served.flight)
    served.lose_first_file()
    lost = command("orders", "--orphans")
    assert (lost.code, "NOT SOUND" in lost.err) == (7, True)
    assert "missing  0          0-10     10     -" in lost.out.splitlines()
    assert command("nothing").code == 4


def test_the_command_looks_at_the_lake_itself_unless_a_service_is_named(
    served: Served, command: Command
) -> None:
    found = command("orders", "--json")
    assert (found.code, found.json()) == (0, served.in_lake())
    assert "through the service" not in found.err


def test_another_log_is_for_the_lake_itself(
    served: Served, command: Command, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ("--log", str(settings.wal.path))
    refused = command("orders", *log, "--server", served.flight)
    assert (refused.code, "--log is for the lake itself" in refused.err) == (2, True)
    beside = command("orders", *log)
    assert (beside.code, "through the service" in beside.err) == (0, False)
    monkeypatch.setenv("CALVE_SERVER", served.flight)
    refused = command("orders", *log)
    assert (refused.code, "CALVE_SERVER" in refused.err) == (2, True)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """With tokens, and a file of the tenant's topic lost: in a directory with a space."""
    with access_site(tmp_path / "a lake") as made:
        topic = TableName(OWN, "default", "orders")
        drain(made.intake, made.intake.catalog, topic)
        table = made.intake.catalog.load_table(topic)
        rows = table.scan().to_arrow()
        data_files(table, rows)
        (task,) = table.scan().plan_files()
        table.io.delete(task.file.file_path)
        yield made


def audit(site: Site, token: str, topic: str = f"{OWN}.default.orders") -> dict[str, Any]:
    path = f"/v1/topics/{topic}/verify?orphans=true"
    found = site.http.get(path, headers=bearer(token))
    assert found.status_code == 200, found.text
    values: dict[str, Any] = found.json()
    return values


def test_a_tenants_admin_is_not_told_where_the_lake_lies(site: Site, tmp_path: Path) -> None:
    seen = audit(site, site.token(("admin",)), "orders")
    told = audit(site, site.token(("admin",), tenant="*"))
    assert str(tmp_path) in told["problems"][0]
    assert str(tmp_path) in told["orphans"][0]["path"]
    assert "a lake" not in json.dumps(seen)
    assert str(tmp_path) not in json.dumps(seen)
    assert "…/acme__/default/orders/data/" in seen["problems"][0]
    assert seen["orphans"][0]["path"].startswith("…/acme__/default/orders/data/")
    for of in (seen, told):
        of["problems"] = [each.count(".parquet") for each in of["problems"]]
        of["orphans"] = [each["path"].rpartition("/")[2] for each in of["orphans"]]
    assert seen == told
    with Client(site.addresses.flight, token=site.token(("admin",))) as client:
        assert str(tmp_path) not in str(client.verify("orders", orphans=True))


def test_a_missing_log_and_an_error_do_not_tell_where_it_was(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = site.token(("admin",))
    elsewhere = site.intake.topics.topic(TableName(OTHER, "default", "orders")).partitions
    monkeypatch.setattr("calve.maintenance.verify.streams_bound_here", lambda *_: elsewhere)
    (partition,) = audit(site, token)["partitions"]
    (told,) = partition["log"]["problems"]
    assert "which should be in …, which is older" in told
    assert f"`calve topic alter {OWN}.default.orders --new-log`" in told

    def damaged(*_: object, **__: object) -> None:
        raise Unavailable(f"{tmp_path}/a lake/x and /other/place/y.avro", hint="s3://b/c/d.avro")

    monkeypatch.setattr("calve.maintenance.verify.verify_topic", damaged)
    found = site.http.get("/v1/topics/orders/verify", headers=bearer(token)).json()
    assert (found["detail"], found["hint"]) == ("…/x and …/y.avro", "…/d.avro")


def test_a_token_that_is_revoked_ends_its_audit(site: Site, held: Held) -> None:
    token = site.token(("admin",))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(
            site.http.get, "/v1/topics/orders/verify", headers=bearer(token), timeout=WAIT_SECONDS
        )
        assert held.begun.wait(WAIT_SECONDS)
        site.revoke(token)
        with no_file_is_read():
            held.let_go()
            assert asked.result(WAIT_SECONDS).status_code == 401


def test_a_table_that_another_tenants_topic_feeds_is_not_told_of(site: Site) -> None:
    """Somebody has renamed it."""
    taken = TableName(OTHER, "default", "taken")
    site.intake.catalog.rename_table(TableName(OWN, "default", "orders"), taken)
    path = f"/v1/topics/{taken.full}/verify"
    for token, status in ((site.token(tenant=OTHER), 404), (site.token(tenant="*"), 200)):
        assert site.http.get(path, headers=bearer(token)).status_code == status
