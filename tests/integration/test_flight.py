"""Rows in and out over Flight, from pyarrow alone, which is what other languages' clients are."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

from calve.errors import Conflict, InvalidRequest, NotFound, Unavailable
from calve.ingest import Intake
from calve.ingest.flight import FlightServer
from calve.model import TableName
from calve.topics import TopicSpec
from calve.wal import Rejected
from tests.conftest import MakeSettings
from tests.integration.flight_calls import BATCH, act, answer, put, refused, rows, sent

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
def client(server: FlightServer) -> Iterator[Any]:
    with flight.FlightClient(server.url) as client:
        yield client


def test_each_batch_is_acknowledged_with_its_offsets_in_order(client: Any) -> None:
    writer, reader = put(client, "events")
    for number in range(3):
        writer.write_batch(BATCH)
        assert answer(reader) == {"first": 2 * number, "end": 2 * number + 2, "repeat": False}
    writer.close()
    assert [row["id"] for row in rows(client, "events")] == [1, 2] * 3


def test_many_batches_are_under_way_at_once(client: Any, intake: Intake) -> None:
    writer, reader = put(client, "events")
    count = 2_000  # more than a stream has under way
    answers: list[Any] = []
    reading = threading.Thread(target=lambda: answers.extend(answer(reader) for _ in range(count)))
    reading.start()
    for _ in range(count):
        writer.write_batch(BATCH)
    reading.join(60)
    writer.close()
    assert [(each["first"], each["end"]) for each in answers] == [
        (2 * number, 2 * number + 2) for number in range(count)
    ]
    assert intake.offsets(EVENTS).durable == 2 * count


def test_a_stream_that_ends_has_every_answer(client: Any) -> None:
    writer, reader = put(client, "events")
    for _ in range(100):
        writer.write_batch(BATCH)
    writer.done_writing()
    answers = []
    while (found := answer(reader)) is not None:
        answers.append(found)
    assert len(answers) == 100
    writer.close()


@pytest.mark.parametrize("path", [("events",), ("default", "default", "events")])
def test_a_descriptor_names_a_topic(client: Any, path: tuple[str, ...]) -> None:
    writer, reader = put(client, *path)
    writer.write_batch(BATCH)
    assert answer(reader)["end"] == 2
    writer.close()
    assert act(client, "stats", topic="events")["row_count"] == 2


@pytest.mark.parametrize(
    "path",
    [("..",), ("a/b",), ("a%2fb",), ("Events",), ("events\u0435",), ("x" * 64,), ("",), ("a", "b"),
     ("a", "b", "c", "d"), ("a__b",), ("acme", "..", "events"), ("_calve",)],
)  # fmt: skip
def test_a_name_that_is_none_is_refused(client: Any, path: tuple[str, ...]) -> None:
    writer, _ = put(client, *path)
    assert isinstance(refused(writer.close), InvalidRequest)


def test_a_command_is_no_topic(client: Any) -> None:
    writer, _ = client.do_put(flight.FlightDescriptor.for_command(b"events"), BATCH.schema)
    assert "names no topic" in refused(writer.close).message


def test_the_same_producer_and_sequence_is_appended_once(client: Any, intake: Intake) -> None:
    first = sent(client, "events", BATCH, producer="p", sequence=0)
    again = sent(client, "events", BATCH, producer="p", sequence=0)
    assert (first["repeat"], again["repeat"]) == (False, True)
    assert (again["first"], again["end"]) == (first["first"], first["end"])
    assert intake.offsets(EVENTS).durable == 2


def test_a_repeat_of_long_ago_is_acknowledged_without_offsets(client: Any) -> None:
    writer, reader = put(client, "events")
    writer.write_with_metadata(BATCH, b'{"producer": "p", "sequence": 0}')
    for _ in range(600):
        writer.write_batch(BATCH)  # counts up by itself
        answer(reader)
    answer(reader)
    writer.close()
    assert sent(client, "events", BATCH, producer="p", sequence=600)["first"] == 1_200
    assert sent(client, "events", BATCH, producer="p", sequence=0) == {
        "first": None,
        "end": None,
        "repeat": True,
    }


def test_an_identity_that_comes_without_a_batch_speaks_of_the_next_one(client: Any) -> None:
    writer, reader = put(client, "events")
    writer.write_metadata(b'{"producer": "p", "sequence": 0}')
    writer.write_batch(BATCH)
    writer.write_batch(BATCH)
    assert [answer(reader)["end"], answer(reader)["end"]] == [2, 4]
    writer.close()
    assert sent(client, "events", BATCH, producer="p", sequence=1)["repeat"]
    assert not sent(client, "events", BATCH, producer="p", sequence=2)["repeat"]


def test_a_gap_in_a_sequence_is_refused_and_says_what_is_expected(client: Any) -> None:
    sent(client, "events", BATCH, producer="p", sequence=0)
    error = refused(lambda: sent(client, "events", BATCH, producer="p", sequence=2))
    assert isinstance(error, Conflict)
    assert error.context["expected_sequence"] == "1"


def test_a_gap_is_told_also_to_a_producer_that_only_waits(client: Any, intake: Intake) -> None:
    """Nothing more comes from it, so that the stream could not end; the answer says it."""
    writer, reader = put(client, "events")
    for sequence in (*range(50), 51):
        metadata = json.dumps({"producer": "p", "sequence": sequence}).encode()
        writer.write_with_metadata(BATCH, metadata)
    for _ in range(50):
        assert "problem" not in answer(reader)
    last = answer(reader)
    assert last is None or last["problem"]["title"] == "Conflict"
    assert isinstance(refused(writer.close), Conflict)
    assert intake.offsets(EVENTS).durable == 100


def test_a_stream_that_ends_without_an_answer_says_why_when_it_is_closed(
    client: Any, intake: Intake
) -> None:
    """pyarrow's reader tells that nothing more comes, and no more than that."""
    place = intake.settings.data / "_calve" / "audit"
    place.write_text("in the way")  # so that no topic can be made
    writer, reader = put(client, "events")
    writer.write_batch(BATCH)
    assert answer(reader) is None
    error = refused(writer.close)
    assert isinstance(error, Unavailable)  # it may come back
    assert "audit log" in error.message
    assert error.context["batch"] == "0"
    place.unlink()
    assert sent(client, "events", BATCH)["end"] == 2


