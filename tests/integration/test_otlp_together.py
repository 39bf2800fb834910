"""Telemetry of many senders at once, stored together: each row once, and each sender told its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from calve.errors import Unavailable
from calve.ingest import Intake
from calve.ingest.otlp import telemetry
from calve.model import TableName
from calve.topics import TopicSpec
from tests.conftest import MakeSettings
from tests.otlp_door import Door, opened_door, spans

SENDERS = 12


@pytest.fixture
def door(make_settings: MakeSettings) -> Iterator[Door]:
    with opened_door(make_settings) as door:
        door.call(spans().SerializeToString())  # the topic is there
        yield door


@contextmanager
def all_at_once(count: int, kinds: int = 1) -> Iterator[Callable[..., Future[Any]]]:
    """Submit calls, none of which is decoded before all `count` of them have come."""
    with ThreadPoolExecutor(count) as pool, telemetry._turns:
        yield pool.submit
        wait_until(lambda: waiting() == count - kinds)


def waiting() -> int:
    return sum(map(len, telemetry._gathering._waiting.values()))


def wait_until(is_so: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if is_so():
            return
        threading.Event().wait(0.01)
    raise AssertionError


def named(name: str, count: int = 3, *, is_bad: bool = False) -> bytes:
    request: Any = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for number in range(count):
        is_last = number == count - 1
        span_id = b"" if is_bad and is_last else (number + 1).to_bytes(8, "big")
        scope.spans.add(trace_id=b"t" * 16, span_id=span_id, name=f"{name} {number}")
    content: bytes = request.SerializeToString()
    return content


def appends(door: Door) -> int:
    return len(list(door.intake.read(TableName.parse("traces"), 0)))


def names(door: Door) -> list[str]:
    return sorted(row["name"] for row in door.rows("traces") if " " in row["name"])


def test_senders_that_come_at_once_share_an_append_and_have_each_row_once(door: Door) -> None:
    before = appends(door)
    with all_at_once(SENDERS) as submit:
        calls = [submit(door.call, named(f"s{n}")) for n in range(SENDERS)]
    for each in calls:
        assert ExportTraceServiceResponse.FromString(each.result(20)) == (
            ExportTraceServiceResponse()
        )
    assert names(door) == sorted(f"s{n} {i}" for n in range(SENDERS) for i in range(3))
    assert appends(door) - before == 2  # the first came alone


def test_only_the_sender_of_a_bad_record_is_told_of_it(door: Door) -> None:
    with all_at_once(SENDERS) as submit:
        calls = [submit(door.call, named(f"s{n}", is_bad=n == 5)) for n in range(SENDERS)]
    answers = [ExportTraceServiceResponse.FromString(each.result(20)) for each in calls]
    assert [each.partial_success.rejected_spans for each in answers] == [
        int(n == 5) for n in range(SENDERS)
    ]
    assert "span_id" in answers[5].partial_success.error_message
    good = [f"s{n} {i}" for n in range(SENDERS) for i in range(3) if (n, i) != (5, 2)]
    assert names(door) == sorted(good)
    assert len(door.rejected("traces")) == 1


def test_a_body_that_is_no_request_refuses_nobody_elses(door: Door) -> None:
    with all_at_once(3) as submit:
        calls = [submit(door.call, named(f"s{n}")) for n in range(3)]
        with pytest.raises(grpc.RpcError) as refused:
            door.call(b"\xff\xff")
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    for each in calls:
        each.result(20)
    assert len(names(door)) == 9


def test_doors_and_datasets_are_kept_apart(door: Door) -> None:
    with all_at_once(5, kinds=2) as submit:
        calls = [
            submit(door.call, named("grpc")),
            submit(door.post, named("http")),
            submit(door.call, named("grpc2")),
        ]
        calls += [
            submit(door.call, named(name), (("x-calve-dataset", "other"),)) for name in ("x", "y")
        ]
    for each in calls:
        each.result(20)
    expected = {f"{name} {number}" for name in ("grpc", "http", "grpc2") for number in range(3)}
    assert set(names(door)) == expected
    assert {row["name"][0] for row in door.rows("default.other.traces")} == {"x", "y"}


def test_all_are_told_when_what_they_share_could_not_be_stored(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_rows = Intake.submit
    seen: list[int] = []

    def failing(self: Intake, name: TableName, rows: Any, **options: Any) -> Any:
        seen.append(rows.num_rows)
        if len(seen) == 2:
            raise Unavailable("the disk is away")
        return submit_rows(self, name, rows, **options)

    monkeypatch.setattr(Intake, "submit", failing)
    with all_at_once(4) as submit:
        calls = [submit(door.call, named(f"s{n}")) for n in range(4)]
    errors = [each.exception(20) for each in calls]
    assert seen == [3, 9]
    refused = [each for each in errors if each is not None]
    assert [each.code() for each in refused] == [grpc.StatusCode.UNAVAILABLE] * 3  # type: ignore[attr-defined]
    assert len(names(door)) == 3


def test_what_went_wrong_by_surprise_is_not_tried_again_for_the_others(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_rows = Intake.submit
    seen: list[int] = []

    def surprising(self: Intake, name: TableName, rows: Any, **options: Any) -> Any:
        pending = submit_rows(self, name, rows, **options)
        pending.wait()
        seen.append(rows.num_rows)
        if len(seen) == 2:
            raise ZeroDivisionError
        return pending

    monkeypatch.setattr(Intake, "submit", surprising)
    with all_at_once(4) as submit:
        calls = [submit(door.call, named(f"s{n}")) for n in range(4)]
    codes = [each.exception(20) and each.exception().code() for each in calls]  # type: ignore[union-attr]
    assert sorted(map(str, codes)) == ["None", *["StatusCode.UNAVAILABLE"] * 3]
    assert seen == [3, 9]
    assert len(names(door)) == 12  # each once: the senders may send theirs again, Calve does not


def test_a_limit_is_kept_by_senders_that_come_at_once(make_settings: MakeSettings) -> None:
    with opened_door(make_settings, tenants__rows_per_second_max=1) as door:
        with all_at_once(6) as submit:
            calls = [submit(door.call, named(f"s{n}")) for n in range(6)]
        errors = [each.exception(20) for each in calls]
        told = [each.code() for each in errors if each is not None]  # type: ignore[attr-defined]
        assert told == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 5
        assert len(names(door)) == 3


def test_a_topic_that_takes_no_telemetry_refuses_each_sender(make_settings: MakeSettings) -> None:
    with opened_door(make_settings) as door:
        own = TopicSpec(schema={"time": "int"}, on_unknown_column="dead_letter")
        door.intake.create_topic(TableName.parse("traces"), own)
        with all_at_once(4) as submit:
            calls = [submit(door.call, named(f"s{n}")) for n in range(4)]
        errors = [each.exception(20) for each in calls]
        assert {each.code() for each in errors} == {grpc.StatusCode.INVALID_ARGUMENT}  # type: ignore[union-attr]
        assert not door.rows("traces")
