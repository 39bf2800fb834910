"""JSON: one object per line, objects over several lines, or one array of objects.

Lines are decoded in blocks. Where objects span lines, each is decoded as soon as it is complete;
memory is bounded by the largest object, and that by a limit.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from decimal import Decimal
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from calve.tables.inputs.convert import Text
from calve.tables.inputs.files import InputFile
from calve.tables.inputs.origin import Origin
from calve.tables.inputs.rows import BATCH_ROWS, Note, row_batch

_BLOCK_BYTES: Final = 4 * 1024 * 1024
_OBJECT_BYTES_MAX: Final = 64 * 1024 * 1024
_SPACE: Final = " \t\r\n"
_MARK: Final = b"\xef\xbb\xbf"


class Rows(NamedTuple):
    """Decoded rows with the line, or the number in the array, of each."""

    rows: list[Any]
    places: list[int] | range


def read_json(
    file: InputFile, target: pa.Schema, note: Note | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows as batches of the table's schema. `note` is told of each batch's rows."""
    exact = _has_decimals(target)
    origin = _origin(file)
    for rows, places in json_rows(file, exact=exact):
        for start in range(0, len(rows), BATCH_ROWS):
            end = start + BATCH_ROWS
            yield row_batch(rows[start:end], target, origin, places[start:end], Text.JSON)
            if note:
                note(rows[start:end])


def json_rows(file: InputFile, *, exact: bool = False) -> Iterator[Rows]:
    """Decoded rows; with `exact`, numbers with a point keep every digit."""
    return _lines(file, exact=exact) if _is_lines(file) else _documents(file, exact=exact)


def _origin(file: InputFile) -> Origin:
    return Origin(file.origin.label, "line" if _is_lines(file) else "row")


def _is_lines(file: InputFile) -> bool:
    """Whether the first line that is not blank is a whole object."""
    # Only reached before anything is consumed, or with the answer kept by the caller.
    beginning = file.stream.peek(_BLOCK_BYTES).removeprefix(_MARK).lstrip()
    if beginning.startswith(b"["):
        return False
    line, _, rest = beginning.partition(b"\n")
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # A first line that is broken, with others below that are not, is still lines.
        return rest.lstrip()[:1] == b"{"
    return True


def _lines(file: InputFile, *, exact: bool) -> Iterator[Rows]:
    decoder = msgspec.json.Decoder(float_hook=Decimal if exact else None)
    origin = Origin(file.origin.label, "line")
    number = 1
    for block in _blocks(file):
        lines = block.count(b"\n") + (not block.endswith(b"\n"))
        yield _decoded(block, decoder, origin, range(number, number + lines))
        number += lines


def _blocks(file: InputFile) -> Iterator[bytes]:
    """Pieces of the file that end with a line."""
    rest = b""
    first = True
    while chunk := file.stream.read(_BLOCK_BYTES):
        data = rest + (chunk.removeprefix(_MARK) if first else chunk)
        first = False
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        if len(rest) > _OBJECT_BYTES_MAX:
            raise _too_big(file.origin)
        if end:
            yield data[:end]
    if rest.strip():
        yield rest


def _decoded(
    block: bytes, decoder: msgspec.json.Decoder[Any], origin: Origin, places: range
) -> Rows:
    try:
        rows = decoder.decode_lines(block)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _first_broken(block, decoder, origin, places) from None
    if len(rows) == len(places):
        return Rows(rows, places)
    lines = zip(places, block.split(b"\n"), strict=False)
    return Rows(rows, [place for place, line in lines if line.strip()])


def _first_broken(
    block: bytes, decoder: msgspec.json.Decoder[Any], origin: Origin, places: range
) -> Exception:
    for place, line in zip(places, block.split(b"\n"), strict=False):
        try:
            if line.strip():
                decoder.decode(line)
        except UnicodeDecodeError:
            return origin.error(
                "the text is not UTF-8", place=place, hint="convert the file to UTF-8"
            )
        except (msgspec.DecodeError, RecursionError) as error:
            return origin.error(
                f"not JSON: {error}", place=place, hint="write one JSON object on each line"
            )
    return origin.error("not JSON", hint="write one JSON object on each line")


def _documents(file: InputFile, *, exact: bool) -> Iterator[Rows]:
    decoder = json.JSONDecoder(
        parse_float=Decimal if exact else None, parse_constant=_refuse_constant
    )
    objects = _Objects(file, decoder)
    number = 1
    iterator = iter(objects)
    while rows := list(islice(iterator, BATCH_ROWS)):
        yield Rows(rows, range(number, number + len(rows)))
        number += len(rows)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


class _Objects:
    """Objects one after the other, in an array or not."""

    def __init__(self, file: InputFile, decoder: json.JSONDecoder) -> None:
        self._file = file
        self._decoder = decoder
        self._characters = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._at = 0
        self._ended = False
        self._count = 0

    def __iter__(self) -> Iterator[Any]:
        in_array = self._next_character() == "["
        if in_array:
            self._at += 1
        while (character := self._next_character()) not in {"", "]"}:
            if character == "," and in_array and self._count:
                self._at += 1
                character = self._next_character()
            if character != "{":
                raise self._error(f"an object is expected, not {character!r}")
            yield self._object()
        self._finish(in_array=in_array)

    def _finish(self, *, in_array: bool) -> None:
        closed = self._next_character() == "]"
        if closed != in_array:
            raise self._error("the array is not closed" if in_array else "']' is too much")
        if closed:
            self._at += 1
            if self._next_character():
                raise self._error("there is more after the array")

    def _object(self) -> Any:
        while True:
            try:
                value, self._at = self._decoder.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                if self._ended:
                    raise self._error(f"not JSON: {error}") from None
                self._read()
            else:
                self._count += 1
                return value

    def _next_character(self) -> str:
        """The next one that is not space; nothing at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._read()

    def _read(self) -> None:
        rest = self._text[self._at :]
        if len(rest) > _OBJECT_BYTES_MAX:
            raise _too_big(self._file.origin)
        # Twice the text each time, so that a large object is not tried over and over.
        chunk = self._file.stream.read(max(_BLOCK_BYTES, len(rest))) or b""
        self._ended = not chunk
        try:
            self._text = rest + self._characters.decode(chunk, final=self._ended)
        except UnicodeDecodeError as error:
            raise self._error("the text is not UTF-8") from error
        self._at = 0

    def _error(self, problem: str) -> Exception:
        return self._file.origin.error(
            problem,
            place=self._count + 1,
            hint="write an array of objects, or one object on each line",
        )


def _too_big(origin: Origin) -> Exception:
    return origin.error(
        f"an object is larger than {_OBJECT_BYTES_MAX // 1024 // 1024} MiB",
        hint="write one object for each row, and each on a line of its own",
    )


def _has_decimals(target: pa.Schema) -> bool:
    return any("decimal" in str(field.type) for field in target)