@pytest.mark.parametrize("metadata", [b"{", b"[]", b'{"producer": 1}', b'{"p": "x"}', b"\xff\xfe"])
def test_metadata_that_cannot_be_read_is_refused(client: Any, metadata: bytes) -> None:
    writer, _ = put(client, "events")
    writer.write_with_metadata(BATCH, metadata)
    assert isinstance(refused(writer.close), InvalidRequest)


def test_a_sequence_without_a_producer_is_refused(client: Any) -> None:
    writer, _ = put(client, "events")
    writer.write_with_metadata(BATCH, b'{"sequence": 0}')
    assert "together" in refused(writer.close).message


def test_a_newer_stream_of_a_producer_takes_over(client: Any, intake: Intake) -> None:
    """What the newer one is told stays true: nothing comes behind its back."""
    old, old_reader = put(client, "events")
    old.write_with_metadata(BATCH, b'{"producer": "p", "sequence": 0}')
    answer(old_reader)
    assert sent(client, "events", BATCH, producer="other", sequence=0)["end"] == 4
    assert sent(client, "events", BATCH, producer="p", sequence=1)["end"] == 6
    old.write_with_metadata(BATCH, b'{"producer": "p", "sequence": 2}')
    error = refused(old.close)
    assert isinstance(error, Conflict)
    assert "another stream" in error.message
    assert intake.offsets(EVENTS).durable == 6
    assert sent(client, "events", BATCH, producer="p", sequence=2)["end"] == 8


def test_clashing_columns_are_refused_with_both_types(client: Any, intake: Intake) -> None:
    sent(client, "events", BATCH)
    clash = pa.record_batch({"id": ["x"], "name": [1]})
    error = refused(lambda: sent(client, "events", clash))
    assert isinstance(error, InvalidRequest)
    assert "'id' is long, and string was sent" in error.message
    assert "'name' is string, and long was sent" in error.message
    assert error.context["columns"] == "id, name"
    assert intake.offsets(EVENTS).durable == 2


