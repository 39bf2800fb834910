"""Files as streams of bytes: paths, `-` for standard input, file objects; gzip and Zstandard.

The beginning can be looked at without being consumed, which is how compression and format are
recognised and types inferred. Nothing is read further ahead than that.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, cast

import pyarrow as pa

from calve.errors import Denied, InvalidRequest, NotFound
from calve.tables.inputs.origin import Origin
from calve.tables.nearest import meant

Tell: TypeAlias = Callable[[int], None]

STANDARD_INPUT: Final = "-"
_COMPRESSIONS: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_COMPRESSED_ENDINGS: Final = (".gz", ".zst")
_FORMATS: Final = {
    "csv": "csv",
    "tsv": "tsv",
    "json": "json",
    "ndjson": "json",
    "jsonl": "json",
    "parquet": "parquet",
    "pq": "parquet",
    "arrow": "arrow",
    "arrows": "arrow",
    "ipc": "arrow",
    "feather": "arrow",
}
_DELIMITERS: Final = {"tab": "\t", "\\t": "\t"}
_MAGIC: Final = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow"}
_WIDE_MARKS: Final = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")
_WIDE_SHARE: Final = 8  # in wide characters, far more than every eighth byte is a NUL
_LOOK_BYTES: Final = 4096


class Stream(io.RawIOBase):
    """Bytes to be read once, with a look at the beginning."""

    def __init__(self, read: Callable[[int], bytes | str], close: Callable[[], object]) -> None:
        self._read = read
        self._close = close
        self._ahead = bytearray()
        self._ended = False

    def peek(self, length: int) -> bytes:
        """The next bytes, up to `length`; fewer only at the end."""
        while len(self._ahead) < length and not self._ended:
            self._ahead += self._more(length - len(self._ahead))
        return bytes(self._ahead[:length])

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = bytes(self._ahead[: len(buffer)]) or self._more(len(buffer))
        # Text of a file opened as such can be longer in bytes than was asked for.
        taken = data[: len(buffer)]
        if self._ahead:
            del self._ahead[: len(taken)]
        elif len(data) > len(taken):
            self._ahead += data[len(taken) :]
        buffer[: len(taken)] = taken
        return len(taken)

    def close(self) -> None:
        if not self.closed:
            self._close()
        super().close()

    def _more(self, length: int) -> bytes:
        data = self._read(length) if not self._ended else b""
        self._ended = self._ended or not data
        return data.encode("utf-8") if isinstance(data, str) else bytes(data)


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that is open: what it is called, what is in it, and its bytes."""

    stream: Stream
    origin: Origin
    format: str
    path: str | None = None  # where it lies on this machine as it is, not compressed
    tell: Tell | None = None
    delimiter: str | None = None  # of cells, if somebody said it

    def reached(self, part: float) -> None:
        """Tell how far somebody is who does not read it from the beginning to the end."""
        if self.tell is not None and self.path is not None:
            self.tell(int(part * Path(self.path).stat().st_size))


def open_file(
    source: object,
    format: str | None,  # noqa: A002
    *,
    delimiter: str | None = None,
    tell: Tell | None = None,
) -> InputFile:
    """Open a path, `-` or a file object and find out its format.

    `delimiter` separates the cells of CSV. `tell` is called with how many bytes of a path have been
    read, now and then.
    """
    wanted, mark = _known_format(format), _known_delimiter(delimiter)
    stream, label = _opened(source, tell)
    try:
        file = _recognised(stream, label, wanted, source, is_cells=mark is not None)
        return replace(file, tell=tell, delimiter=mark)
    except BaseException:
        stream.close()
        raise


def is_file(source: object) -> bool:
    return isinstance(source, str | PathLike) or callable(getattr(source, "read", None))


def _known_format(format: str | None) -> str | None:  # noqa: A002
    if format is None:
        return None
    known = _FORMATS.get(format.lower().lstrip("."))
    if known is None:
        raise InvalidRequest(
            f"there is no format {format!r}{meant(format, _FORMATS)}",
            hint="formats are csv, tsv, json, ndjson, parquet and arrow",
        )
    return known


def _known_delimiter(delimiter: str | None) -> str | None:
    if delimiter is None:
        return None
    mark = _DELIMITERS.get(delimiter.lower(), delimiter)
    if len(mark) != 1 or not mark.isascii() or not (mark.isprintable() or mark == "\t"):
        raise InvalidRequest(
            f"{delimiter!r} separates no cells",
            hint="a delimiter is one character of ASCII, such as ; or |, or the word tab",
        )
    if mark == '"':
        raise InvalidRequest("cells are quoted with it", hint="separate them with another one")
    return mark


