"""The client against a real service: rows are delivered once, in order, or their caller is told."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import calve
from calve import Client
from calve.client.stream import Stream
from calve.errors import (
    CalveError,
    Conflict,
    InvalidRequest,
    InvalidSettings,
    NotFound,
    Overloaded,
    Unavailable,
    UnknownOutcome,
)
from calve.ingest import Intake
from calve.ingest.flight import FlightServer
from calve.ingest.flight.put import PutStream
from calve.model import TableName
from calve.protocol import Answer
from calve.topics import TopicChange
from calve.wal import Kind
from tests.conftest import MakeSettings
from tests.servers.ingest import ROOT, IngestProcess
from tests.servers.tls import Authority

EVENTS = TableName.parse("events")


@pytest.fixture
def intake(make_settings: MakeSettings) -> Iterator[Intake]:
    with Intake(make_settings(ingest__flight_port=0)) as intake:
        yield intake


@pytest.fixture
def server(intake: Intake) -> Iterator[FlightServer]:
    with FlightServer(intake) as server:
        yield server


@pytest.fixture
def client(server: FlightServer) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def ids_in(intake: Intake, name: TableName = EVENTS) -> list[Any]:
    found: list[Any] = []
    for entry in intake.read(name, 0):
        if entry.kind == Kind.ROWS and entry.batch is not None:
            found += entry.batch.column("id").to_pylist()
    return found


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


@pytest.mark.parametrize(
    "rows",
    [
        [{"id": 1, "name": "a"}, {"id": 2, "name": None}],
        {"id": [1, 2], "name": ["a", None]},
        pa.table({"id": [1, 2], "name": ["a", None]}),
        pa.record_batch({"id": [1, 2], "name": ["a", None]}),
        pd.DataFrame({"id": [1, 2], "name": ["a", None]}),
        pl.DataFrame({"id": [1, 2], "name": ["a", None]}),
        ({"id": number, "name": name} for number, name in [(1, "a"), (2, None)]),
    ],
    ids=["dicts", "columns", "table", "batch", "pandas", "polars", "generator"],
)
def test_rows_of_every_kind_are_delivered(client: Client, rows: Any) -> None:
    assert client.produce("events", rows).result(30) == (0, 2, False)
    found = client.read("events").to_pylist()
    assert [(row["id"], row["name"], row["_calve_offset"]) for row in found] == [
        (1, "a", 0),
        (2, None, 1),
    ]


def test_many_small_calls_go_in_few_batches_and_in_order(client: Client, intake: Intake) -> None:
    deliveries = [client.produce("events", [{"id": number}]) for number in range(3_000)]
    client.flush()
    assert all(delivery.is_done for delivery in deliveries)
    assert [delivery.result() for delivery in deliveries] == [
        (number, number + 1, False) for number in range(3_000)
    ]
    assert ids_in(intake) == list(range(3_000))
    assert len(list(intake.read(EVENTS, 0))) < 1_000


def test_a_call_with_many_rows_is_cut_and_is_one_delivery(
    server: FlightServer, intake: Intake
) -> None:
    with Client(server.url, batch_rows_max=100) as client:
        found = client.produce("events", ({"id": number} for number in range(1_050))).result(60)
    assert found == (0, 1_050, False)
    assert ids_in(intake) == list(range(1_050))
    assert max(e.end_offset - e.first_offset for e in intake.read(EVENTS, 0)) <= 100


def test_large_arrow_data_is_cut_by_bytes(server: FlightServer, intake: Intake) -> None:
    table = pa.table({"id": list(range(1_000)), "text": ["x" * 1_000] * 1_000})
    with Client(server.url, batch_bytes_max=100_000) as client:
        client.produce("events", table).result(60)
    assert ids_in(intake) == list(range(1_000))
    assert len(list(intake.read(EVENTS, 0))) >= 10


def test_values_get_the_types_of_the_topic(client: Client) -> None:
    client.create_topic(
        "events", schema={"id": "int", "at": "timestamptz", "price": "decimal(9,2)"}
    )
    client.produce("events", [{"id": 1, "at": "2026-01-02T03:04:05Z", "price": "1.50"}]).result(30)
    types = {field.name: str(field.type) for field in client.read("events").schema}
    assert types["id"] == "int32"
    assert types["price"] == "decimal128(9, 2)"


def schema_file(tmp_path: Path) -> Path:
    path = tmp_path / "schema.json"
    path.write_text(
        '{"columns": [{"name": "id", "type": "long", "required": true}], "sort_by": ["id"]}'
    )
    return path


@pytest.mark.parametrize(
    "source",
    [
        pa.schema([pa.field("id", pa.int64(), nullable=False)]),
        Schema(NestedField(7, "id", LongType(), required=True)),
        {"columns": [{"name": "id", "type": "long", "required": True}]},
        [{"name": "id", "type": "long", "required": True}],
        schema_file,
    ],
)
def test_a_topic_is_made_from_a_schema_of_any_kind(
    client: Client, source: Any, tmp_path: Path
) -> None:
    made = client.create_topic("events", schema=source(tmp_path) if callable(source) else source)
    assert made["columns"] == [{"name": "id", "type": "long", "required": True}]
    assert made["sort_by"] == (["id"] if callable(source) else [])


def test_columns_may_have_types_of_arrow(client: Client) -> None:
    made = client.create_topic("events", schema={"id": pa.int32(), "tags": pa.list_(pa.string())})
    assert [column["type"] for column in made["columns"]] == ["int", "list<string>"]


def test_what_is_no_schema_is_refused(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="cannot be made from int"):
        client.create_topic("events", schema=3)


def test_a_delivery_can_be_awaited(client: Client) -> None:
    async def produce() -> list[Any]:
        return await asyncio.gather(
            *(_awaited(client.produce("events", [{"id": number}])) for number in range(50))
        )

    assert [found.first for found in asyncio.run(produce())] == list(range(50))

    async def mistaken() -> None:
        await client.produce("events", [{"id": "text"}])

    with pytest.raises(InvalidRequest):
        asyncio.run(mistaken())


async def _awaited(delivery: calve.Delivery) -> calve.Delivered:
    return await delivery


def test_callbacks_are_called_once_whenever_they_are_added(client: Client) -> None:
    called: list[str] = []
    delivery = client.produce("events", [{"id": 1}])
    delivery.add_done_callback(lambda _: called.append("before"))
    delivery.add_done_callback(lambda _: 1 / 0)
    delivery.result(30)
    delivery.add_done_callback(lambda _: called.append("after"))
    client.flush()
    assert sorted(called) == ["after", "before"]


def test_a_waiting_caller_does_not_wait_for_the_linger(server: FlightServer) -> None:
    with Client(server.url, linger_ms=20_000) as client:
        began = time.monotonic()
        client.produce("events", [{"id": 1}]).result(30)
        client.produce("events", [{"id": 1}])
        client.flush()
        assert time.monotonic() - began < 10


def test_rows_that_linger_are_sent_without_anybody_waiting(
    server: FlightServer, intake: Intake
) -> None:
    client = Client(server.url, linger_ms=10)
    arrived = threading.Event()
    client.produce("events", [{"id": 1}]).add_done_callback(lambda _: arrived.set())
    assert arrived.wait(30)
    client.close()
    assert ids_in(intake) == [1]


def test_one_callers_mistake_fails_that_callers_rows_alone(
    server: FlightServer, intake: Intake
) -> None:
    with Client(server.url, linger_ms=200) as client:
        client.create_topic(
            "events", schema={"columns": [{"name": "id", "type": "long", "required": True}]}
        )
        schema = pa.schema([("id", pa.int64())])
        nothing = pa.record_batch([pa.array([None], pa.int64())], schema=schema)
        good = [client.produce("events", pa.record_batch([pa.array([n])], schema=schema)) for n in range(5)]  # fmt: skip
        bad = client.produce("events", nothing)
        good += [client.produce("events", pa.record_batch([pa.array([n])], schema=schema)) for n in range(5, 9)]  # fmt: skip
        for delivery in good:
            delivery.result(30)
        with pytest.raises(InvalidRequest, match="id"):
            bad.result(30)
        text = client.produce("events", [{"id": "x"}])
        fine = client.produce("events", [{"id": 9}])
        assert fine.result(30).end == 10
        with pytest.raises(InvalidRequest):
            text.result(30)
    assert ids_in(intake) == list(range(10))


def test_errors_that_nobody_saw_are_raised_by_flush_and_close(server: FlightServer) -> None:
    client = Client(server.url)
    client.produce("events", [{"id": 1}]).result(30)
    client.produce("events", pa.table({"id": ["x"]}))
    with pytest.raises(InvalidRequest, match="do not fit"):
        client.flush()
    client.flush()  # it was told
    client.produce("events", pa.table({"id": ["x"]}))
    with pytest.raises(InvalidRequest, match="do not fit"):
        client.close()


def test_topics_that_change_their_columns_in_between(client: Client, intake: Intake) -> None:
    for number in range(20):
        batch = {"id": [number], "odd": [1.5]} if number % 2 else {"id": [number]}
        client.produce("events", pa.table(batch))
    client.flush()
    assert ids_in(intake) == list(range(20))


def test_dicts_with_other_keys_each_time_share_a_stream(
    client: Client, intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[Stream] = []

    def counted(*given: Any, **named: Any) -> Stream:
        streams.append(Stream(*given, **named))
        return streams[-1]

    monkeypatch.setattr("calve.client.sender.Stream", counted)
    for number in range(200):
        delivery = client.produce("events", [{"id": number, f"key{number % 5}": number}])
        if number % 10 < 5:
            delivery.result(30)
    client.flush()
    assert len(streams) <= 5
    assert ids_in(intake) == list(range(200))
    assert len(client.describe_topic("events")["columns"]) == 6


def test_several_topics_and_threads_share_a_client(client: Client, intake: Intake) -> None:
    def produce(number: int) -> None:
        for at in range(200):
            client.produce(f"acme.web.topic{number % 3}", [{"id": at, "thread": number}])

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.flush()
    for topic in range(3):
        found = client.read(f"acme.web.topic{topic}").to_pylist()
        for number in range(topic, 9, 3):
            assert [r["id"] for r in found if r["thread"] == number] == list(range(200))


def test_a_sequence_of_the_users_own_is_appended_once(server: FlightServer, intake: Intake) -> None:
    for is_repeat in (False, True):
        with Client(server.url, producer="billing") as client:
            for sequence in range(3):
                rows = [{"id": 10 * sequence}, {"id": 10 * sequence + 1}]
                found = client.produce("events", rows, sequence=sequence).result(30)
                assert found == (2 * sequence, 2 * sequence + 2, is_repeat)
            client.produce("events", [{"id": 99 + is_repeat}])  # numbered by the client
    assert ids_in(intake) == [0, 1, 10, 11, 20, 21, 99, 100]
    with Client(server.url, producer="billing") as client:
        with pytest.raises(Conflict) as raised:
            client.produce("events", [{"id": 1}], sequence=7).result(30)
        assert raised.value.context["expected_sequence"] == "3"
        assert client.produce("events", [{"id": 2}]).result(30)
        with pytest.raises(InvalidRequest, match="no rows"):
            client.produce("events", [], sequence=3)
    with Client(server.url) as client, pytest.raises(InvalidRequest, match="needs a producer"):
        client.produce("events", [{"id": 1}], sequence=0)


def test_a_topic_that_was_made_again_gets_the_rows_after_that(
    client: Client, intake: Intake
) -> None:
    """It knows nothing of the producer, which goes on under another name."""
    for number in (1, 2):
        client.produce("events", [{"id": number}]).result(30)
    client.delete_topic("events")
    deliveries = [client.produce("events", [{"id": number}]) for number in (3, 4)]
    assert [delivery.result(30).first for delivery in deliveries] == [0, 1]
    assert ids_in(intake) == [3, 4]


def test_the_types_of_a_topic_are_asked_for_again_when_values_do_not_fit(
    client: Client, intake: Intake
) -> None:
    client.produce("events", [{"id": 1}]).result(30)
    client.delete_topic("events")
    client.create_topic("events", schema={"id": "string"})
    assert client.produce("events", [{"id": "x"}]).result(30) == (0, 1, False)
    client.delete_topic("events")
    client.create_topic("events", schema={"id": "date"})
    with pytest.raises(InvalidRequest):
        client.produce("events", [{"id": "y"}]).result(30)
    assert client.produce("events", [{"id": date(2026, 1, 2)}]).result(30) == (0, 1, False)
    assert ids_in(intake) == [date(2026, 1, 2)]


def test_rows_that_are_in_already_are_not_refused_afterwards(
    server: FlightServer, intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appended, the answer lost, and then the topic changed: refused, they would be sent twice."""
    write = PutStream._write
    lost: list[Answer] = []

    def lose(stream: PutStream, answer: Answer) -> None:
        if not lost and answer.first == 1:
            lost.append(answer)
            change = TopicChange(drop_columns=["odd"], on_unknown_column="refuse")
            intake.alter_topic(EVENTS, change)
            server._connections.shut()
        else:
            write(stream, answer)

    monkeypatch.setattr(PutStream, "_write", lose)
    odd = pa.table({"id": [1], "odd": [1]})
    with Client(server.url, linger_ms=0) as client:
        client.produce("events", odd).result(30)
        assert client.produce("events", odd).result(30) == (1, 2, True)
        with pytest.raises(InvalidRequest, match="odd"):
            client.produce("events", odd).result(30)
        found = [client.produce("events", pa.table({"id": [n]})).result(30) for n in (2, 3)]
    assert found == [(2, 3, False), (3, 4, False)]
    assert ids_in(intake) == [1, 1, 2, 3]
    assert len(lost) == 1


