"""What the Flight server does not let happen: whatever one client does, the others go on."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from calve.audit import records
from calve.errors import InvalidRequest, Overloaded, Unavailable
from calve.ingest import Intake
from calve.ingest.addresses import same_address
from calve.ingest.connections import Connections
from calve.ingest.flight import FlightServer
from calve.model import TableName
from tests.conftest import MakeSettings
from tests.integration.flight_calls import BATCH, act, answer, put, refused, rows, sent, told
from tests.servers.ingest import IngestProcess

EVENTS = TableName.parse("events")
MIB = 1 << 20


@pytest.fixture
def serve(make_settings: MakeSettings) -> Iterator[Callable[..., tuple[Intake, FlightServer]]]:
    opened: list[tuple[Intake, FlightServer]] = []

    def make(**flags: object) -> tuple[Intake, FlightServer]:
        intake = Intake(make_settings(ingest__flight_port=0, **flags))
        server = FlightServer(intake)
        opened.append((intake, server))
        server.start()
        return intake, server

    yield make
    for intake, server in opened:
        server.stop()
        intake.close()


def eventually(holds: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def close_quietly(*ends: Any) -> None:
    """A stream that the server ended cannot be closed without an error."""
    for end in ends:
        with suppress(pa.ArrowException, OSError):
            end.close()


def test_streams_are_counted_for_each_address(serve: Callable[..., Any]) -> None:
    _, server = serve(ingest__streams_per_client_max=3)
    with flight.FlightClient(server.url) as client:
        streams = []
        for _ in range(3):
            writer, reader = put(client, "events")
            writer.write_batch(BATCH)
            answer(reader)
            streams.append(writer)
        error = refused(lambda: sent(client, "events", BATCH))
        assert isinstance(error, Overloaded)
        assert "streams_per_client_max" in error.message
        assert int(error.context["retry_after_ms"]) > 0
        streams.pop().close()
        eventually(lambda: _is_taken(client))
        close_quietly(*streams)


def _is_taken(client: Any) -> bool:
    try:
        return bool(sent(client, "events", BATCH)["end"])
    except flight.FlightError:
        return False


def test_calls_are_counted_before_anything_of_them_is_read(serve: Callable[..., Any]) -> None:
    _, server = serve(ingest__streams_max=2)
    with flight.FlightClient(server.url) as client:
        streams = [put(client, "events")[0] for _ in range(2)]
        # A call that asks may come before one of them, and take its place.
        eventually(lambda: server._calls._entered == 2)
        assert not _is_taken(client)
        with pytest.raises(flight.FlightUnavailableError, match="streams_max"):
            list(client.list_flights())
        close_quietly(*streams)
        eventually(lambda: _is_taken(client))


def test_300_streams_are_served_at_once(serve: Callable[..., Any]) -> None:
    intake, server = serve(ingest__streams_per_client_max=300)
    with flight.FlightClient(server.url) as client:
        streams = [put(client, "events") for _ in range(300)]
        for _ in range(2):
            for writer, _reader in streams:
                writer.write_batch(BATCH)
            for writer, reader in streams:
                assert told(writer, reader)["end"]
        close_quietly(*(writer for writer, _ in streams))
    assert intake.offsets(EVENTS).durable == 2 * 2 * 300
    audit = records(intake.settings.data / "_calve" / "audit")
    assert [each.step for each in audit] == ["begin", "end"]  # one made the topic for all


def test_an_idle_stream_is_ended_and_a_busy_one_is_not(serve: Callable[..., Any]) -> None:
    _, server = serve(ingest__idle_seconds_max=1)
    idle_client, busy_client = flight.FlightClient(server.url), flight.FlightClient(server.url)
    idle, idle_reader = put(idle_client, "events")
    idle.write_batch(BATCH)
    answer(idle_reader)
    busy, busy_reader = put(busy_client, "events")
    ended = threading.Event()

    def wait_for_the_end() -> None:
        with suppress(pa.ArrowException):
            idle_reader.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    deadline = time.monotonic() + 20
    while not ended.is_set():
        assert time.monotonic() < deadline
        busy.write_batch(BATCH)
        assert answer(busy_reader)["end"]
        time.sleep(0.05)
    busy.close()
    close_quietly(idle, idle_client, busy_client)


def test_a_call_of_which_nothing_came_is_ended(serve: Callable[..., Any]) -> None:
    """A connection that says nothing, such as half of one whose other half is gone."""
    _, server = serve(ingest__idle_seconds_max=1)
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as silent:
        silent.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        while silent.recv(4096):
            pass  # gRPC's greeting, and then the end


@pytest.mark.parametrize(
    "content",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 10_000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 999],
    ids=["http", "zeros", "frames"],
)  # fmt: skip
def test_garbage_at_the_port_does_no_harm(serve: Callable[..., Any], content: bytes) -> None:
    _, server = serve()
    port = int(server.url.rpartition(":")[2])
    for _ in range(20):
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
            suppress(OSError),
        ):
            connection.sendall(content)
    with flight.FlightClient(server.url) as client:
        assert sent(client, "events", BATCH)["end"] == 2


def test_who_reads_no_acknowledgements_holds_up_nobody_else(serve: Callable[..., Any]) -> None:
    intake, server = serve()
    slow_client = flight.FlightClient(server.url)
    slow, slow_reader = put(slow_client, "events")
    sent_count = 0

    def send_without_end() -> None:
        nonlocal sent_count
        with suppress(pa.ArrowException, OSError):
            while True:
                slow.write_batch(BATCH)
                sent_count += 1

    threading.Thread(target=send_without_end, daemon=True).start()
    eventually(lambda: sent_count > 2_000)
    _wait_until_it_stands_still(lambda: sent_count)
    with flight.FlightClient(server.url) as client:
        for _ in range(20):
            assert sent(client, "others", BATCH)["end"]
    assert intake.admission.held_bytes < 10 * MIB
    assert answer(slow_reader) == {"first": 0, "end": 2, "repeat": False}
    server.stop(grace_seconds=0.2)
    close_quietly(slow, slow_client)


def _wait_until_it_stands_still(count: Callable[[], int]) -> None:
    before = -1
    deadline = time.monotonic() + 60
    while count() != before:
        assert time.monotonic() < deadline
        before = count()
        time.sleep(0.5)


def test_a_batch_beyond_the_bound_is_refused_and_others_go_on(serve: Callable[..., Any]) -> None:
    _, server = serve(ingest__request_bytes_max=MIB)
    with flight.FlightClient(server.url) as client:
        large = pa.record_batch({"text": pa.array([bytes(2 * MIB)])})
        error = refused(lambda: sent(client, "events", large))
        assert isinstance(error, InvalidRequest)
        assert "request_bytes_max" in error.message
        assert sent(client, "events", large.slice(0, 1).select([]).append_column("id", [[1]]))
        assert len(rows(client, "events")) == 1


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_batch_that_decodes_to_more_than_the_bound_is_refused(
    serve: Callable[..., Any], codec: str
) -> None:
    _, server = serve(ingest__request_bytes_max=MIB)
    options = flight.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression=codec))
    batch = pa.record_batch({"zeros": pa.array([bytes(64 * MIB)])})
    with flight.FlightClient(server.url) as client:
        path = flight.FlightDescriptor.for_path("events")
        writer, _ = client.do_put(path, batch.schema, options=options)
        writer.write_batch(batch)
        assert isinstance(refused(writer.close), InvalidRequest)


def test_a_batch_that_decodes_to_much_takes_that_much_once(tmp_path: Path) -> None:
    """Arrow decodes a batch before anybody can look at it. What it becomes has no bound; nothing
    here may copy it, and how many do so at once is bounded with the streams."""
    with IngestProcess(tmp_path / "lake", ingest__request_bytes_max=MIB) as process:
        bomb = pa.record_batch({"zeros": pa.array([bytes(256 * MIB)])})
        options = flight.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression="zstd"))
        with flight.FlightClient(process.url) as client:
            sent(client, "events", BATCH)
            before, peak = process.memory_bytes, _Peak(process)
            path = flight.FlightDescriptor.for_path("events")
            writer, _ = client.do_put(path, bomb.schema, options=options)
            assert isinstance(refused(lambda: _write_and_close(writer, bomb)), InvalidRequest)
            grown = peak.stop() - before
            assert 200 * MIB < grown < 320 * MIB
            assert sent(client, "events", BATCH)["end"] == 4


def test_a_message_beyond_the_bound_is_cut_while_it_comes(tmp_path: Path) -> None:
    """A gigabyte in one message: the server never holds much more than it may."""
    with IngestProcess(tmp_path / "lake", ingest__request_bytes_max=64 * MIB) as process:
        with flight.FlightClient(process.url) as client:
            sent(client, "events", BATCH)
            before = process.memory_bytes
            peak = _Peak(process)
            piece = pa.array([bytes(64 * MIB)], pa.large_binary())
            huge = pa.record_batch({"zeros": pa.concat_arrays([piece] * 16)})
            writer, _ = put(client, "events", schema=huge.schema)
            with pytest.raises((flight.FlightError, OSError)):
                _write_and_close(writer, huge)
            assert peak.stop() - before < 256 * MIB
        with flight.FlightClient(process.url) as client:
            assert sent(client, "events", BATCH)["end"] == 4


def _write_and_close(writer: Any, batch: pa.RecordBatch) -> None:
    try:
        writer.write_batch(batch)
    finally:
        writer.close()


class _Peak:
    def __init__(self, process: IngestProcess) -> None:
        self._process = process
        self._is_over = threading.Event()
        self.bytes = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._is_over.wait(0.005):
            self.bytes = max(self.bytes, self._process.memory_bytes)

    def stop(self) -> int:
        self._is_over.set()
        self._thread.join()
        return self.bytes


@pytest.mark.parametrize("stream_count", [1, 3])
def test_many_batches_in_a_row_are_not_taken_for_one_large_message(
    serve: Callable[..., Any], stream_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also over one connection that several streams share."""
    monkeypatch.setattr("calve.ingest.flight.watch._GROWN_BYTES", 0)  # it always looks
    _, server = serve(ingest__request_bytes_max=MIB)
    client = flight.FlightClient(server.url)
    large = pa.record_batch({"text": ["x" * 500_000]})
    streams = [put(client, "events", schema=large.schema) for _ in range(stream_count)]
    for _ in range(120 // stream_count):
        for writer, _reader in streams:
            writer.write_batch(large)
        for _writer, reader in streams:
            assert answer(reader)["end"]
        time.sleep(0.002)
    close_quietly(*(writer for writer, _ in streams), client)


def test_a_schema_beyond_the_bound_is_refused(serve: Callable[..., Any]) -> None:
    _, server = serve()
    wide = pa.schema([(f"column_{number}", pa.int64()) for number in range(20_000)])
    with flight.FlightClient(server.url) as client:
        writer, _ = put(client, "events", schema=wide)
        writer.write_batch(pa.RecordBatch.from_arrays([pa.array([1])] * 20_000, schema=wide))
        assert isinstance(refused(writer.close), InvalidRequest)
        heavy = BATCH.schema.with_metadata({"note": "x" * 8 * MIB})
        writer, _ = put(client, "events", schema=heavy)
        writer.write_batch(BATCH.replace_schema_metadata(heavy.metadata))
        with suppress(flight.FlightError):
            writer.close()
        assert sent(client, "others", BATCH)["end"] == 2


def test_memory_that_is_full_makes_a_producer_wait_and_then_refuses(
    serve: Callable[..., Any],
) -> None:
    intake, server = serve(ingest__memory_bytes_max=10_000)
    with flight.FlightClient(server.url) as client:
        with intake.admission.hold(9_990, "somebody"):
            began = time.monotonic()
            error = refused(lambda: sent(client, "events", BATCH))
            assert isinstance(error, Overloaded)
            assert "memory_bytes_max" in error.message
            assert time.monotonic() - began > 1
        assert sent(client, "events", BATCH)["end"] == 2
    assert intake.admission.held_bytes == 0


def test_a_stop_answers_what_was_accepted_and_ends_every_stream(serve: Callable[..., Any]) -> None:
    intake, server = serve()
    client = flight.FlightClient(server.url)
    counts: list[int] = []
    answered: list[int] = []

    def produce(number: int) -> None:
        writer, reader = put(client, f"events{number}")
        with suppress(pa.ArrowException, OSError):
            while True:
                writer.write_batch(BATCH)
                found = answer(reader)
                if found is None:
                    break
                answered.append(found["end"] - found["first"])
        close_quietly(writer)
        counts.append(number)

    idle, _ = put(client, "idle")
    threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(answered) > 50)
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 5
    for thread in threads:
        thread.join(20)
    assert sorted(counts) == [0, 1, 2, 3]
    durable = sum(intake.offsets(TableName.parse(f"events{n}")).durable for n in range(4))
    assert durable == sum(answered)  # whatever was accepted was answered
    server.stop()  # again is nothing
    close_quietly(idle, client)


