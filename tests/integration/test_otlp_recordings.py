"""Requests recorded from the exporters of other languages, sent again to the real doors."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import ParseDict

from calve.ingest.otlp.messages import REQUESTS
from calve.ingest.otlp.tables import TABLES
from tests.conftest import MakeSettings
from tests.otlp_door import JSON, PROTOBUF, Door, opened_door
from tests.telemetry_rows import Record, record_of, records_by_table

GOLDEN = Path(__file__).parents[1] / "golden" / "otlp"
RECORDINGS = sorted(path.parent.name for path in GOLDEN.glob("*/requests.json"))
COMPRESSIONS = {"none": grpc.Compression.NoCompression, "gzip": grpc.Compression.Gzip}

NEVER_SET = {
    "common.v1.AnyValue.string_value_strindex",
    "common.v1.KeyValue.key_strindex",
    "common.v1.InstrumentationScope.dropped_attributes_count",
    "resource.v1.Resource.dropped_attributes_count",
    "resource.v1.Resource.entity_refs",
    "metrics.v1.Metric.metadata",
    "metrics.v1.ExponentialHistogramDataPoint.attributes",
    "metrics.v1.ExponentialHistogramDataPoint.flags",
    "metrics.v1.ExponentialHistogramDataPoint.zero_threshold",
    "metrics.v1.HistogramDataPoint.flags",
    "metrics.v1.NumberDataPoint.flags",
    "metrics.v1.SummaryDataPoint.flags",
}


class Recorded:
    """A request as a sender made it."""

    def __init__(self, directory: Path, about: dict[str, str]) -> None:
        self.about = about
        self.signal = about["signal"]
        self.body = (directory / about["file"]).read_bytes()

    def send(self, door: Door) -> bytes:
        """Through the door that it was sent to; the answer."""
        compression = self.about["compression"]
        if self.about["transport"] == "grpc":
            return door.call(self.body, signal=self.signal, compression=COMPRESSIONS[compression])
        encoding = {} if compression == "none" else {"Content_Encoding": compression}
        kind = self.about["content_type"]
        told = door.post(self.body, kind, f"/v1/{self.signal}", **encoding)
        assert (told.status_code, told.headers["content-type"]) == (200, kind)
        return told.content.replace(b"{}", b"")

    def message(self) -> Any:
        """What it holds, as protobuf's own library reads it."""
        is_packed = self.about["transport"] == "http" and self.about["compression"] == "gzip"
        content = gzip.decompress(self.body) if is_packed else self.body
        kind = REQUESTS[self.signal]
        if "json" not in self.about.get("content_type", ""):
            return kind.FromString(content)
        return ParseDict(
            json.loads(content, object_hook=_with_ids), kind(), ignore_unknown_fields=True
        )


def _with_ids(fields: dict[str, Any]) -> dict[str, Any]:
    """Ids as protobuf's JSON would have them; in OTLP's they are hexadecimal digits."""
    return {
        name: base64.b64encode(bytes.fromhex(value)).decode() if name.endswith("Id") else value
        for name, value in fields.items()
    }


def recorded(name: str) -> list[Recorded]:
    directory = GOLDEN / name
    return [
        Recorded(directory, each) for each in json.loads((directory / "requests.json").read_text())
    ]


@pytest.fixture
def door(make_settings: MakeSettings) -> Iterator[Door]:
    with opened_door(make_settings) as door:
        yield door


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_field_that_an_exporter_sent_is_in_its_table(name: str, door: Door) -> None:
    expected: dict[str, list[Record]] = {}
    for request in recorded(name):
        assert request.send(door) == b"", "something was rejected"
        for table, records in records_by_table(request.signal, request.message()).items():
            expected.setdefault(table, []).extend(records)
    assert {"traces", "logs", "metrics_gauge", "metrics_sum"} <= set(expected)
    for table, records in expected.items():
        assert not door.rejected(table)
        for sent, row in zip(records, door.rows(table), strict=True):
            assert record_of(table, type(sent.record), row) == sent


def test_the_recordings_hold_every_table_and_every_way_in() -> None:
    ways, tables = set(), set()
    for request in every_recorded():
        about = request.about
        ways.add((about["transport"], about.get("content_type"), about["compression"]))
        tables |= set(records_by_table(request.signal, request.message()))
    assert tables == set(TABLES)
    over_http = {("http", kind, packed) for kind in (PROTOBUF, JSON) for packed in COMPRESSIONS}
    assert ways == over_http | {("grpc", None, packed) for packed in COMPRESSIONS}


def test_the_recordings_set_all_fields_but_those_that_no_sdk_sets() -> None:
    known, found = set(), set()
    for request in every_recorded():
        message = request.message()
        known |= set(fields_of(message.DESCRIPTOR))
        found |= set(fields_in(message))
    unset = {name.removeprefix("opentelemetry.proto.") for name in known - found}
    assert {name for name in unset if not name.startswith("common.v1.EntityRef.")} == NEVER_SET


def every_recorded() -> Iterator[Recorded]:
    for name in RECORDINGS:
        yield from recorded(name)


def fields_of(kind: Any, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """The names of all fields of a message and of those in it."""
    for field in kind.fields:
        yield field.full_name
        inner = field.message_type
        if inner is not None and inner.full_name not in seen:
            yield from fields_of(inner, seen | {inner.full_name})


def fields_in(message: Any) -> Iterator[str]:
    for field, value in message.ListFields():
        yield field.full_name
        if field.message_type is not None:
            for each in value if field.is_repeated else [value]:
                yield from fields_in(each)