def test_a_service_that_does_not_answer_is_left_alone(server: FlightServer, intake: Intake) -> None:
    with Client(server.url, delivery_timeout_seconds=3, connect_timeout_seconds=30) as client:
        client.produce("events", [{"id": 0}]).result(30)
        with intake.log._leader.holding():
            stuck = client.produce("events", [{"id": 1}])
            with pytest.raises(UnknownOutcome, match="does not answer"):
                stuck.result(30)
        assert client.produce("events", [{"id": 2}]).result(30).end == 3
    assert ids_in(intake) == [0, 1, 2]  # nobody knew, and it was


def test_what_is_under_way_when_a_client_is_closed_has_an_unknown_outcome(
    server: FlightServer, intake: Intake
) -> None:
    client = Client(server.url)
    client.produce("events", [{"id": 0}]).result(30)
    with intake.log._leader.holding():
        sent = client.produce("events", [{"id": 1}])
        with pytest.raises(Unavailable, match="not all rows"):
            client.close(0.3)
    with pytest.raises(UnknownOutcome, match="the client is closed"):
        sent.result(30)


def test_flush_to_the_table_waits_for_the_committed_offset(client: Client, intake: Intake) -> None:
    client.produce("events", [{"id": 1}])
    with pytest.raises(Unavailable, match="has reached offset 0, and 1 was asked for"):
        client.flush("events", 0.5, to_table=True)
    topic = intake.topics.topic(EVENTS)
    intake.state.publish_committed(topic.id, 0, log_id=intake.log.log_id, offset=1)
    client.flush("events", to_table=True)
    client.flush(to_table=True)


