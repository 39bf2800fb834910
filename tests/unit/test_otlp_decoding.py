"""Requests of OTLP as rows: every field with its value, and only faulty records set aside."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from calve.errors import InvalidRequest
from calve.ingest.dead_letters.again import ReadAgain
from calve.ingest.formats import KnownTypes
from calve.ingest.otlp import origins
from calve.ingest.otlp.attributes import KEY_BY_INDEX
from calve.ingest.otlp.decoding import Decoded, decode, read_message
from calve.ingest.otlp.messages import LEVELS, REQUESTS
from calve.ingest.otlp.tables import TABLES
from calve.ingest.otlp.values import TEXT_BY_INDEX
from calve.ingest.otlp.weight import weight, weight_to_parse
from tests.telemetry import CHOICES, NOW, Filler, a_request
from tests.telemetry_rows import record_of, records_by_table

ROOT = Path(__file__).parents[2]
SIGNALS = tuple(REQUESTS)
AnyValue: Any = common_pb2.AnyValue
KeyValue: Any = common_pb2.KeyValue


# Where a request holds lists of what may be empty.
LISTS = [
    ("traces", "attributes"),
    ("traces", "events"),
    ("traces", "links"),
    ("traces", "events", "attributes"),
    ("traces", "links", "attributes"),
    ("logs", "attributes"),
    ("metrics", "metadata"),
    ("metrics", "gauge", "data_points"),
    ("metrics", "sum", "data_points", "exemplars"),
    ("metrics", "sum", "data_points", "exemplars", "filtered_attributes"),
    ("metrics", "histogram", "data_points", "bucket_counts"),
    ("metrics", "exponential_histogram", "data_points", "negative", "bucket_counts"),
    ("metrics", "summary", "data_points", "quantile_values"),
]


def decoded(signal: str, body: bytes) -> list[Decoded]:
    return decode(signal, read_message(signal, body))


def rows_of(parts: list[Decoded]) -> list[dict[str, Any]]:
    return [row for part in parts if part.rows is not None for row in part.rows.to_pylist()]


def rows_in(batch: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        for each in value:
            yield from leaves(each)
        return
    yield value
    if isinstance(value, str) and value[:1] in {"[", "{"}:
        yield from leaves(json.loads(value))


def is_shown(value: Any, shown: set[Any]) -> bool:
    if isinstance(value, bytes):
        return value.hex() in shown or base64.b64encode(value).decode() in shown
    if isinstance(value, bool):
        return value in shown or "true" in shown
    if isinstance(value, str):
        return value in shown or any(value.endswith(f"_{each}") for each in shown)
    return value in shown or str(value) in shown


@pytest.mark.parametrize("choice", range(CHOICES))
@pytest.mark.parametrize("signal", SIGNALS)
def test_every_field_of_a_request_is_in_its_table(signal: str, choice: int) -> None:
    request = REQUESTS[signal]()
    filler = Filler(choice)
    filler.fill(request)
    parts = decoded(signal, request.SerializeToString())
    assert not [each.reason for part in parts for each in part.rejected]
    shown = set(leaves(rows_of(parts)))
    missing = [(path, value) for path, value in filler.expected if not is_shown(value, shown)]
    assert not missing
    assert len(filler.expected) > 20


@pytest.mark.parametrize("choice", range(CHOICES))
@pytest.mark.parametrize("signal", SIGNALS)
def test_a_request_can_be_read_back_from_its_tables(signal: str, choice: int) -> None:
    request = REQUESTS[signal]()
    Filler(choice).fill(request)
    sent = records_by_table(signal, request)
    found = {
        part.table.name: [
            record_of(part.table.name, type(sent[part.table.name][0].record), row)
            for row in rows_of([part])
        ]
        for part in decoded(signal, request.SerializeToString())
    }
    assert found == sent


def test_the_generated_requests_reach_every_kind_of_metric_and_value() -> None:
    kinds = list(Metric.DESCRIPTOR.oneofs_by_name["data"].fields)
    values = list(AnyValue.DESCRIPTOR.oneofs_by_name["value"].fields)
    assert len(kinds) <= CHOICES
    assert len(values) - 1 <= CHOICES
    assert {f"metrics_{each.name}" for each in kinds} | {"traces", "logs"} == set(TABLES)


def test_a_value_of_every_kind_keeps_its_kind() -> None:
    request, records = a_request("logs")
    values: dict[str, Any] = {
        "string": AnyValue(string_value="1"),
        "no text": AnyValue(string_value=""),
        "int": AnyValue(int_value=-(2**63)),
        "double": AnyValue(double_value=1.0),
        "small": AnyValue(double_value=5e-324),
        "not a number": AnyValue(double_value=float("nan")),
        "bool": AnyValue(bool_value=False),
        "bytes": AnyValue(bytes_value=b"\xff\x00"),
        "empty": AnyValue(),
        "list": AnyValue(
            array_value={"values": [AnyValue(int_value=1), AnyValue(double_value=1.0), AnyValue()]}
        ),
        "no list": AnyValue(array_value={}),
        "map": AnyValue(kvlist_value={"values": [KeyValue(key="ä", value={"bool_value": True})]}),
        "bytes in a list": AnyValue(array_value={"values": [AnyValue(bytes_value=b"x")]}),
        "twice in a map": AnyValue(
            kvlist_value={"values": [KeyValue(key="k"), KeyValue(key="k", value={"int_value": 2})]}
        ),
    }
    for key, value in values.items():
        records[0].attributes.add(key=key, value=value)
    records[0].attributes.add(key="no value")
    (row,) = rows_of(decoded("logs", request.SerializeToString()))
    assert dict(row["attributes"]) == {
        "string": "1",
        "no text": "",
        "int": "-9223372036854775808",
        "double": "1",
        "small": "5e-324",
        "not a number": "nan",
        "bool": "false",
        "bytes": "/wA=",
        "empty": None,
        "list": "[1,1.0,null]",
        "no list": "[]",
        "map": '{"ä":true}',
        "bytes in a list": '{"values": [{"bytesValue": "eA=="}]}',
        "twice in a map": '{"values": [{"key": "k"}, {"key": "k", "value": {"intValue": "2"}}]}',
        "no value": None,
    }
    assert dict(row["attribute_types"]) == {
        "int": "int",
        "double": "double",
        "small": "double",
        "not a number": "double",
        "bool": "bool",
        "bytes": "bytes",
        "empty": "empty",
        "list": "list",
        "no list": "list",
        "map": "map",
        "bytes in a list": "otlp_json",
        "twice in a map": "otlp_json",
        "no value": "empty",
    }


def test_a_key_that_comes_twice_has_all_its_values() -> None:
    request, records = a_request("logs", records=2)
    records[0].attributes.add(key="a", value={"int_value": 1})
    records[0].attributes.add(key="b", value={"string_value": "x"})
    records[0].attributes.add(key="a", value={"string_value": "1"})
    records[1].attributes.add(key="a", value={"double_value": 2})
    first, second = rows_of(decoded("logs", request.SerializeToString()))
    assert dict(first["attributes"]) == {"a": '[{"intValue": "1"},{"stringValue": "1"}]', "b": "x"}
    assert first["attribute_types"] == [("a", "repeated")]
    assert second["attributes"] == [("a", "2")]
    assert second["attribute_types"] == [("a", "double")]


def test_a_key_that_comes_twice_is_found_however_regular_the_others_are() -> None:
    request, records = a_request("logs", records=3)
    for record, keys in zip(records, ("aba", "b", "ab"), strict=True):
        for key in keys:
            record.attributes.add(key=key, value={"string_value": "x"})
    kinds = [
        row["attribute_types"] for row in rows_of(decoded("logs", request.SerializeToString()))
    ]
    assert kinds == [[("a", "repeated")], [], []]
    request, records = a_request("logs", records=2)
    for record in records:
        for key in "aa":
            record.attributes.add(key=key, value={"string_value": "x"})
    kinds = [
        row["attribute_types"] for row in rows_of(decoded("logs", request.SerializeToString()))
    ]
    assert kinds == [[("a", "repeated")]] * 2


def test_keys_that_are_alike_in_length_alone_are_told_apart() -> None:
    request, records = a_request("logs", records=3)
    for record, keys in zip(records, (("ab", "c"), ("ab", "c"), ("a", "bc")), strict=True):
        for key in keys:
            record.attributes.add(key=key, value={"string_value": "x"})
    rows = rows_of(decoded("logs", request.SerializeToString()))
    assert [dict(row["attributes"]).keys() for row in rows] == [
        {"ab": 1, "c": 1}.keys(),
        {"ab": 1, "c": 1}.keys(),
        {"a": 1, "bc": 1}.keys(),
    ]


def test_keys_without_a_letter_are_kept() -> None:
    request, records = a_request("logs", records=3)
    for record in records:
        record.attributes.add(key="", value={"string_value": "x"})
    rows = rows_of(decoded("logs", request.SerializeToString()))
    assert [row["attributes"] for row in rows] == [[("", "x")]] * 3


@pytest.mark.parametrize("signal", SIGNALS)
def test_each_request_has_its_own_resource_and_scope(signal: str) -> None:
    """Also where others came from the same, or from one that differs in a little."""
    outer, middle, _ = LEVELS[signal]
    for number in (1, 2, 1, 700, 3, 1):
        for service, scope, url in (
            ("shop", "a", ""),
            ("shop", "b", ""),
            ("pay", "b", "https://u"),
        ):
            request, _ = a_request(signal, records=min(number, 200))
            resource = getattr(request, outer)[0]
            for _ in range(number // 200):
                getattr(resource, middle)[0].MergeFrom(getattr(resource, middle)[0])
            resource.resource.attributes.add(key="service.name", value={"string_value": service})
            resource.schema_url = url
            getattr(resource, middle)[0].scope.name = scope
            rows = rows_of(decoded(signal, request.SerializeToString()))
            found = {(r["service_name"], r["scope_name"], r["resource_schema_url"]) for r in rows}
            assert found == {(service, scope, url or None)}
            assert all(row["resource_attributes"] == [("service.name", service)] for row in rows)


def test_few_origins_are_kept_and_none_that_is_faulty_or_large() -> None:
    for number in range(200):
        request, _ = a_request("logs")
        request.resource_logs[0].schema_url = f"https://example.com/{number}"
        decoded("logs", request.SerializeToString())
    assert 0 < len(origins._kept) <= 32
    kept = len(origins._kept)
    request.resource_logs[0].resource.attributes.add(key="k", value={"string_value": "x" * 4_000})
    decoded("logs", request.SerializeToString())
    request.resource_logs[0].resource.attributes[0].value.string_value = "mark"
    body = request.SerializeToString().replace(b"mark", b"ma\xffk")
    for _ in range(2):
        (part,) = decoded("logs", body)
        assert [each.reason for each in part.rejected] == ["a text is not UTF-8"]
    assert len(origins._kept) == kept


@pytest.mark.parametrize("signal", SIGNALS)
def test_fields_of_another_type_than_theirs_are_passed_over(signal: str) -> None:
    request, records = a_request(signal)
    before = rows_of(decoded(signal, request.SerializeToString()))
    for field in records[0].DESCRIPTOR.fields:
        number = field.number
        is_numeric = field.cpp_type not in {9, 10}  # neither text nor message
        wrong = b"\x01x" if is_numeric else b"\x2a"
        tag = number << 3 | (2 if is_numeric else 0)
        digits = bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
        records[0].MergeFromString(digits + wrong)
    assert rows_of(decoded(signal, request.SerializeToString())) == before


@pytest.mark.parametrize("kind", ["string_value", "int_value", "kvlist_value"])
def test_a_body_of_any_kind_is_text_and_its_kind(kind: str) -> None:
    request, records = a_request("logs", records=2)
    given: dict[str, Any] = {"string_value": "hello", "int_value": 7, "kvlist_value": {}}
    records[0].body.CopyFrom(AnyValue(**{kind: given[kind]}))
    first, second = rows_of(decoded("logs", request.SerializeToString()))
    expected = {"string_value": ("hello", "string"), "int_value": ("7", "int")}
    assert (first["body"], first["body_type"]) == expected.get(kind, ("{}", "map"))
    assert (second["body"], second["body_type"]) == (None, None)


def test_times_of_zero_are_not_known_and_far_ones_are_kept() -> None:
    request, records = a_request("logs", records=3)
    records[0].time_unix_nano = 0
    records[0].observed_time_unix_nano = NOW + 1_999
    records[1].time_unix_nano = 0
    records[2].time_unix_nano = 2**63 - 1
    first, second, third = rows_of(decoded("logs", request.SerializeToString()))
    assert first["time"] == datetime(2027, 1, 15, 8, 0, 0, 1, UTC)
    assert (first["time_unix_nano"], first["observed_time_unix_nano"]) == (None, NOW + 1_999)
    assert (second["time"], second["observed_time_unix_nano"]) == (None, None)
    assert third["time"].year == 2262
    assert third["time_unix_nano"] == 2**63 - 1


def test_a_service_is_found_without_its_resource() -> None:
    request, _ = a_request("traces")
    request.resource_spans[0].resource.attributes.add(
        key="service.name", value={"string_value": "shop"}
    )
    other = REQUESTS["traces"]()
    other.CopyFrom(request)
    other.resource_spans[0].ClearField("resource")
    request.MergeFrom(other)
    assert [
        row["service_name"] for row in rows_of(decoded("traces", request.SerializeToString()))
    ] == [
        "shop",
        None,
    ]


@pytest.mark.parametrize("signal", SIGNALS)
def test_requests_without_records_hold_nothing(signal: str) -> None:
    outer, middle, _ = LEVELS[signal]
    request = REQUESTS[signal]()
    assert decoded(signal, b"") == []
    getattr(getattr(request, outer).add(), middle).add()
    assert decoded(signal, request.SerializeToString()) == []


@pytest.mark.parametrize("signal", SIGNALS)
def test_what_is_no_request_is_refused(signal: str) -> None:
    request, _ = a_request(signal)
    whole = request.SerializeToString()
    for body in (whole[:-1], b"\xff" * 20, b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01x", b"{}"):
        with pytest.raises(InvalidRequest, match="protobuf"):
            decoded(signal, body)


@pytest.mark.parametrize("signal", SIGNALS)
def test_fields_that_nobody_knows_are_passed_over(signal: str) -> None:
    request, records = a_request(signal)
    before = rows_of(decoded(signal, request.SerializeToString()))
    # A number and a group, which no version of the protocol has.
    records[0].MergeFromString(b"\xf8\x3f\x2a" + b"\xfb\x3f\x08\x01\xfc\x3f")
    assert rows_of(decoded(signal, request.SerializeToString())) == before


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_text_that_is_not_utf8_rejects_its_record_alone(signal: str) -> None:
    request, records = a_request(signal, records=3)
    for number, record in enumerate(records):
        mark = {"string_value": f"mark{number}"}
        owner = record.gauge.data_points[0] if signal == "metrics" else record
        owner.attributes.add(key="k", value=mark)
        owner.attributes.add(key="n", value={"int_value": number})
    body = request.SerializeToString().replace(b"mark1", b"mar\xff1")
    (part,) = decoded(signal, body)
    assert part.rows is not None
    assert [dict(row["attributes"]) for row in part.rows.to_pylist()] == [
        {"k": "mark0", "n": "0"},
        {"k": "mark2", "n": "2"},
    ]
    (rejected,) = part.rejected
    assert rejected.reason == "a text is not UTF-8"
    assert REQUESTS[signal].DESCRIPTOR.full_name in rejected.content_type
    mended = rejected.original.replace(b"mar\xff1", b"mark1")
    (again,) = rows_of(decoded(signal, mended))
    assert again["attributes"] == [("k", "mark1"), ("n", "1")]


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_resource_that_is_not_utf8_rejects_its_records(signal: str) -> None:
    request, _ = a_request(signal, records=2)
    good, _ = a_request(signal)
    outer = LEVELS[signal][0]
    getattr(request, outer)[0].resource.attributes.add(key="bad key")
    request.MergeFrom(good)
    (part,) = decoded(signal, request.SerializeToString().replace(b"bad key", b"bad\xffkey"))
    assert part.rows is not None
    assert part.rows.num_rows == 1
    assert [each.reason for each in part.rejected] == ["key is not UTF-8"] * 2


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("trace_id", b"", "trace_id is not 16 bytes that are not all zero"),
        ("trace_id", b"\x01" * 15, "trace_id is not 16 bytes that are not all zero"),
        ("trace_id", bytes(16), "trace_id is not 16 bytes that are not all zero"),
        ("span_id", bytes(8), "span_id is not 8 bytes that are not all zero"),
        ("parent_span_id", b"\x01" * 7, "parent_span_id has neither 0 nor 8 bytes"),
        ("start_time_unix_nano", 2**63, "start_time_unix_nano is more than 9223372036854775807"),
    ],
)
def test_a_span_that_cannot_be_one_is_rejected(field: str, value: Any, reason: str) -> None:
    request, spans = a_request("traces", records=2)
    setattr(spans[1], field, value)
    (part,) = decoded("traces", request.SerializeToString())
    assert part.rows is not None
    assert part.rows.num_rows == 1
    assert [each.reason for each in part.rejected] == [reason]


def test_ids_of_zeros_are_none_where_they_may_be_missing() -> None:
    request, spans = a_request("traces")
    spans[0].parent_span_id = bytes(8)
    (row,) = rows_of(decoded("traces", request.SerializeToString()))
    assert row["parent_span_id"] is None
    assert row["trace_id"] == (b"t" * 14 + bytes(2)).hex()
    request, logs = a_request("logs", records=3)
    logs[0].trace_id, logs[0].span_id = bytes(range(16)), bytes(range(8))
    logs[1].trace_id, logs[1].span_id = bytes(16), b"short"
    rows = rows_of(decoded("logs", request.SerializeToString()))
    assert [(row["trace_id"], row["span_id"]) for row in rows] == [
        ("000102030405060708090a0b0c0d0e0f", "0001020304050607"),
        (None, None),
        (None, None),
    ]


def test_texts_by_their_place_in_a_dictionary_are_taken_for_missing_and_remarked() -> None:
    request, logs = a_request("logs", records=3)
    logs[0].attributes.add(key_strindex=3, value={"int_value": 7})
    logs[1].body.string_value_strindex = 1
    logs[2].body.array_value.values.add().string_value_strindex = 1
    (part,) = decoded("logs", request.SerializeToString())
    first, second, third = rows_of([part])
    assert not part.rejected
    assert (first["attributes"], first["attribute_types"]) == ([("", "7")], [("", "int")])
    assert (second["body"], second["body_type"]) == (None, None)
    assert (third["body"], third["body_type"]) == ("[null]", "list")
    assert part.remarks == {KEY_BY_INDEX, TEXT_BY_INDEX}


def _in_a_list(value: Any) -> Any:
    return value.array_value.values.add()


def _in_a_map(value: Any) -> Any:
    value.kvlist_value.values.add(key="k")
    return value.kvlist_value.values[-1].value


def _beside_bytes(value: Any) -> Any:
    value.array_value.values.add(bytes_value=b"x")
    return _in_a_map(_in_a_list(value))


@pytest.mark.parametrize(
    ("place", "text", "kind"),
    [
        (_in_a_list, "[null]", "list"),
        (_in_a_map, '{"k":null}', "map"),
        (lambda value: _in_a_list(_in_a_map(value)), '{"k":[null]}', "map"),
        (
            _beside_bytes,
            (
                '{"values": [{"bytesValue": "eA=="}, '
                '{"kvlistValue": {"values": [{"key": "k", "value": {}}]}}]}'
            ),
            "otlp_json",
        ),
    ],
)
def test_texts_by_their_place_are_remarked_inside_of_lists_and_maps(
    place: Any, text: str, kind: str
) -> None:
    request, (log,) = a_request("logs")
    place(log.body).string_value_strindex = 1
    place(log.attributes.add(key="a").value).string_value_strindex = 1
    (part,) = decoded("logs", request.SerializeToString())
    (row,) = rows_of([part])
    assert (row["body"], row["body_type"]) == (text, kind)
    assert (row["attributes"], row["attribute_types"]) == ([("a", text)], [("a", kind)])
    assert part.remarks == {TEXT_BY_INDEX}
    assert not part.rejected


def test_texts_by_their_place_are_missing_also_where_a_key_comes_twice() -> None:
    request, (log,) = a_request("logs")
    for _ in range(2):
        _in_a_list(log.attributes.add(key="a").value).string_value_strindex = 1
    (part,) = decoded("logs", request.SerializeToString())
    (row,) = rows_of([part])
    value = '{"arrayValue": {"values": [{}]}}'
    assert row["attributes"] == [("a", f"[{value},{value}]")]
    assert part.remarks == {TEXT_BY_INDEX}


@pytest.mark.parametrize("signal", SIGNALS)
def test_remarks_about_a_resource_come_with_its_records(signal: str) -> None:
    request, _ = a_request(signal)
    getattr(request, LEVELS[signal][0])[0].resource.attributes.add(key_strindex=3)
    (part,) = decoded(signal, request.SerializeToString())
    assert part.remarks == {KEY_BY_INDEX}


def test_many_attributes_and_long_bodies_are_kept() -> None:
    request, logs = a_request("logs")
    for number in range(10_000):
        logs[0].attributes.add(key=f"key{number}", value={"int_value": number})
    logs[0].body.string_value = "x" * (1 << 20)
    (row,) = rows_of(decoded("logs", request.SerializeToString()))
    assert dict(row["attributes"])["key9999"] == "9999"
    assert len(row["attributes"]) == 10_000
    assert len(row["body"]) == 1 << 20


def test_values_inside_each_other_are_bounded() -> None:
    def nested(depth: int) -> bytes:
        value = AnyValue(string_value="deep").SerializeToString()
        for _ in range(depth):
            value = delimited(5, delimited(1, value))
        record = delimited(5, value)
        return delimited(1, delimited(2, delimited(2, record)))

    (row,) = rows_of(decoded("logs", nested(20)))
    assert row["body"] == "[" * 20 + '"deep"' + "]" * 20
    (part,) = decoded("logs", nested(5_000))
    assert part.rows is None
    assert "cannot be read" in part.rejected[0].reason


def delimited(field: int, content: bytes) -> bytes:
    """A field of protobuf that holds bytes."""
    size, digits = len(content), bytearray()
    while size > 127:
        digits.append(size & 127 | 128)
        size >>= 7
    return bytes([field << 3 | 2, *digits, size]) + content


def test_rejected_records_take_a_bounded_part_of_memory() -> None:
    request, spans = a_request("traces", records=100)
    request.resource_spans[0].resource.attributes.add(
        key="large", value={"string_value": "x" * 200_000}
    )
    for span in spans:
        span.ClearField("span_id")
    body = request.SerializeToString()
    (part,) = decoded("traces", body)
    assert len(part.rejected) == 100
    assert sum(len(each.original) for each in part.rejected) < 8 * len(body)


def test_empty_records_are_counted_for_what_they_become() -> None:
    request, logs = a_request("logs")
    for _ in range(999):
        logs.add()
    body = request.SerializeToString()
    assert len(body) < 3_000
    assert weight("logs", read_message("logs", body), len(body)) > 500_000


@pytest.mark.parametrize("empty", [b"\x12\x00", b"\x12\x80\x00", b"\x92\x80\x00\x80\x80\x00"])
def test_empty_messages_are_counted_before_they_are_parsed(empty: bytes) -> None:
    content = empty * (400_000 // len(empty))
    body = delimited(1, delimited(2, content))
    count = len(read_message("traces", body).resource_spans[0].scope_spans[0].spans)
    assert count == len(content) // len(empty)
    assert weight_to_parse(body) >= 200 * count


def test_what_exporters_send_weighs_little_before_it_is_parsed() -> None:
    request, spans = a_request("traces", records=200)
    for number, span in enumerate(spans):
        span.trace_id, span.span_id = random.Random(number).randbytes(16), b"s" * 8
        span.end_time_unix_nano, span.name = NOW + number, "GET /cart/{id}"
        span.attributes.add(key="http.route", value={"string_value": "/cart/{id}"})
        span.attributes.add(key="http.response.status_code", value={"int_value": 200})
        span.events.add(name="cache.miss", time_unix_nano=NOW)
    large = request.SerializeToString() * 15
    assert 0 < weight_to_parse(large) < 12 * len(large)
    assert weight_to_parse(large[:1_000]) == 0


@pytest.mark.parametrize("path", LISTS, ids=".".join)
def test_many_empty_entries_are_counted_for_what_they_become(path: tuple[str, ...]) -> None:
    signal, *names = path
    request, records = a_request(signal)
    owner: Any = records[0]
    for name in names[:-1]:
        owner = getattr(owner, name)
        owner = owner.add() if hasattr(owner, "add") else owner
    entries = getattr(owner, names[-1])
    if hasattr(entries, "add"):
        for _ in range(40_000):
            entries.add()
    else:
        entries.extend([0] * 40_000)
    message = read_message(signal, request.SerializeToString())
    assert weight(signal, message, 2 << 20) > 128 * 40_000


@pytest.mark.parametrize("signal", SIGNALS)
def test_damaged_requests_are_refused_or_read_and_nothing_else(signal: str) -> None:
    request = REQUESTS[signal]()
    Filler(2).fill(request)
    whole = request.SerializeToString()
    chance = random.Random(12)
    for _ in range(150):
        body = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        try:
            parts = decoded(signal, bytes(body))
        except InvalidRequest:
            continue
        for part in parts:
            if part.rows is not None:
                part.rows.validate(full=True)


def test_a_rejected_record_is_read_again_or_set_aside_again() -> None:
    request, spans = a_request("traces", records=2)
    spans[0].ClearField("span_id")
    (part,) = decoded("traces", request.SerializeToString())
    (rejected,) = part.rejected
    mended = REQUESTS["traces"].FromString(rejected.original)
    mended.resource_spans[0].scope_spans[0].spans[0].span_id = b"mended!!"
    again = ReadAgain(KnownTypes(), 1 << 20)
    again.add([rejected.original, mended.SerializeToString(), b"", b"\xff"], rejected.content_type)
    assert [row["span_id"] for batch in again.parts[:1] for row in rows_in(batch)] == [
        b"mended!!".hex()
    ]
    assert again.row_count == 1
    assert [each.reason for each in again.rejected][:2] == [rejected.reason, "it holds no record"]
    assert len(again.rejected) == 3


def test_every_column_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "telemetry.md").read_text()
    names = {name for table in TABLES.values() for name in table.schema.names}
    assert not [name for name in sorted(names) if f"`{name}`" not in page]
    assert not [name for name in TABLES if f"## `{name}`" not in page]
