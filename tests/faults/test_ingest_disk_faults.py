"""Disks that fail under a service: it says so, opens its log again, and acknowledges rightly."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyarrow import flight

from calve.client import Client
from calve.errors import CalveError, Fenced, Unavailable, UnknownOutcome
from calve.ingest import Intake, produce
from calve.ingest.flight import FlightServer
from calve.ingest.http import HttpServer
from calve.model import TableName
from calve.wal import Kind
from tests.conftest import MakeSettings
from tests.fakes.disk import SimulatedDisk, Survival
from tests.integration.flight_calls import refused, sent

ORDERS = TableName.parse("orders")
EIO = OSError(errno.EIO, "Input/output error")
ENOSPC = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def intake(make_settings: MakeSettings, disk: SimulatedDisk) -> Iterator[Intake]:
    settings = make_settings(ingest__flight_port=0, ingest__http_port=0)
    with Intake(settings, files=disk) as intake:
        yield intake


def failing(*operations: str, error: OSError = EIO) -> Callable[[str, SimulatedDisk], None]:
    """A disk that stays broken until it is mended."""

    def fault(operation: str, _: SimulatedDisk) -> None:
        if operation in operations:
            raise error

    return fault


def wait_until(is_so: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def one(number: int) -> pa.RecordBatch:
    return pa.record_batch({"id": [number]})


def numbers_in(intake: Intake) -> list[int]:
    return [
        number
        for entry in intake.read(ORDERS, 0)
        if entry.kind == Kind.ROWS and entry.batch is not None
        for number in entry.batch.column("id").to_pylist()
    ]


def stopped(intake: Intake, disk: SimulatedDisk, number: int) -> None:
    """Have the log stop at an append, whose outcome nobody knows."""
    disk.fault = failing("sync")
    with pytest.raises(UnknownOutcome):
        intake.submit(ORDERS, one(number), producer="p", sequence=number).wait()
    assert intake.log.is_fenced


def test_a_log_that_stopped_is_opened_again_by_itself(intake: Intake, disk: SimulatedDisk) -> None:
    for number in range(3):
        intake.submit(ORDERS, one(number), producer="p", sequence=number).wait()
    stopped(intake, disk, 3)
    with pytest.raises(Unavailable, match="Input/output error") as told:
        intake.submit(ORDERS, one(9))
    assert int(told.value.context["retry_after_ms"]) > 0
    disk.fault = None
    wait_until(lambda: not intake.log.is_fenced)
    for number in range(5):  # the one of unknown outcome too: it is in once, whatever it was
        intake.submit(ORDERS, one(number), producer="p", sequence=number).wait()
    assert numbers_in(intake) == [0, 1, 2, 3, 4]


def test_what_is_acknowledged_after_the_opening_survives_a_power_cut(
    make_settings: MakeSettings, intake: Intake, disk: SimulatedDisk
) -> None:
    """Pages of a sync that failed count as clean: they have to be written again."""
    intake.submit(ORDERS, one(0), producer="p", sequence=0).wait()
    stopped(intake, disk, 1)
    disk.fault = None
    wait_until(lambda: not intake.log.is_fenced)
    intake.submit(ORDERS, one(1), producer="p", sequence=1).wait()
    intake.submit(ORDERS, one(2), producer="p", sequence=2).wait()
    found = disk.after_crash(Survival.NOTHING, 0)
    intake.close()
    with Intake(make_settings(), files=found) as after:
        assert numbers_in(after) == [0, 1, 2]


def test_while_the_disk_stays_broken_each_opening_fails_and_nothing_is_acknowledged(
    intake: Intake, disk: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    intake.submit(ORDERS, one(0)).wait()
    disk.fault = failing("sync", "write", "create", "rename", "truncate", error=EIO)
    with suppress(CalveError):
        intake.submit(ORDERS, one(1)).wait()
    wait_until(lambda: "could not be opened again" in caplog.text)
    assert intake.stopped is not None
    assert "Input/output error" in intake.stopped.message
    for use in (
        lambda: intake.submit(ORDERS, one(2)),
        lambda: intake.flush(ORDERS, 1),
        lambda: intake.submit(TableName.parse("another"), one(2)),
        lambda: produce(intake, ORDERS, [{"id": 2}]),
        lambda: intake.repeated(ORDERS, "p", 0),
        intake.trim,
    ):
        with pytest.raises(Unavailable) as told:
            use()
        assert not isinstance(told.value, Fenced)
        assert int(told.value.context["retry_after_ms"]) > 0
    assert intake.offsets(ORDERS).durable == 1  # what is durable can be read all the while
    disk.fault = None
    wait_until(lambda: intake.stopped is None)
    intake.submit(ORDERS, one(3)).wait()


def test_another_log_in_its_place_is_not_taken(intake: Intake, disk: SimulatedDisk) -> None:
    intake.submit(ORDERS, one(0)).wait()
    log_id = intake.log.log_id
    for name in disk.names(intake.log.directory):
        with suppress(FileNotFoundError):
            disk.unlink(intake.log.directory / name)
    stopped(intake, disk, 0)
    disk.fault = None
    wait_until(lambda: intake.stopped is not None and str(log_id) in intake.stopped.message)
    with pytest.raises(Unavailable):
        intake.submit(ORDERS, one(1))
    assert disk.names(intake.log.directory) == []


def test_a_topic_can_be_deleted_while_the_log_is_away_and_goes_when_it_is_back(
    intake: Intake, disk: SimulatedDisk
) -> None:
    intake.submit(ORDERS, one(0)).wait()
    disk.fault = failing("sync")
    with pytest.raises(UnknownOutcome):
        intake.submit(ORDERS, one(1)).wait()
    intake.delete_topic(ORDERS)
    disk.fault = None
    wait_until(lambda: not intake.log.is_fenced)
    wait_until(lambda: intake.log.streams == [])
    assert intake.submit(ORDERS, one(5)).wait() == (0, 1, False)


def test_the_end_of_an_intake_does_not_wait_for_the_disk(
    make_settings: MakeSettings, disk: SimulatedDisk
) -> None:
    intake = Intake(make_settings(), files=disk)
    intake.submit(ORDERS, one(0)).wait()
    disk.fault = failing("sync", "write")
    with pytest.raises(CalveError):
        intake.submit(ORDERS, one(1)).wait()
    begun = time.monotonic()
    intake.close()
    assert time.monotonic() - begun < 5


@pytest.fixture
def http(intake: Intake) -> Iterator[httpx.Client]:
    with HttpServer(intake) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


def posted(http: httpx.Client, number: int) -> httpx.Response:
    return http.post(
        "/v1/topics/orders/rows",
        content=json.dumps({"id": number}).encode(),
        headers={
            "Content-Type": "application/x-ndjson",
            "Calve-Producer": "p",
            "Calve-Sequence": str(number),
        },
    )


def test_over_http_it_is_503_until_the_log_is_open_again(
    http: httpx.Client, intake: Intake, disk: SimulatedDisk
) -> None:
    assert posted(http, 0).status_code == 200
    disk.fault = failing("sync", "write")
    answers = [posted(http, 1) for _ in range(3)]
    assert answers[-1].status_code == 503
    assert int(answers[-1].headers["Retry-After"]) > 0
    ready = http.get("/health/ready")
    assert (ready.status_code, ready.headers["Retry-After"]) == (503, "1")
    assert "the log has stopped" in ready.json()["detail"]
    for method, path in (
        ("GET", "/v1/topics"),
        ("GET", "/v1/topics/orders"),
        ("GET", "/v1/topics/orders/rows"),
        ("GET", "/v1/status"),
        ("GET", "/v1/pipeline"),
        ("POST", "/v1/topics/orders/flush?timeout_ms=1"),
    ):
        assert http.request(method, path).status_code in {200, 503}, path
    disk.fault = None
    wait_until(lambda: posted(http, 1).status_code == 200)
    assert http.get("/health/ready").status_code == 200
    assert numbers_in(intake) == [0, 1]


def test_why_the_log_stopped_is_told_to_those_alone_who_may_see_the_status(
    make_settings: MakeSettings, disk: SimulatedDisk
) -> None:
    settings = make_settings(ingest__http_port=0, auth__required=True)
    with (
        Intake(settings, files=disk) as intake,
        HttpServer(intake) as server,
        httpx.Client(base_url=server.url, timeout=30) as http,
    ):
        intake.submit(ORDERS, one(0), producer="p", sequence=0).wait()
        stopped(intake, disk, 1)
        ready = http.get("/health/ready")
        told = http.get("/v1/status", headers=host_bearer(intake)).json()["stopped"]
        disk.fault = None
        assert (ready.status_code, ready.headers["Retry-After"]) == (503, "1")
        assert str(settings.data) in told
        assert str(settings.data) not in ready.text
        assert "Input/output error" not in ready.text


def host_bearer(intake: Intake) -> dict[str, str]:
    return {"Authorization": f"Bearer {intake.doorkeeper.host_secret}"}


class UnreadableDisk(SimulatedDisk):
    """One that has no more files to open, or cannot read them."""

    is_unreadable = False

    def map(self, path: Path) -> memoryview:
        self._refuse()
        return super().map(path)

    def read_start(self, path: Path, length: int | None = None) -> bytes:
        self._refuse()
        return super().read_start(path, length)

    def _refuse(self) -> None:
        if self.is_unreadable:
            raise OSError(errno.EMFILE, "Too many open files")


def test_a_disk_that_cannot_be_read_is_no_defect(make_settings: MakeSettings) -> None:
    disk = UnreadableDisk()
    with (
        Intake(make_settings(ingest__http_port=0), files=disk) as intake,
        HttpServer(intake) as server,
        httpx.Client(base_url=server.url, timeout=30) as http,
    ):
        assert posted(http, 0).status_code == 200
        intake.log.rotate()
        disk.is_unreadable = True
        for path in ("/v1/topics/orders", "/v1/topics/orders/rows", "/v1/pipeline"):
            answer = http.get(path)
            assert answer.status_code == 503, path
            assert "Too many open files" in answer.json()["detail"]
        assert http.get("/v1/topics").status_code == 200
        disk.is_unreadable = False
        assert http.get("/v1/topics/orders/rows").status_code == 200


def test_over_flight_it_is_unavailable_until_the_log_is_open_again(
    intake: Intake, disk: SimulatedDisk
) -> None:
    with FlightServer(intake) as server, flight.connect(server.url) as client:
        assert sent(client, "orders", one(0), producer="p", sequence=0)["first"] == 0
        disk.fault = failing("sync", "write")
        again: dict[str, Any] = {"producer": "p", "sequence": 1}
        with suppress(flight.FlightError):
            sent(client, "orders", one(1), **again)
        error = refused(lambda: sent(client, "orders", one(1), **again))
        assert isinstance(error, Unavailable)
        assert int(error.context["retry_after_ms"]) > 0
        disk.fault = None
        wait_until(lambda: not intake.log.is_fenced)
        assert sent(client, "orders", one(1), **again)["end"] == 2
    assert numbers_in(intake) == [0, 1]


def test_a_client_gets_over_a_disk_that_fails_for_a_while(
    intake: Intake, disk: SimulatedDisk
) -> None:
    with FlightServer(intake) as server, Client(server.url) as client:
        client.produce("orders", one(0)).result(20)
        disk.fault = failing("sync", "write")
        sent_meanwhile = [client.produce("orders", one(number)) for number in range(1, 20)]
        timer = threading.Timer(0.5, setattr, (disk, "fault", None))
        timer.start()
        for delivery in sent_meanwhile:
            delivery.result(20)
        timer.join()
    assert numbers_in(intake) == list(range(20))


def test_a_disk_without_room_is_a_refusal_until_there_is_some(
    make_settings: MakeSettings, disk: SimulatedDisk
) -> None:
    with Intake(make_settings(), files=disk) as intake:
        intake.submit(ORDERS, one(0)).wait()
        disk.fault = failing("write", error=ENOSPC)
        with pytest.raises(CalveError) as told:
            intake.submit(ORDERS, one(1)).wait()
        assert told.value.http_status in {429, 503, 504}
        disk.fault = None
        wait_until(lambda: not intake.log.is_fenced)
        intake.submit(ORDERS, one(2)).wait()
        assert numbers_in(intake) in ([0, 2], [0, 1, 2])
