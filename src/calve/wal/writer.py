"""The segment that is being written: frames at its end, syncs, the seal, and the next segment.

After a sync that failed nothing is written through this file again: whether the bytes reached the
disk cannot be known from here (`Broken`). A write that failed is cut off and leaves no trace.
Callers hold the log's lock.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from calve.wal.durable import DurableEnd, write_all
from calve.wal.files import IOVECS_MAX
from calve.wal.frame import Previous, checksum
from calve.wal.group import Group, Place
from calve.wal.index import SegmentIndex
from calve.wal.layout import temporary
from calve.wal.segment import SegmentHeader, encode_seal, encode_start, link, new_salt

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from calve.wal.files import Bytes, File, Files
    from calve.wal.layout import LogLayout
    from calve.wal.state import LogState

_JOINED_BYTES_MAX = 1 << 18
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


class Broken(Exception):
    """The state of the disk is not known any more; only recovery can tell."""


class NotWritten(Exception):
    """The write failed and was undone; the log goes on from where it was."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """What recovery knows of the segment that goes on."""

    position: int
    index: SegmentIndex
    previous: Previous


class OpenSegment:
    def __init__(self, file: File, path: Path, header: SegmentHeader, end: SegmentEnd) -> None:
        self._file = file
        self.path = path
        self.header = header
        self.position = end.position
        self.index = end.index
        self.schemas: set[int] = end.index.schemas()
        self.durable = end.position
        self._previous = end.previous
        self.starts_at = end.position
        self.is_sealed = False
        self.sealed_bytes = 0
        self.link = 0  # once it is sealed

    @property
    def is_empty(self) -> bool:
        return self.position == self.starts_at

    def place(self) -> Place:
        return Place(self.position, self.header.salt, self.durable, self._previous)

    def durable_end(self, first_segment: int) -> DurableEnd:
        return DurableEnd(
            0,
            first_segment,
            self.header.number,
            self.header.salt,
            self.durable,
            *self._previous,
        )

    def write(self, group: Group) -> None:
        """Append a group, or raise NotWritten with nothing changed."""
        self._write_or_cut(group.buffers)
        for stream, rows in group.rows.items():
            if rows.offsets:
                self.index.add_frames(stream, rows.offsets, rows.positions, rows.end, group.time_us)
        for schema, position in group.new_schemas.items():
            self.index.add_schema(schema, position)
        self.schemas |= group.new_schemas.keys()
        self.position = group.position
        self._previous = Previous._make(group.previous)

    def _write_or_cut(self, buffers: Sequence[Bytes]) -> None:
        try:
            write_buffers(self._file, self.position, buffers)
        except OSError as error:
            self._cut()
            raise NotWritten(error) from error

    def _cut(self) -> None:
        """Take half a write back, on the disk too: whole frames of it could otherwise come back
        after a crash, although their appends were told that they failed."""
        try:
            self._file.truncate(self.position)
            sync(self._file)
        except OSError as error:
            raise Broken(f"a failed write could not be undone: {error}") from error

    def sync(self) -> None:
        sync(self._file)
        self.durable = self.position

    def seal(self) -> None:
        """Make the segment immutable and searchable. Nothing to do the second time."""
        if self.is_sealed:
            return
        index = self.index.encode()
        content = encode_seal(
            index, position=self.position, salt=self.header.salt, durable=self.durable
        )
        self._write_or_cut([content])
        try:
            self._file.truncate(self.position + len(content))
        except OSError as error:
            raise Broken(f"{self.path} could not be sealed: {error}") from error
        self.sync()
        self.is_sealed = True
        self.link = link(self.header.salt, checksum(index))
        self.sealed_bytes = self.position + len(content)

    def preallocate(self, length: int) -> None:
        preallocate(self._file, length)

    def trim_allocation(self) -> None:
        """Give back the space reserved behind the last frame."""
        if not self.is_sealed:
            with suppress(OSError):
                self._file.truncate(self.position)

    def close(self) -> None:
        self._file.close()


def create_segment(
    files: Files, layout: LogLayout, header: SegmentHeader, state: LogState, bytes_max: int
) -> OpenSegment:
    """A new segment, complete and on the disk before it has its name."""
    path = layout.segment(header.number)
    content = encode_start(header, state.encode())
    draft = temporary(path)
    try:
        file = _write_draft(files, draft, content, bytes_max)
    except OSError as error:
        raise NotWritten(error) from error
    try:
        files.rename(draft, path)
        files.sync_directory(layout.root)
    except OSError as error:
        file.close()
        raise Broken(f"{path} could not be given its name: {error}") from error
    return OpenSegment(file, path, header, SegmentEnd(len(content), SegmentIndex(), Previous()))


def _write_draft(files: Files, draft: Path, content: bytes, bytes_max: int) -> File:
    if files.exists(draft):
        files.unlink(draft)
    file = files.create(draft)
    try:
        write_all(file, 0, content)
        preallocate(file, bytes_max)
        file.sync()
    except OSError:
        file.close()
        with suppress(OSError):
            files.unlink(draft)
        raise
    return file


def next_header(
    log_id: UUID, number: int, created_at_us: int, *, previous: int = 0
) -> SegmentHeader:
    return SegmentHeader(log_id, number, new_salt(), created_at_us, previous)


def preallocate(file: File, length: int) -> None:
    """Reserve space if there is some; without it writes are slower, and fail when they must."""
    try:
        file.preallocate(length)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise


def sync(file: File) -> None:
    while True:
        try:
            file.sync()
        except InterruptedError:
            continue
        except OSError as error:
            raise Broken(f"a sync failed: {error}") from error
        return


def write_buffers(file: File, position: int, buffers: Sequence[Bytes]) -> None:
    """Write all of it. Small pieces are joined first: one copy is cheaper than many vectors."""
    if sum(map(len, buffers)) <= _JOINED_BYTES_MAX:
        _write_vector(file, position, [b"".join(buffers)])
        return
    for i in range(0, len(buffers), IOVECS_MAX):
        part = buffers[i : i + IOVECS_MAX]
        _write_vector(file, position, part)
        position += sum(map(len, part))


def _write_vector(file: File, position: int, vector: Sequence[Bytes]) -> None:
    pieces = list(vector)
    while pieces:
        try:
            written = file.write_at(position, pieces)
        except InterruptedError:
            continue
        position += written
        pieces = _remaining(pieces, written)


def _remaining(pieces: list[Bytes], written: int) -> list[Bytes]:
    for at, piece in enumerate(pieces):
        if written < len(piece):
            return [memoryview(piece)[written:], *pieces[at + 1 :]]
        written -= len(piece)
    return []
