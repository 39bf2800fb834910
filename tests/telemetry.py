"""Requests of OTLP for tests: small ones, and ones with a value in every field."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from calve.ingest.otlp.messages import LEVELS, REQUESTS

NOW: Final = 1_800_000_000_000_000_000
CHOICES: Final = 7  # of what the protocol offers several kinds of, the most
# They name texts by their place in a dictionary that only profiles carry.
ONLY_IN_PROFILES: Final = frozenset({"string_value_strindex", "key_strindex"})


def a_request(signal: str, records: int = 1) -> tuple[Any, Any]:
    """A request, and the repeated field of its records."""
    outer, middle, inner = LEVELS[signal]
    request = REQUESTS[signal]()
    found = getattr(getattr(getattr(request, outer).add(), middle).add(), inner)
    for number in range(records):
        record = found.add()
        if signal == "traces":
            record.trace_id, record.span_id = b"t" * 14 + number.to_bytes(2, "big"), b"s" * 8
            record.start_time_unix_nano = NOW
        elif signal == "logs":
            record.time_unix_nano = NOW
        else:
            record.gauge.data_points.add(time_unix_nano=NOW, as_int=number)
    return request, found


class Filler:
    """Sets every field of a message to a value that nothing else has."""

    def __init__(self, choice: int) -> None:
        self._choice = choice
        self._numbers = count(1_000)
        self.expected: list[tuple[str, Any]] = []

    def fill(self, message: Any, path: str = "", depth: int = 0) -> None:
        for field in self._chosen(message.DESCRIPTOR):
            here = f"{path}.{field.name}"
            if field.message_type is not None:
                self._fill_message(message, field, here, depth)
            elif field.is_repeated:
                getattr(message, field.name).extend([self._value(field, here) for _ in range(2)])
            else:
                setattr(message, field.name, self._value(field, here))

    def _fill_message(self, message: Any, field: FieldDescriptor, path: str, depth: int) -> None:
        inside = depth + (field.message_type.name == "AnyValue")
        if inside > 2:
            return
        value = getattr(message, field.name)
        for _ in range(2) if field.is_repeated else range(1):
            self.fill(value.add() if field.is_repeated else value, path, inside)

    def _chosen(self, descriptor: Any) -> Iterator[FieldDescriptor]:
        for field in descriptor.fields:
            choice = field.containing_oneof
            if field.name in ONLY_IN_PROFILES:
                continue
            if choice is None or len(choice.fields) == 1:
                yield field
                continue
            fields = [each for each in choice.fields if each.name not in ONLY_IN_PROFILES]
            if fields[self._choice % len(fields)] is field:
                yield field

    def _value(self, field: FieldDescriptor, path: str) -> Any:
        number = next(self._numbers)
        value: Any = number
        if field.enum_type is not None:
            last = field.enum_type.values[-1]
            is_number = field.name == "severity_number"  # which people compare
            self.expected.append((path, last.number if is_number else last.name))
            return last.number
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_STRING:
                value = f"text {number}"
                if field.type == FieldDescriptor.TYPE_BYTES:
                    size = 16 if field.name == "trace_id" else 8
                    value = number.to_bytes(size, "big")
            case FieldDescriptor.CPPTYPE_BOOL:
                value = True
            case FieldDescriptor.CPPTYPE_DOUBLE:
                value = number + 0.5
        if field.name.endswith("_unix_nano"):
            value = NOW + number
        self.expected.append((path, value))
        return value