def test_an_error_says_which_batch_of_the_stream_it_is_about(client: Any) -> None:
    """Arrow's client may drop answers that came before it, when it was just writing."""
    writer, _ = put(client, "events")
    for _ in range(3):
        writer.write_batch(BATCH)
    writer.write_with_metadata(BATCH, b"nonsense")
    assert refused(writer.close).context["batch"] == "3"
    writer, _ = put(client, "events")
    for sequence in (0, 1, 3):
        metadata = json.dumps({"producer": "p", "sequence": sequence}).encode()
        writer.write_with_metadata(BATCH, metadata)
    error = refused(writer.close)
    assert error.context == {"batch": "2", "expected_sequence": "2"}


def test_what_was_acknowledged_before_an_error_stays(client: Any) -> None:
    writer, reader = put(client, "events")
    writer.write_batch(BATCH)
    assert answer(reader)["end"] == 2
    writer.write_with_metadata(BATCH, b"nonsense")
    refused(writer.close)
    assert len(rows(client, "events")) == 2


def test_a_new_stream_brings_new_columns(client: Any) -> None:
    sent(client, "events", BATCH)
    sent(client, "events", pa.record_batch({"id": [3], "größe": [1.5]}))
    found = rows(client, "events")
    assert [(row["id"], row["name"], row["größe"]) for row in found] == [
        (1, "a", None),
        (2, "b", None),
        (3, None, 1.5),
    ]


def test_an_empty_batch_is_refused(client: Any) -> None:
    assert "at least one row" in refused(lambda: sent(client, "events", BATCH.slice(0, 0))).message


def test_a_stream_without_batches_ends_in_peace(client: Any) -> None:
    writer, reader = put(client, "events")
    writer.done_writing()
    assert answer(reader) is None
    writer.close()


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        (pa.array([{"x": [1]}, {"x": None}, None]), [{"x": [1]}, {"x": None}, None]),
        (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"x" * 16], pa.binary(16))), None),
        (pa.array([{"x": {"y": {"z": [[1]]}}}]), [{"x": {"y": {"z": [[1]]}}}]),
    ],
    ids=["dictionary", "nested", "extension", "deep"],
)
def test_columns_of_other_kinds_go_in_and_come_out(
    client: Any, column: pa.Array, values: list[Any] | None
) -> None:
    assert sent(client, "events", pa.record_batch({"x": column}))["end"] == len(column)
    found = [row["x"] for row in rows(client, "events")]
    assert found == (column.to_pylist() if values is None else values)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_batches_go_in(client: Any, compression: str) -> None:
    options = flight.FlightCallOptions(
        write_options=pa.ipc.IpcWriteOptions(compression=compression)
    )
    batch = pa.record_batch({"text": ["x" * 1_000] * 1_000})
    path = flight.FlightDescriptor.for_path("events")
    writer, reader = client.do_put(path, batch.schema, options=options)
    writer.write_batch(batch)
    assert answer(reader)["end"] == 1_000
    writer.close()
    assert rows(client, "events", to=1)[0]["text"] == "x" * 1_000


def test_a_range_is_read_with_where_and_when_its_rows_came(client: Any, intake: Intake) -> None:
    for _ in range(3):
        sent(client, "events", BATCH)
    found = rows(client, "events", **{"from": 1, "to": 4})
    assert [(row["_calve_partition"], row["_calve_offset"], row["id"]) for row in found] == [
        (0, 1, 2),
        (0, 2, 1),
        (0, 3, 2),
    ]
    entry = next(iter(intake.read(EVENTS, 0)))
    first = rows(client, "events", to=1)[0]
    assert first["_calve_ingested_at"] == entry.ingested_at


def test_a_range_ends_at_what_is_durable(client: Any) -> None:
    sent(client, "events", BATCH)
    assert len(rows(client, "events", to=1_000_000)) == 2
    assert rows(client, "events", **{"from": 2}) == []
    assert rows(client, "events", **{"from": 1_000}) == []


