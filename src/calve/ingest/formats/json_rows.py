"""JSON objects as batches: columns with the topic's types, new ones with those they suggest.

Arrow's own reader of JSON would be faster, but ends the whole process at a row that is `null`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from decimal import Decimal
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import msgspec
import pyarrow as pa

from calve.errors import InvalidRequest, TooLarge
from calve.ingest.formats.blocks import array_blocks, line_blocks
from calve.ingest.formats.types import KnownTypes
from calve.tables.inputs.origin import Origin
from calve.tables.inputs.parts import Columns
from calve.tables.inputs.rows import check_row
from calve.topics.limits import FIELDS_MAX, too_many_fields

NDJSON: Final = "application/x-ndjson"
JSON: Final = "application/json"
_HINT: Final = "write one JSON object on each line"
_NO_VALUE_HINT: Final = "send at least one column that has a value"
_CELLS_MAX: Final = 8_000_000  # of a block; with values in all of them there is room for 700,000
_PLAIN: Final = msgspec.json.Decoder()
_EXACT: Final = msgspec.json.Decoder(float_hook=Decimal)  # every digit of a decimal counts


class JsonReader:
    """Reads blocks of objects, one on each line. What a block teaches, the next ones know."""

    def __init__(
        self, types: KnownTypes, content_type: str, cut: Callable[[bytes], Iterator[bytes]]
    ) -> None:
        self.content_type = content_type
        self.blocks = cut
        self._types = types
        self._fitter = types.row_fitter()

    @classmethod
    def of_lines(cls, types: KnownTypes) -> JsonReader:
        return cls(types, NDJSON, line_blocks)

    @classmethod
    def of_array(cls, types: KnownTypes) -> JsonReader:
        return cls(types, JSON, array_blocks)

    def read(self, block: bytes, before: int) -> pa.RecordBatch | None:
        """The rows of a block, None if it has none; `before` counts those before it."""
        rows = _decoded(block, _PLAIN, before)
        if not rows:
            return None
        values = self._columns(rows)
        if self._types.has_decimals:
            exact = _decoded(block, _EXACT, before)
            known = self._types.schema.names
            values |= {name: v for name, v in self._columns(exact).items() if name in known}
        fitted = self._fitter.fit(Columns(values, len(rows)), before=before)
        given = [name for name in fitted.schema.names if name in values]
        if not given:
            raise Origin(before=before).error("there is no value", place=1, hint=_NO_VALUE_HINT)
        return fitted.select(given)

    def _columns(self, rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = {}
        for name, values in _by_name(rows):
            now = self._types.name_now(name)
            if now not in columns:
                columns[now] = values
                continue
            both = zip(columns[now], values, strict=True)
            columns[now] = [value if old is None else old for old, value in both]
        return columns

    @staticmethod
    def records(block: bytes) -> list[bytes]:
        return [line for line in block.split(b"\n") if line.strip()]

    @staticmethod
    def joined(records: list[bytes]) -> bytes:
        return b"\n".join(records)

    @staticmethod
    def original(record: bytes) -> bytes:
        return record


def _by_name(rows: list[dict[str, Any]]) -> Iterable[tuple[str, list[Any]]]:
    """The values of each column, None where a row has none."""
    names = list(rows[0])
    if len(names) > 1 and set(map(len, rows)) == {len(names)}:
        # Nearly always all rows have the same columns; this is three times as fast.
        with suppress(KeyError):
            tuples = list(map(itemgetter(*names), rows))
            return zip(names, map(list, zip(*tuples, strict=True)), strict=True)
    every = dict.fromkeys(chain.from_iterable(rows))
    if len(every) > FIELDS_MAX:
        raise too_many_fields()
    if len(every) * len(rows) > _CELLS_MAX:
        raise TooLarge(
            f"{len(rows):,} rows with {len(every):,} columns among them have hardly any values",
            hint="send fewer rows at once; names that are values belong into a map",
        )
    return ((name, [row.get(name) for row in rows]) for name in every)


def _decoded(block: bytes, decoder: msgspec.json.Decoder[Any], before: int) -> list[dict[str, Any]]:
    try:
        rows: list[Any] = decoder.decode_lines(block)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        raise _first_broken(block, decoder, Origin(before=before)) from None
    if set(map(type, rows)) - {dict}:
        origin = Origin(before=before)
        for place, row in enumerate(rows, 1):
            check_row(row, origin, place)
    return rows


def _first_broken(
    block: bytes, decoder: msgspec.json.Decoder[Any], origin: Origin
) -> InvalidRequest:
    for place, line in enumerate(JsonReader.records(block), 1):
        try:
            decoder.decode(line)
        except UnicodeDecodeError:
            return origin.error("the text is not UTF-8", place=place, hint="send UTF-8")
        except RecursionError:
            return origin.error(
                "objects lie too deeply inside each other",
                place=place,
                hint="send what is nested so deeply as text",
            )
        except (msgspec.DecodeError, ValueError) as error:
            return origin.error(f"not JSON: {error}", place=place, hint=_HINT)
    return origin.error("not JSON", hint=_HINT)
