"""Columns of tables out of messages that lie side by side, without looking at them one by one.

Faults are rare: what cannot be stored is looked for only after Arrow or NumPy found that something
is there. Each is noted with the record that it belongs to, so that this one can be rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from calve.ingest.otlp.tables import MOMENT, NANOS, TEXT

Places: TypeAlias = npt.NDArray[np.int64]

_LONG_MAX: Final = np.uint64(2**63 - 1)
_ZEROS: Final = pa.array(np.zeros(8_192, np.int64))  # counts of what was dropped: nothing was
_HEX: Final = np.array([int.from_bytes(b"%02x" % byte, "little") for byte in range(256)], "<u2")


class Faults:
    """Records that cannot be stored, by their place, with the first reason that was found.

    `remarks` are about what is stored, but not as the sender may have meant it.
    """

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        self.remarks: set[str] = set()

    def note(self, places: Sequence[int] | Places, reason: str) -> None:
        for place in places:
            self.reasons.setdefault(int(place), reason)

    def spread(self, owners: Places, into: Faults) -> None:
        """Note the faults of messages for all that lie in them: `owners` says in which."""
        into.remarks |= self.remarks
        if not self.reasons:
            return
        for place, owner in enumerate(owners.tolist()):
            if owner in self.reasons:
                into.reasons.setdefault(place, self.reasons[owner])


class Level:
    """Messages of one kind. `records` says to which record each belongs."""

    def __init__(self, messages: pa.StructArray, records: Places, faults: Faults) -> None:
        self._messages = messages
        self.records = records
        self.faults = faults

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def kind(self) -> pa.StructType:
        return self._messages.type

    def field(self, name: str) -> Any:
        """A field's values. Those of a message that is not there are what an empty one has."""
        return self._messages.field(name)

    def one(self, name: str) -> Level:
        """The messages of a field that is not repeated."""
        return Level(self.field(name), self.records, self.faults)

    def many(self, name: str) -> Lists:
        return Lists(self.field(name), self)

    def below(self, name: str) -> tuple[Level, Places]:
        """The messages of a repeated field as records of their own, and in which each of them
        lies."""
        lists = self.field(name)
        owners = np.repeat(np.arange(len(self)), lengths_of(lists))
        inner = lists.values
        return Level(inner, np.arange(len(inner)), Faults()), owners

    def text(self, name: str) -> pa.StringArray:
        """Text, null where it is empty."""
        return without_empty(self.any_text(name))

    def any_text(self, name: str) -> pa.StringArray:
        return as_text(self.field(name), self, name)

    def hex(self, name: str) -> pa.StringArray:
        """Bytes as lower-case hexadecimal digits, null where there are none."""
        return without_empty(as_hex(self.field(name)))

    def count(self, name: str) -> pa.Int64Array:
        """Unsigned numbers of 32 or 64 bits."""
        return as_long(self.field(name), self, name)

    def nanos(self, name: str) -> pa.Int64Array:
        """Nanoseconds since 1970, null where they are 0."""
        nanos = as_long(self.field(name), self, name)
        values = nanos.to_numpy()
        count = np.count_nonzero(values)
        if count == len(values):
            return nanos
        return pa.array(values, mask=values == 0) if count else pa.nulls(len(values), NANOS)

    def choice(self, name: str, names: Mapping[int, str]) -> pa.StringArray:
        """A number of an enumeration by its name; one that has no name yet as its digits."""
        numbers = self.field(name)
        values = numbers.to_numpy(zero_copy_only=False)
        if len(values) and (values == values[0]).all():
            return pa.repeat(names.get(int(values[0]), str(values[0])), len(values))
        encoded = numbers.dictionary_encode()
        texts = [names.get(each, str(each)) for each in encoded.dictionary.to_pylist()]
        return pa.array(texts, TEXT).take(encoded.indices)


class Lists:
    """The messages of a repeated field, and where those of each owner begin."""

    def __init__(self, lists: Any, owner: Level) -> None:
        self.offsets: npt.NDArray[np.int32] = offsets_of(lists)
        self.starts = lists.offsets  # the same for Arrow
        self.owners = np.repeat(np.arange(len(owner)), self.offsets[1:] - self.offsets[:-1])
        self.inner = Level(lists.values, owner.records[self.owners], owner.faults)

    def without_any(self, kind: pa.ListType) -> pa.ListArray | None:
        """The lists, if all are empty: most columns of lists are, and need no columns inside."""
        if len(self.inner):
            return None
        return pa.ListArray.from_arrays(self.starts, _no_structs(kind.value_type), type=kind)

    def array(self, kind: pa.ListType, columns: Mapping[str, pa.Array]) -> pa.ListArray:
        """The lists again, of structs with these columns."""
        fields = [kind.value_type.field(place) for place in range(kind.value_type.num_fields)]
        arrays = [columns[field.name] for field in fields]
        structs = pa.StructArray.from_arrays(arrays, fields=fields)
        return pa.ListArray.from_arrays(self.starts, structs, type=kind)