def test_a_stop_waits_for_what_the_log_has_not_written_yet(serve: Callable[..., Any]) -> None:
    intake, server = serve()
    client = flight.FlightClient(server.url)
    writer, reader = put(client, "events")
    writer.write_batch(BATCH)
    answer(reader)
    eventually(lambda: not any(call.outstanding for call in server._calls.opened()))
    with intake.log._leader.holding():
        writer.write_batch(BATCH)
        eventually(lambda: any(call.outstanding for call in server._calls.opened()))
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        stopping.join(0.5)
        assert stopping.is_alive()
    assert answer(reader) == {"first": 2, "end": 4, "repeat": False}
    stopping.join(20)
    assert not stopping.is_alive()
    close_quietly(writer, client)


def test_a_stop_waits_for_no_flush(serve: Callable[..., Any]) -> None:
    _, server = serve()
    client = flight.FlightClient(server.url)
    sent(client, "events", BATCH)

    def flush() -> None:
        with suppress(flight.FlightError):
            act(client, "flush", topic="events", timeout_seconds=600)

    flushing = threading.Thread(target=flush)
    flushing.start()
    eventually(lambda: any(call.is_busy for call in server._calls.opened()))
    began = time.monotonic()
    server.stop(grace_seconds=60)
    assert time.monotonic() - began < 10
    flushing.join(20)
    assert not flushing.is_alive()
    close_quietly(client)