def test_topics_are_managed_through_the_client(client: Client) -> None:
    assert client.topics() == []
    client.create_topic("acme.web.clicks", schema={"at": "timestamptz"}, partition_by=["day(at)"])
    client.alter_topic("acme.web.clicks", on_unknown_column="refuse")
    assert client.describe_topic("acme.web.clicks")["on_unknown_column"] == "refuse"
    assert client.topics() == ["acme.web.clicks"]
    assert client.stats("acme.web.clicks")["row_count"] == 0
    client.delete_topic("acme.web.clicks")
    with pytest.raises(NotFound):
        client.stats("acme.web.clicks")
    with pytest.raises(NotFound):
        client.read("acme.web.clicks")


def test_where_no_service_is_the_error_says_how_to_start_one() -> None:
    client = Client(f"grpc://127.0.0.1:{free_port()}", connect_timeout_seconds=0.2)
    delivery = client.produce("events", [{"id": 1}])
    with pytest.raises(Unavailable, match="no service answers") as raised:
        delivery.result(30)
    assert "calve up" in str(raised.value.hint)
    with pytest.raises(Unavailable, match="no service answers"):
        client.topics()
    client.close()


def test_rows_go_over_tls(make_settings: MakeSettings, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.server_files()
    settings = make_settings(
        ingest__flight_port=0, ingest__tls_cert=str(certificate), ingest__tls_key=str(key)
    )
    with Intake(settings) as intake, FlightServer(intake) as server:
        assert server.url.startswith("grpc+tls://")
        with Client(server.url, tls_root_certs=authority.pem.read_bytes()) as client:
            assert client.produce("events", [{"id": 1}]).result(30) == (0, 1, False)
        plain = Client(server.url.replace("+tls", ""), connect_timeout_seconds=0.1)
        with pytest.raises(Unavailable):
            plain.produce("events", [{"id": 1}]).result(30)
        plain.close()
    without_key = make_settings(ingest__flight_port=0, ingest__tls_cert=str(certificate))
    with Intake(without_key) as intake, pytest.raises(InvalidSettings, match="together"):
        FlightServer(intake).start()


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080", "127.0.0.1:8815", "grpc://", "tcp://x"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        Client(url)
    assert "grpc://" in str(raised.value.hint)


def test_a_full_buffer_blocks_and_then_refuses() -> None:
    client = Client(
        f"grpc://127.0.0.1:{free_port()}",
        buffer_bytes_max=10_000,
        buffer_timeout_seconds=0.2,
        connect_timeout_seconds=60,
    )
    batch = pa.record_batch({"text": ["x" * 6_000]})
    held = client.produce("events", batch)
    with pytest.raises(Overloaded, match="buffer was full"):
        client.produce("events", batch)
    with pytest.raises(Unavailable):
        client.close(0.1)
    with pytest.raises(CalveError):
        held.result(30)


def test_a_full_buffer_waits_for_acknowledgements(server: FlightServer, intake: Intake) -> None:
    with Client(server.url, buffer_bytes_max=2_000, linger_ms=10_000) as client:
        for number in range(200):
            client.produce("events", [{"id": number, "text": "x" * 500}])
    assert ids_in(intake) == list(range(200))


def test_a_closed_client_says_so(server: FlightServer) -> None:
    client = Client(server.url)
    client.produce("events", [{"id": 1}])
    client.close()
    client.close()
    for call in (lambda: client.produce("events", [{"id": 1}]), client.flush, client.topics):
        with pytest.raises(InvalidRequest, match="is closed"):
            call()


def test_no_thread_is_left_behind(server: FlightServer) -> None:
    before = _client_threads()
    with Client(server.url) as client:
        for number in range(5):
            client.produce(f"topic{number}", [{"id": 1}])
        client.flush()
        assert _client_threads() > before
    assert _client_threads() == before
    forgotten = Client(server.url)
    del forgotten
    gc.collect()


def _client_threads() -> int:
    return sum(thread.name.startswith("calve-client") for thread in threading.enumerate())


def test_nothing_is_started_or_connected_before_it_is_used() -> None:
    script = (
        "import sys, threading, calve\n"
        "assert 'pyarrow' not in sys.modules\n"
        "client = calve.Client('grpc://127.0.0.1:1')\n"
        "assert 'pyarrow.flight' not in sys.modules\n"
        "assert threading.active_count() == 1\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, timeout=60)


def test_a_program_that_ends_has_its_rows_sent(server: FlightServer, intake: Intake) -> None:
    script = (
        "import sys, calve\n"
        "client = calve.Client(sys.argv[1], linger_ms=5_000)\n"
        "for number in range(100): client.produce('events', [{'id': number}])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, server.url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ids_in(intake) == list(range(100))


def test_a_program_that_is_interrupted_ends_soon(tmp_path: Path) -> None:
    script = (
        "import sys, calve, time\n"
        "with calve.Client(sys.argv[1], connect_timeout_seconds=600) as client:\n"
        "    client.produce('events', [{'id': 1}])\n"
        "    print('sent', flush=True)\n"
        "    client.flush(timeout_seconds=600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, f"grpc://127.0.0.1:{free_port()}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "sent\n"
    process.send_signal(2)
    began = time.monotonic()
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 15
    assert "KeyboardInterrupt" in err
    assert "rows were not delivered" in err


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_needs_a_client_of_its_own(server: FlightServer) -> None:
    script = (
        "import os, sys, calve\n"
        "client = calve.Client(sys.argv[1])\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        client.produce('events', [{'id': 2}])\n"
        "    except calve.CalveError as error:\n"
        "        print(error.message, flush=True)\n"
        "    client.close()\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "print(client.produce('events', [{'id': 1}]).result(30).end)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, server.url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "which forked this one" in done.stdout
    assert done.stdout.splitlines()[-1] == "1"


def test_rows_wait_for_a_service_that_comes_back(tmp_path: Path) -> None:
    with IngestProcess(tmp_path / "lake") as process, Client(process.url) as client:
        client.produce("events", [{"id": 0}]).result(30)
        process.stop()
        deliveries = [client.produce("events", [{"id": n}]) for n in range(1, 50)]
        time.sleep(0.5)
        assert not any(delivery.is_done for delivery in deliveries)
        process.start()
        assert [d.result(60).first for d in deliveries] == list(range(1, 50))
        assert [row["id"] for row in client.read("events").to_pylist()] == list(range(50))


def test_rows_whose_acknowledgement_was_lost_are_not_appended_again(
    server: FlightServer, intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks when the rows are durable and nobody was told."""
    lost: list[Answer] = []
    write = PutStream._write

    def lose(stream: PutStream, answer: Answer) -> None:
        if len(lost) < 3:
            lost.append(answer)
            server._connections.shut()
        else:
            write(stream, answer)

    monkeypatch.setattr(PutStream, "_write", lose)
    with Client(server.url) as client:
        client.create_topic("events", schema={"id": "long"})
        found = [client.produce("events", [{"id": n}]).result(30) for n in range(10)]
    assert found[0] == (0, 1, True)
    assert [each.first for each in found] == list(range(10))
    assert ids_in(intake) == list(range(10))
    assert len(lost) == 3


def test_what_is_not_acknowledged_in_time_fails(tmp_path: Path) -> None:
    with IngestProcess(tmp_path / "lake") as process:
        client = Client(process.url, delivery_timeout_seconds=3, connect_timeout_seconds=30)
        client.produce("events", [{"id": 0}]).result(30)
        process.stop()
        with pytest.raises(Unavailable, match="no service answers"):
            client.produce("events", [{"id": 1}]).result(30)
        process.start()
        eventually(lambda: client.topics() == ["events"])
        assert client.produce("events", [{"id": 2}]).result(30) == (1, 2, False)
        client.close()


def eventually(holds: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if holds():
                return
        except CalveError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.05)
