"""CSV as batches. The header names the columns; new ones get the types that their cells suggest."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from calve.ingest.formats.blocks import MARK, csv_records, first_record, record_blocks
from calve.ingest.formats.types import KnownTypes
from calve.tables.inputs.csv_file import read_csv, read_header
from calve.tables.inputs.files import InputFile, Stream, reading, refuse_other_encodings
from calve.tables.inputs.guess import guess_csv
from calve.tables.inputs.origin import Origin

CSV: Final = "text/csv"
_LOOK_BYTES: Final = 4096


class CsvReader:
    """Reads blocks of records below one header. What a block teaches, the next ones know."""

    content_type = CSV

    def __init__(self, types: KnownTypes) -> None:
        self._types = types
        self._header = b""
        self._learnt: dict[str, pa.DataType] = {}

    def blocks(self, body: bytes) -> Iterator[bytes]:
        refuse_other_encodings(bytes(body[:_LOOK_BYTES]), Origin())
        body = body.removeprefix(MARK).lstrip(b"\r\n")
        read_header(_file(body, Origin()))
        header = first_record(body)
        _require_utf8(header, Origin(unit="header"))
        self._header = header.rstrip(b"\r\n")
        yield from record_blocks(body[len(header) :])

    def read(self, block: bytes, before: int) -> pa.RecordBatch | None:
        """The rows of a block, None if it has none; `before` counts those before it."""
        if not block.strip():
            return None
        origin = Origin(before=before)
        _require_utf8(block, origin)
        content = self.joined([self._header, block])
        with reading(origin):
            names = read_header(_file(content, origin))
            learnt = {**self._learnt, **self._guessed(content, names, origin)}
            target = pa.schema([self._field(name, learnt) for name in names])
            batches = list(read_csv(_file(content, origin), target))
        self._learnt = learnt
        if not batches:
            return None
        batch = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        return batch.rename_columns([self._types.name_now(name) for name in names])

    def _guessed(self, content: bytes, names: list[str], origin: Origin) -> dict[str, pa.DataType]:
        unknown = [n for n in names if not self._is_known(n) and n not in self._learnt]
        if not unknown:
            return {}
        guess = guess_csv(_file(content, origin))
        return {name: guess.field(name).type for name in unknown}

    def _is_known(self, name: str) -> bool:
        return self._types.name_now(name) in self._types.schema.names

    def _field(self, name: str, learnt: dict[str, pa.DataType]) -> pa.Field:
        if self._is_known(name):
            return self._types.schema.field(self._types.name_now(name)).with_name(name)
        return pa.field(name, learnt[name])

    @staticmethod
    def records(block: bytes) -> list[bytes]:
        return csv_records(block)

    @staticmethod
    def joined(records: list[bytes]) -> bytes:
        return b"\n".join(records)

    def original(self, record: bytes) -> bytes:
        """The record below its header, without which nobody could read it."""
        return self.joined([self._header, record])


def _require_utf8(block: bytes, origin: Origin) -> None:
    """Arrow writes to standard error about records that are ragged and not UTF-8 either."""
    try:
        block.decode()
    except UnicodeDecodeError as error:
        before = block.rfind(b"\n", 0, error.start) + 1
        place = len(csv_records(block[:before])) + 1
        raise origin.error("the text is not UTF-8", place=place, hint="send UTF-8") from None


def _file(content: bytes, origin: Origin) -> InputFile:
    source = io.BytesIO(content)
    return InputFile(Stream(source.read, source.close), origin, "csv")