@cache
def _no_structs(kind: pa.StructType) -> pa.StructArray:
    return pa.array([], kind)


def moments(nanos: pa.Int64Array) -> pa.TimestampArray:
    """Nanoseconds as timestamps, whose microseconds have begun."""
    if nanos.null_count == len(nanos):
        return pa.nulls(len(nanos), MOMENT)
    known = nanos.fill_null(0) if nanos.null_count else nanos
    values = known.to_numpy() // 1000
    return pa.Array.from_buffers(MOMENT, len(values), [nanos.buffers()[0], pa.py_buffer(values)])


def as_text(values: pa.BinaryArray, level: Level, what: str) -> pa.StringArray:
    """Bytes that should be UTF-8; those that are not are empty, and a fault of their record."""
    content = values.buffers()[2]
    if content is None or not np.frombuffer(content, np.int8).min(initial=0) < 0:
        return pa.Array.from_buffers(TEXT, len(values), values.buffers(), values.null_count)
    try:
        return values.cast(TEXT)
    except pa.ArrowInvalid:
        return _one_by_one(values, level, what)


def _one_by_one(values: pa.BinaryArray, level: Level, what: str) -> pa.StringArray:
    texts: list[str | None] = []
    bad: list[int] = []
    for place, value in enumerate(values.to_pylist()):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError:
            texts.append("")
            bad.append(place)
    level.faults.note(level.records[bad], f"{what} is not UTF-8")
    return pa.array(texts, TEXT)


def as_hex(values: pa.BinaryArray) -> pa.StringArray:
    offsets = offsets_of(values)
    content = values.buffers()[2]
    digits = _HEX[np.frombuffer(content or b"", np.uint8)]
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(2 * offsets), pa.py_buffer(digits))


def as_long(values: Any, level: Level, what: str) -> pa.Int64Array:
    """Unsigned numbers; those beyond a long are a fault of their record."""
    numbers = values.to_numpy(zero_copy_only=False)
    if not np.count_nonzero(numbers) and len(numbers) <= len(_ZEROS):
        return _ZEROS.slice(0, len(numbers))
    if numbers.dtype == np.uint64 and numbers.max() > _LONG_MAX:
        bad = np.flatnonzero(numbers > _LONG_MAX)
        level.faults.note(level.records[bad], f"{what} is more than {_LONG_MAX}")
    return pa.array(numbers.astype(np.int64))


def as_longs(lists: Any, level: Level, what: str, kind: pa.ListType) -> pa.ListArray:
    """Lists of unsigned numbers."""
    inner = Lists(lists, level)
    flat = as_long(lists.values, inner.inner, what)
    return pa.ListArray.from_arrays(pa.array(inner.offsets), flat, type=kind)


def without_empty(texts: pa.StringArray) -> pa.StringArray:
    """Null for every text that is empty."""
    offsets = offsets_of(texts)
    lengths = lengths_of(texts)
    if lengths.all():
        return texts
    if not lengths.any():
        return pa.nulls(len(texts), TEXT)
    is_there = np.packbits(lengths > 0, bitorder="little")
    return pa.StringArray.from_buffers(
        len(texts), pa.py_buffer(offsets), texts.buffers()[2], pa.py_buffer(is_there)
    )


def lengths_of(values: Any) -> npt.NDArray[np.int32]:
    """Of lists, texts or bytes that are no slice."""
    offsets = offsets_of(values)
    return offsets[1:] - offsets[:-1]  # np.diff takes ten times as long


def is_there(values: Any) -> npt.NDArray[np.bool_]:
    """Where there is a value, of an array that is no slice."""
    assert values.offset == 0
    bits = values.buffers()[0]
    if bits is None:
        return np.ones(len(values), np.bool_)
    unpacked = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(values), bitorder="little")
    return unpacked.view(np.bool_)


def offsets_of(values: Any) -> npt.NDArray[np.int32]:
    """Of lists, texts or bytes that are no slice."""
    assert values.offset == 0
    if not len(values):
        return np.zeros(1, np.int32)
    return np.frombuffer(values.buffers()[1], np.int32)[: len(values) + 1]