def test_rejected_rows_and_holes_are_not_among_the_rows(client: Any, intake: Intake) -> None:
    sent(client, "events", BATCH)
    intake.submit(EVENTS, [Rejected(b"{", "application/json", "not JSON")]).wait()
    stream = intake.log.stream(EVENTS)
    intake.log.record_hole(stream, 3, 10)
    sent(client, "events", BATCH)
    assert [row["_calve_offset"] for row in rows(client, "events")] == [0, 1, 10, 11]


def test_frames_hold_everything_that_a_commit_needs(client: Any, intake: Intake) -> None:
    sent(client, "events", BATCH)
    intake.submit(EVENTS, [Rejected(b"{", "application/json", "not JSON")]).wait()
    intake.log.record_hole(intake.log.stream(EVENTS), 3, 10)
    found = rows(client, "events", form="frames")
    entries = list(intake.read(EVENTS, 0))
    assert [(f["kind"], f["first_offset"], f["end_offset"]) for f in found] == [
        ("rows", 0, 2),
        ("rejected", 2, 3),
        ("hole", 3, 10),
    ]
    assert [f["content_sum"] for f in found] == [entry.content_sum for entry in entries]
    assert [f["ingested_at_us"] for f in found] == [entry.ingested_at_us for entry in entries]
    batches = [pa.ipc.open_stream(f["payload"]).read_next_batch() for f in found[:2]]
    assert batches[0].to_pylist() == BATCH.to_pylist()
    assert batches[1].to_pylist()[0]["reason"] == "not JSON"
    assert found[2]["payload"] is None


def test_rows_of_before_a_change_have_the_columns_of_now(client: Any) -> None:
    act(client, "topic.create", topic="events", schema={"id": "int", "old": "string"})
    sent(client, "events", pa.record_batch({"id": pa.array([1], pa.int32()), "old": ["x"]}))
    act(client, "topic.alter", topic="events", drop_columns=["old"], on_unknown_column="refuse",
        rename_columns={"id": "number"}, add_columns={"new": "double"})  # fmt: skip
    number = pa.array([2], pa.int32())
    sent(client, "events", pa.record_batch({"number": number, "new": [0.5]}))
    found = rows(client, "events")
    assert [(row["number"], row["new"]) for row in found] == [(1, None), (2, 0.5)]
    assert "old" not in found[0]


@pytest.mark.parametrize(
    "ticket",
    [b"", b"{", b'{"topic": 1}', b'{"topic": "events", "form": "csv"}', b'{"topic": "../x"}',
     b'{"topic": "events", "from": -1}', b'{"topic": "events", "from": 2, "to": 1}',
     b'{"topic": "events", "until": 1}', b"\xff"],
)  # fmt: skip
def test_a_ticket_that_makes_no_sense_is_refused(client: Any, ticket: bytes) -> None:
    sent(client, "events", BATCH)
    error = refused(lambda: client.do_get(flight.Ticket(ticket)).read_all())
    assert isinstance(error, InvalidRequest)


def test_what_is_not_here_is_not_found(client: Any) -> None:
    sent(client, "events", BATCH)
    assert isinstance(refused(lambda: rows(client, "event")), NotFound)
    error = refused(lambda: rows(client, "events", partition=7))
    assert "partition 7" in error.message


def test_a_range_that_was_let_go_says_where_the_log_begins(make_settings: MakeSettings) -> None:
    settings = make_settings(
        ingest__flight_port=0, wal__hot_window_seconds=0, wal__segment_bytes_max=65_536
    )
    wide = pa.record_batch({"text": ["x" * 20_000]})
    with Intake(settings) as intake, FlightServer(intake) as server:
        client = flight.FlightClient(server.url)
        for _ in range(20):
            sent(client, "events", wide)
        topic = intake.topics.topic(EVENTS)
        log_id = intake.log.log_id
        intake.state.publish_committed(topic.id, 0, log_id=log_id, offset=10)
        assert intake.trim() > 0
        first = intake.offsets(EVENTS).first
        assert first > 0
        error = refused(lambda: rows(client, "events", **{"from": 0}))
        assert isinstance(error, NotFound)
        assert error.context["first"] == str(first)
        assert rows(client, "events")[0]["_calve_offset"] == first
        client.close()


