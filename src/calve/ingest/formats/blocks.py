"""Text cut into blocks of whole records, so that memory is bounded however long a body is."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import msgspec

from calve.errors import InvalidRequest
from calve.tables.inputs.origin import Origin

BLOCK_BYTES: Final = 4 << 20
MARK: Final = b"\xef\xbb\xbf"  # of UTF-8, which some programs begin a text with
_RAW: Final = msgspec.json.Decoder(list[msgspec.Raw])
_WITHOUT_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")  # between quotes JSON has none
_SPACE: Final = " \t\r\n"
_HINT: Final = "write an array of objects: [{…}, {…}]"


def line_blocks(body: bytes) -> Iterator[bytes]:
    """Pieces that end with a line, or with the body."""
    start = len(MARK) if body.startswith(MARK) else 0
    while len(body) - start > BLOCK_BYTES:
        end = body.rfind(b"\n", start, start + BLOCK_BYTES) + 1
        end = end or body.find(b"\n", start + BLOCK_BYTES) + 1 or len(body)
        yield body[start:end]
        start = end
    if start < len(body):
        yield body[start:] if start else body


def record_blocks(body: bytes) -> Iterator[bytes]:
    """The same for CSV, where a line break between quotes ends no record."""
    kept = b""
    for block in line_blocks(body):
        whole = kept + block
        if whole.count(b'"') % 2:
            kept = whole
        else:
            kept = b""
            yield whole
    if kept:
        yield kept


def csv_records(block: bytes) -> list[bytes]:
    """The records of a block, each with the line breaks inside of its quotes."""
    records: list[bytes] = []
    gathered: list[bytes] = []
    is_quoted = False
    for line in block.splitlines(keepends=True):
        gathered.append(line)
        is_quoted ^= bool(line.count(b'"') % 2)
        if not is_quoted:
            records.append(b"".join(gathered).rstrip(b"\r\n"))
            gathered = []
    if gathered:
        records.append(b"".join(gathered).rstrip(b"\r\n"))
    return [record for record in records if record]


def first_record(body: bytes) -> bytes:
    """The record that a body begins with, its line break included."""
    at = quotes = 0
    while at < len(body):
        end = body.find(b"\n", at) + 1 or len(body)
        quotes += body.count(b'"', at, end)
        if quotes % 2 == 0:
            return body[:end]
        at = end
    return body


def array_blocks(body: bytes) -> Iterator[bytes]:
    """The elements of a JSON array as they were written, one on each line."""
    if len(body) <= BLOCK_BYTES:
        # At once; whatever is wrong is then found element by element.
        with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raw = _RAW.decode(body.removeprefix(MARK))
            yield b"\n".join(bytes(each).translate(_WITHOUT_BREAKS) for each in raw)
            return
    elements = _Elements(body)
    gathered: list[str] = []
    size = 0
    for element in elements:
        gathered.append(element.replace("\n", " ").replace("\r", " "))
        size += len(element)
        if size >= BLOCK_BYTES:
            yield _lines(gathered)
            gathered, size = [], 0
    if gathered:
        yield _lines(gathered)


def _lines(texts: list[str]) -> bytes:
    return "\n".join(texts).encode()


def _nothing(_: str) -> None:
    """Numbers are looked at later, when it is known what they are for."""


class _Elements:
    """Finds where each element of an array ends, a piece of the text at a time."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._read_to = 0
        self._characters = codecs.getincrementaldecoder("utf-8-sig")()
        self._scan = json.JSONDecoder(
            parse_int=_nothing, parse_float=_nothing, parse_constant=_nothing
        ).raw_decode
        self._text = ""
        self._at = 0
        self._count = 0

    def __iter__(self) -> Iterator[str]:
        if self._next() != "[":
            raise self._error("the body is not an array")
        self._at += 1
        if self._next() != "]":
            yield self._element()
            while self._next() == ",":
                self._at += 1
                self._next()
                yield self._element()
        if self._next() != "]":
            raise self._error("a comma or the end of the array is expected")
        self._at += 1
        if self._next():
            raise self._error("there is more after the array")

    def _element(self) -> str:
        while True:
            try:
                _, end = self._scan(self._text, self._at)
            except RecursionError:
                raise self._error("objects lie too deeply inside each other") from None
            except ValueError as error:
                if not self._more():
                    raise self._error(f"not JSON: {error}") from None
                continue
            element = self._text[self._at : end]
            self._at = end
            self._count += 1
            return element

    def _next(self) -> str:
        """The next character that is not space; nothing at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        """Read on, twice as far each time; whether there was anything."""
        if self._read_to >= len(self._body):
            return False
        rest = self._text[self._at :]
        end = self._read_to + max(BLOCK_BYTES, len(rest))
        piece = self._body[self._read_to : end]
        try:
            text = self._characters.decode(piece, final=end >= len(self._body))
        except UnicodeDecodeError:
            raise self._error("the text is not UTF-8") from None
        self._read_to = end
        self._text = rest + text
        self._at = 0
        return True

    def _error(self, problem: str) -> InvalidRequest:
        return Origin().error(problem, place=self._count + 1, hint=_HINT)