def test_nothing_is_taken_in_once_it_is_stopping(serve: Callable[..., Any]) -> None:
    intake, server = serve()
    client = flight.FlightClient(server.url)
    writer, reader = put(client, "events")
    writer.write_batch(BATCH)
    answer(reader)
    server._calls.is_closing = True
    writer.write_batch(BATCH)
    assert isinstance(refused(writer.close), Unavailable)
    with pytest.raises(flight.FlightUnavailableError, match="stopping"):
        list(client.list_flights())
    assert intake.offsets(EVENTS).durable == 2
    close_quietly(client)


def test_addresses_are_known_however_they_are_spelt() -> None:
    assert same_address("ipv4:127.0.0.1:5000") == "127.0.0.1:5000"
    assert same_address("ipv6:%5B::1%5D:5000") == "::1:5000"
    assert same_address("ipv6:[::ffff:10.0.0.1]:80") == "10.0.0.1:80"


def test_connections_are_found_by_their_port_and_shut_by_their_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        accepted = [listening.accept()[0] for _ in range(2)]
        names = [f"127.0.0.1:{client.getsockname()[1]}" for client in clients]
        connections = Connections(port)
        clients[1].sendall(b"x" * 1_000)
        assert accepted[1].recv(1_000, socket.MSG_WAITALL)
        traffic = connections.traffic()
        assert set(names) == set(traffic)
        assert traffic[names[1]].received_bytes - traffic[names[0]].received_bytes == 1_000
        assert connections.shut({names[0]}) == 1
        assert clients[0].recv(1) == b""
        accepted[1].sendall(b"y")
        assert clients[1].recv(1) == b"y"
        for end in (*clients, *accepted):
            end.close()