def test_flights_tell_of_topics(client: Any) -> None:
    sent(client, "events", BATCH)
    act(client, "topic.create", topic="acme.web.clicks", schema={"at": "timestamptz"})
    infos = list(client.list_flights())
    assert [info.descriptor.path for info in infos] == [
        [b"acme", b"web", b"clicks"],
        [b"default", b"default", b"events"],
    ]
    assert [len(list(client.list_flights(tenant))) for tenant in (b"acme", b"nobody")] == [1, 0]
    info = client.get_flight_info(flight.FlightDescriptor.for_path("events"))
    assert info.total_records == 2
    assert client.do_get(info.endpoints[0].ticket).read_all().num_rows == 2
    schema = client.get_schema(flight.FlightDescriptor.for_path("events")).schema
    assert schema.names == [*BATCH.schema.names, "_calve_partition", "_calve_offset",
                            "_calve_ingested_at"]  # fmt: skip
    assert schema == info.schema


def test_a_topic_that_stopped_is_listed_and_the_others_go_on(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    with Intake(make_settings(wal__path=str(tmp_path / "lost"))) as intake:
        intake.create_topic(EVENTS, TopicSpec(schema=BATCH.schema))
    with Intake(make_settings(ingest__flight_port=0)) as intake, FlightServer(intake) as server:
        client = flight.FlightClient(server.url)
        sent(client, "others", BATCH)
        infos = list(client.list_flights())
        assert [(info.descriptor.path[2], len(info.endpoints)) for info in infos] == [
            (b"events", 0),
            (b"others", 1),
        ]
        error = refused(lambda: sent(client, "events", BATCH))
        assert isinstance(error, Conflict)
        assert "is in log" in error.message
        client.close()


def test_actions_make_change_and_delete_topics(client: Any, intake: Intake) -> None:
    made = act(client, "topic.create", topic="events",
               schema={"columns": [{"name": "id", "type": "long", "required": True}]},
               partition_by=["bucket(4, id)"])  # fmt: skip
    assert made["columns"] == [{"name": "id", "type": "long", "required": True}]
    again = refused(lambda: act(client, "topic.create", topic="events", schema={"id": "string"}))
    assert isinstance(again, Conflict)
    altered = act(client, "topic.alter", topic="events", retention_seconds=60)
    assert altered["retention_seconds"] == 60
    assert act(client, "topic.alter", topic="events", on_bad_row="dead_letter")[
        "retention_seconds"
    ] == 60  # fmt: skip
    assert act(client, "topic.describe", topic="events")["offsets"]["durable"] == 0
    act(client, "topic.delete", topic="events")
    assert intake.topics.list() == []
    act(client, "topic.create", topic="events", columns=[{"name": "id", "type": "long"}])
    act(client, "topic.alter", topic="events", add_columns=[{"name": "x", "type": "int"}])
    found = act(client, "topic.describe", topic="events")["columns"]
    assert [column["name"] for column in found] == ["id", "x"]
    act(client, "topic.delete", topic="events")
    assert act(client, "topic.create", topic="letters", kind="messages")["kind"] == "messages"
    assert isinstance(refused(lambda: act(client, "topic.describe", topic="events")), NotFound)


def test_flush_waits_for_the_table(client: Any, intake: Intake) -> None:
    sent(client, "events", BATCH)
    error = refused(lambda: act(client, "flush", topic="events", timeout_seconds=0.05))
    assert isinstance(error, Unavailable)
    assert "has reached offset 0, and 2 was asked for" in error.message
    topic = intake.topics.topic(EVENTS)
    assert intake.state.flush_requests() == {(topic.id, 0): 2}
    intake.state.publish_committed(topic.id, 0, log_id=intake.log.log_id, offset=2)
    assert act(client, "flush", topic="events")["committed"] == 2
    assert intake.state.flush_requests() == {}


def test_the_ends_of_a_log_are_told_of_all_its_streams(client: Any, intake: Intake) -> None:
    sent(client, "events", BATCH)
    sent(client, "events", BATCH)
    sent(client, "others", BATCH)
    intake.create_topic(TableName.parse("empty"), TopicSpec(schema=BATCH.schema))
    told = act(client, "log.ends")
    assert told["log_id"] == str(intake.log.log_id)
    ends = {"events": [0, 4], "others": [0, 2], "empty": [0, 0]}
    topics = {name: intake.topics.topic(TableName.parse(name)) for name in ends}
    streams = {name: str(topic.partitions[0].stream_id) for name, topic in topics.items()}
    assert told["streams"] == {streams[name]: each for name, each in ends.items()}


def test_every_action_is_described_with_an_example_that_can_be_read(client: Any) -> None:
    described = {action.type: action.description for action in client.list_actions()}
    assert set(described) == {
        *("topic.create", "topic.describe", "topic.alter", "topic.delete", "topic.verify"), "flush", "stats",
        *("log.ends", "status", "topic.list"), *("pipeline.status", "pipeline.pause", "pipeline.resume", "pipeline.skip"),
        *("dead_letter.list", "dead_letter.show", "dead_letter.original"),
        *("dead_letter.replay", "dead_letter.discard"),
        *("subscription.list", "subscription.describe", "subscription.ack"),
        *("subscription.seek", "subscription.reset", "subscription.delete"),
        *("token.create", "token.list", "token.revoke"),
    }  # fmt: skip
    assert "id" in json.loads(described.pop("token.revoke").partition(": ")[2])
    assert "name" in json.loads(described.pop("token.create").partition(": ")[2])
    for about_all in ("log.ends", "status", "topic.list", "token.list"):
        assert json.loads(described.pop(about_all).rpartition(": ")[2]) == {}
    for description in described.values():
        assert "topic" in json.loads(description[description.index("{") :])


@pytest.mark.parametrize(
    ("action", "body"),
    [("nonsense", b"{}"), ("stats", b""), ("stats", b"{}"), ("stats", b'{"topic": "x", "y": 1}'),
     ("log.ends", b'{"topic": "x"}'),
     ("topic.create", b'{"topic": "x", "schema": {"_calve_offset": "long"}}'),
     ("topic.create", b'{"topic": "x", "schema": {"columns": []}}'),
     ("topic.create", b'{"topic": "x", "schema": "id"}'),
     ("topic.create", b'{"topic": "x"}'), ("topic.alter", b'{"topic": "x", "nonsense": 1}'),
     ("topic.create", b'{"topic": "x", "schema": {"id": "nonsense"}}'),
     ("flush", b'{"topic": "x", "timeout_seconds": -1}')],
)  # fmt: skip
def test_an_action_that_makes_no_sense_is_refused(client: Any, action: str, body: bytes) -> None:
    error = refused(lambda: list(client.do_action(flight.Action(action, body))))
    assert isinstance(error, InvalidRequest)


def test_topics_are_not_made_where_that_is_not_allowed(make_settings: MakeSettings) -> None:
    settings = make_settings(ingest__flight_port=0, ingest__auto_create=False)
    with Intake(settings) as intake, FlightServer(intake) as server:
        with flight.FlightClient(server.url) as client:
            assert isinstance(refused(lambda: sent(client, "events", BATCH)), NotFound)
        intake.create_topic(EVENTS, TopicSpec(schema=BATCH.schema))
        with flight.FlightClient(server.url) as client:
            assert sent(client, "events", BATCH)["end"] == 2


def test_a_port_that_is_taken_is_one_clear_error(server: FlightServer, intake: Intake) -> None:
    port = int(server.url.rpartition(":")[2])
    ingest = msgspec.structs.replace(intake.settings.ingest, flight_port=port)
    settings = msgspec.structs.replace(intake.settings, ingest=ingest)
    with pytest.raises(Unavailable, match="cannot listen on") as raised:
        FlightServer(intake, settings).start()
    assert "ingest.flight_port" in str(raised.value.hint)
