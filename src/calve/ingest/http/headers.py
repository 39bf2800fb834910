"""What a request's headers say: what its body is, how it is packed, who sends it, what it wants."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from calve.errors import InvalidRequest
from calve.ingest.formats import ENCODINGS, MEDIA_TYPES
from calve.ingest.http.problems import Refusal
from calve.wal.pending import Producer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.datastructures import Headers

PRODUCER: Final = "Calve-Producer"
SEQUENCE: Final = "Calve-Sequence"
ROWS_BEFORE: Final = "Calve-Rows-Before"
_DIGITS_MAX: Final = 19
_SEQUENCE_HINT: Final = "a producer's sequence begins at 0 and counts up"
_OTHER_NAMES: Final = {
    "application/ndjson": "application/x-ndjson",
    "application/jsonl": "application/x-ndjson",
    "application/x-jsonlines": "application/x-ndjson",
}


def media_type_of(headers: Headers) -> str:
    """The content type without its parameters; only UTF-8 is text here."""
    kind, _, parameters = headers.get("content-type", "").partition(";")
    for parameter in parameters.split(";"):
        key, _, value = parameter.partition("=")
        charset = value.strip().strip('"').lower()
        if key.strip().lower() == "charset" and charset not in {"utf-8", "utf8", "us-ascii"}:
            raise unsupported(f"the text is in {charset!r}", "send UTF-8")
    return kind.strip().lower()


def rows_type_of(headers: Headers) -> str:
    kind = media_type_of(headers)
    kind = _OTHER_NAMES.get(kind, kind)
    if kind not in MEDIA_TYPES:
        raise unsupported(
            f"rows cannot be read from Content-Type {kind!r}", f"send {', '.join(MEDIA_TYPES)}"
        )
    return kind


def encoding_of(headers: Headers) -> str | None:
    """How the body is compressed, if it is."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding == "identity":
        return None
    encoding = encoding.removeprefix("x-")
    if encoding not in ENCODINGS:
        raise unsupported(
            f"Content-Encoding {encoding!r} is not known", f"use {' or '.join(ENCODINGS)}, or none"
        )
    return encoding


def identity_of(headers: Headers) -> tuple[str | None, int | None]:
    """Producer and sequence, which make a repeated request harmless."""
    producer = text_of(headers, PRODUCER)
    sequence = headers.get(SEQUENCE)
    if producer is None and sequence is None:
        return None, None
    number = None if sequence is None else _number(SEQUENCE, sequence, _SEQUENCE_HINT)
    Producer.of(producer, number)  # refuses what the log would, before anything is done
    return producer, number


def rows_before_of(headers: Headers) -> int:
    """How many rows came before in earlier requests; those of this one are numbered on."""
    hint = "it is the number of rows that earlier requests had"
    return _number(ROWS_BEFORE, headers.get(ROWS_BEFORE, "0"), hint)


def _number(name: str, text: str, hint: str) -> int:
    digits = text.strip()
    if not digits.isascii() or not digits.isdecimal() or len(digits) > _DIGITS_MAX:
        raise InvalidRequest(f"{name} is {digits!r}", hint=hint)
    return int(digits)


def text_of(headers: Headers, name: str) -> str | None:
    """A header's text, which is UTF-8; HTTP itself knows nothing but bytes."""
    value = headers.get(name)
    if value is None:
        return None
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the header {name} is not UTF-8", hint="send UTF-8") from error


def wanted_type(headers: Headers, offered: Sequence[str]) -> str:
    """The first of the offered types that the request accepts, in the request's own order."""
    accept = headers.get("accept", "*/*")
    for item in accept.split(","):
        kind = item.partition(";")[0].strip().lower()
        for each in offered:
            if kind in {each, "*/*", f"{each.partition('/')[0]}/*", ""}:
                return each
    raise Refusal(
        HTTPStatus.NOT_ACCEPTABLE,
        f"Accept is {accept[:200]!r}",
        f"ask for {', '.join(offered)}",
    )


def unsupported(detail: str, hint: str) -> Refusal:
    """For a body whose form nobody here reads."""
    return Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail, hint)
