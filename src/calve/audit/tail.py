"""Follows the files of the audit log: every whole record, once, as they are written and put away.

A record is named by its file and its number in it, and keeps that name, also when its file is put
away or the process begins anew.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from calve.audit.trail import Record, files_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

_DECODER: Final = msgspec.json.Decoder(Record)


class Written(NamedTuple):
    file: str
    number: int  # in its file, from 0
    record: Record


class _Place(NamedTuple):
    """How far a file was read. It is named by its first record, which does not change."""

    offset: int = 0
    file: str = ""
    records: int = 0


class Tail:
    """Not safe to share between threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._places: dict[int, _Place] = {}  # by the files' inodes

    def mark(self) -> dict[int, _Place]:
        """Where it is now, to be given to `rewind`."""
        return dict(self._places)

    def rewind(self, mark: dict[int, _Place]) -> None:
        self._places = dict(mark)

    def more(self) -> Iterator[Written]:
        """What was written since, oldest first."""
        present = set()
        for path in files_of(self._directory):
            with suppress(FileNotFoundError), path.open("rb") as file:
                status = os.fstat(file.fileno())
                present.add(status.st_ino)
                yield from self._more_of(file, status)
        self._places = {inode: self._places[inode] for inode in present & self._places.keys()}

    def _more_of(self, file: BinaryIO, status: os.stat_result) -> Iterator[Written]:
        place = self._places.get(status.st_ino, _Place())
        if status.st_size < place.offset:
            place = _Place()  # another file, where one was taken away
        if status.st_size == place.offset:
            return
        os.fsync(file.fileno())  # a number must not be given to another record after a power cut
        file.seek(place.offset)
        for line in file:
            is_synced = place.offset + len(line) <= status.st_size
            if not is_synced or not line.endswith(b"\n"):
                return  # somebody is writing it
            place = place._replace(offset=place.offset + len(line))
            with suppress(msgspec.DecodeError):  # half a line, which a crash left
                record = _DECODER.decode(line)
                name = place.file or f"{record.id}-{record.step}"
                written = Written(name, place.records, record)
                place = _Place(place.offset, name, place.records + 1)
                self._places[status.st_ino] = place
                yield written
            self._places[status.st_ino] = place