def _opened(source: Any, tell: Tell | None) -> tuple[Stream, str]:
    if isinstance(source, str | PathLike):
        path = fspath(source)
        if path == STANDARD_INPUT:
            if sys.stdin is None:
                raise InvalidRequest("standard input is closed", hint="name a file instead")
            # What has arrived so far, without waiting for more.
            incoming: Any = sys.stdin.buffer
            return Stream(incoming.read1, lambda: None), "standard input"
        file = _open_path(path)
        return Stream(_telling(file.read, tell) if tell else file.read, file.close), str(path)
    name = getattr(source, "name", None)
    # Somebody else's file stays open; they opened it and may go on with it.
    return Stream(source.read, lambda: None), name if isinstance(name, str) else "the file"


def _telling(read: Callable[[int], bytes], tell: Tell) -> Callable[[int], bytes]:
    total = 0

    def telling(length: int) -> bytes:
        nonlocal total
        data = read(length)
        total += len(data)
        tell(total)
        return data

    return telling


def _open_path(path: Any) -> BinaryIO:
    try:
        return cast("BinaryIO", io.open(path, "rb", buffering=0))  # noqa: UP020
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}", hint="check the path") from error
    except IsADirectoryError as error:
        raise InvalidRequest(f"{path} is a directory", hint="name one file") from error
    except PermissionError as error:
        raise Denied(f"{path} may not be read", hint="check its permissions") from error
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"{path!r} cannot be opened: {error}", hint="check the path"
        ) from error


def _recognised(
    stream: Stream, label: str, wanted: str | None, source: object, *, is_cells: bool
) -> InputFile:
    origin = Origin(label)
    with reading(origin):
        plain = _decompressed(stream)
        beginning = plain.peek(_LOOK_BYTES)
    if not beginning:
        raise origin.error(
            "empty", hint="give a file with rows; a table is made without any by --schema"
        )
    found = wanted or _by_name(label) or ("csv" if is_cells else _by_content(beginning))
    if is_cells and found not in {"csv", "tsv"}:
        raise origin.error(
            f"only CSV has a delimiter, and this is {found}",
            hint="leave the delimiter out, or name the format: csv",
        )
    if found in {"csv", "tsv", "json"}:
        refuse_other_encodings(beginning, origin)
    is_itself = plain is stream and isinstance(source, str | PathLike) and Path(label).is_file()
    return InputFile(plain, origin, found, label if is_itself else None)


def _decompressed(stream: Stream) -> Stream:
    beginning = stream.peek(4)
    for magic, name in _COMPRESSIONS.items():
        if beginning.startswith(magic):
            inner = pa.CompressedInputStream(pa.PythonFile(stream, "r"), name)
            return Stream(inner.read, stream.close)
    return stream


def _by_name(label: str) -> str | None:
    endings = [ending.lower() for ending in Path(label).suffixes]
    while endings and endings[-1] in _COMPRESSED_ENDINGS:
        endings.pop()
    return _FORMATS.get(endings[-1][1:]) if endings else None


def _by_content(beginning: bytes) -> str:
    for magic, name in _MAGIC.items():
        if beginning.startswith(magic):
            return name
    text = beginning.removeprefix(b"\xef\xbb\xbf").lstrip()
    return "json" if text[:1] in (b"{", b"[") else "csv"


def refuse_other_encodings(beginning: bytes, origin: Origin) -> None:
    """Refuse text that is not UTF-8, as far as its beginning tells."""
    nuls = beginning.count(0)
    if beginning.startswith(_WIDE_MARKS) or nuls * _WIDE_SHARE > len(beginning):
        raise origin.error(
            "the text is not UTF-8: it looks like UTF-16, or is no text",
            hint="convert it, for example with `iconv -f UTF-16 -t UTF-8`",
        )
    if nuls:
        line = beginning.count(b"\n", 0, beginning.index(0)) + 1
        raise origin.error(
            f"line {line:,} has a NUL byte in it, as no text has",
            hint="take it out, for example with `tr -d '\\0'`, or check the format",
        )


@contextmanager
def seekable(file: InputFile) -> Iterator[Any]:
    """The file for those who must jump in it: copied to disk if it is not there."""
    if file.path is not None:
        with pa.OSFile(file.path) as own:
            yield own
        return
    with tempfile.TemporaryFile() as copy:
        with reading(file.origin):
            shutil.copyfileobj(file.stream, copy, 1024 * 1024)
        copy.seek(0)
        yield pa.PythonFile(copy, "r")


@contextmanager
def reading(origin: Origin) -> Iterator[None]:
    """Raise what Arrow says about a damaged file as an error that names the file."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise origin.error(
            "the text is not valid Unicode", hint="open the file as bytes, and convert it to UTF-8"
        ) from error
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise origin.error(
            f"cannot be read: {problem}", hint="check that the file is whole and of its format"
        ) from error
