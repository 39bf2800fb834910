"""Attributes as maps: key to text, and beside it, for those that are no strings, key to kind.

OTLP forbids a key that comes twice, and senders do it all the same: such a key has all its values,
as a JSON array of OTLP's own JSON, and the kind `repeated`. So a map never holds a key twice.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.message import DecodeError

from calve.ingest.otlp.columns import Level, Lists, offsets_of
from calve.ingest.otlp.tables import TEXT
from calve.ingest.otlp.values import STRING, any_value, kind_names, otlp_json, value_texts

REPEATED: Final = "repeated"
_NO_TEXTS: Final = pa.nulls(0, TEXT)
KEY_BY_INDEX: Final = (
    "a key is named by its place in a dictionary, which only profiles have: it is stored as empty"
)


class AttributeMaps(NamedTuple):
    texts: pa.MapArray
    kinds: pa.MapArray  # of those that are no strings


def attribute_maps(owner: Level, name: str) -> AttributeMaps:
    """The maps of a repeated field of keys and values, one for each owner."""
    lists = owner.many(name)
    if not len(lists.inner):
        return AttributeMaps(_none(len(owner)), _none(len(owner)))
    entries = lists.inner
    if entries.field("key_strindex").to_numpy().any():
        entries.faults.remarks.add(KEY_BY_INDEX)
    keys = entries.any_text("key")
    texts, kinds = value_texts(entries.one("value"))
    if _has_repeated(lists, keys):
        return _merged(lists, keys, texts, kind_names(kinds))
    is_typed = kinds != STRING
    if not is_typed.any():
        return AttributeMaps(pa.MapArray.from_arrays(lists.starts, keys, texts), _none(len(owner)))
    before = np.concatenate(([0], np.cumsum(is_typed))).astype(np.int32)
    typed = np.flatnonzero(is_typed)
    return AttributeMaps(
        pa.MapArray.from_arrays(lists.starts, keys, texts),
        pa.MapArray.from_arrays(
            pa.array(before[lists.offsets]), keys.take(pa.array(typed)), kind_names(kinds[typed])
        ),
    )


def _none(count: int) -> pa.MapArray:
    """So many empty maps."""
    starts = pa.array(np.zeros(count + 1, np.int32))
    return pa.MapArray.from_arrays(starts, _NO_TEXTS, _NO_TEXTS)


def _has_repeated(lists: Lists, keys: pa.StringArray) -> bool:
    if len(keys) < 2 or _is_alike(lists, keys):
        return False
    encoded = keys.dictionary_encode()
    pairs = np.sort(lists.owners * len(encoded.dictionary) + encoded.indices.to_numpy())
    return bool((pairs[1:] == pairs[:-1]).any())


def _is_alike(lists: Lists, keys: pa.StringArray) -> bool:
    """Whether all owners have the same keys in the same order, each once: most senders do so."""
    width = int(lists.offsets[1])
    offsets = offsets_of(keys)
    if width == 0 or len(keys) % width:
        return False
    if offsets[width] == 0 or offsets[-1] % offsets[width]:
        return False
    content = np.frombuffer(keys.buffers()[2], np.uint8)[: offsets[-1]]
    first = keys.slice(0, width).to_pylist()
    return (
        len(set(first)) == width
        and _repeats(lists.offsets[1:] - lists.offsets[:-1], 1)
        and _repeats(offsets[1:] - offsets[:-1], width)
        and _repeats(content, int(offsets[width]))
    )


def _repeats(values: npt.NDArray[Any], width: int) -> bool:
    """Whether they are the first so many, again and again."""
    return bool((values.reshape(-1, width) == values[:width]).all())


def _merged(
    lists: Lists, keys: pa.StringArray, texts: pa.StringArray, kinds: pa.StringArray
) -> AttributeMaps:
    """The same one by one, for senders that repeat keys."""
    names, values, types = keys.to_pylist(), texts.to_pylist(), kinds.to_pylist()
    merged: list[list[tuple[str, str | None]]] = []
    merged_kinds: list[list[tuple[str, str]]] = []
    for start, end in zip(lists.offsets[:-1], lists.offsets[1:], strict=True):
        places: dict[str, list[int]] = {}
        for place in range(start, end):
            places.setdefault(names[place], []).append(place)
        row = {
            name: (values[at[0]], types[at[0]])
            if len(at) == 1
            else (_all_values(lists.inner, at), REPEATED)
            for name, at in places.items()
        }
        merged.append([(name, text) for name, (text, _) in row.items()])
        merged_kinds.append([(name, kind) for name, (_, kind) in row.items() if kind != "string"])
    kind = pa.map_(TEXT, TEXT)
    return AttributeMaps(pa.array(merged, kind), pa.array(merged_kinds, kind))


def _all_values(entries: Level, places: list[int]) -> str:
    """The values of one key; empty where one cannot be read, for which its record is rejected."""
    values = entries.field("value")
    return "[" + ",".join(_json(values[place].as_py() or {}) for place in places) + "]"


def _json(fields: dict[str, Any]) -> str:
    try:
        return otlp_json(any_value(fields))
    except (DecodeError, UnicodeDecodeError):
        return "{}"
