"""The file that says how far the log is synced: for readers, and for recovery.

Four slots. Two are written in turn after every sync of the log, without a sync of their own:
another process sees them at once, and they outlive this one. The other two are written in turn
and synced, at rotation, when idle and at the end, so that one whole slot is on the disk whatever
a power cut tears. What the file says is never ahead of the disk.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from calve.errors import Corruption
from calve.wal.frame import checksum
from calve.wal.layout import temporary

if TYPE_CHECKING:
    from pathlib import Path

    from calve.wal.files import File, Files

SLOT_BYTES: Final = 64
SLOT_SPACING: Final = 512  # a sector each: a torn write reaches one slot only
FILE_BYTES: Final = 4 * SLOT_SPACING
_SYNCED_SLOTS: Final = (2, 3)

_FIELDS: Final = struct.Struct("<QQQQQQQ")
_SUM: Final = struct.Struct("<Q")
_MORE: Final = struct.Struct("<Q")


class DurableEnd(NamedTuple):
    """Everything before `position` of `segment` is synced; segments before `first` are gone."""

    generation: int
    first_segment: int
    segment: int
    salt: int
    position: int
    last_stream: int = 0  # of the last frame that took offsets, and where it ended
    last_end: int = 0
    last_position: int = 0  # where that frame lies; 0 if nobody knows

    def pack(self) -> bytes:
        *fields, last_position = self
        slot = _FIELDS.pack(*fields)
        slot += _SUM.pack(checksum(slot)) + _MORE.pack(last_position)
        return slot + _SUM.pack(checksum(slot))


def parse(content: bytes) -> DurableEnd | None:
    """The newest whole slot."""
    slots = (_slot(content, at) for at in range(0, FILE_BYTES, SLOT_SPACING))
    return max((slot for slot in slots if slot is not None), default=None)


def _slot(content: bytes, at: int) -> DurableEnd | None:
    if len(content) < at + SLOT_BYTES:
        return None
    if checksum(content[at : at + _FIELDS.size]) != _SUM.unpack_from(content, at + _FIELDS.size)[0]:
        return None
    fields = _FIELDS.unpack_from(content, at)
    slot = DurableEnd._make((*fields, _last_position(content, at)))
    return slot if slot.generation else None


def _last_position(content: bytes, at: int) -> int:
    """What an older Calve does not write, behind what it does."""
    end = at + SLOT_BYTES + _MORE.size
    if len(content) < end + _SUM.size:
        return 0
    if checksum(content[at:end]) != _SUM.unpack_from(content, end)[0]:
        return 0
    position: int = _MORE.unpack_from(content, at + SLOT_BYTES)[0]
    return position


def _generation(content: bytes, slot: int) -> int:
    found = _slot(content, SLOT_SPACING * slot)
    return 0 if found is None else found.generation


class DurableFile:
    """The writer's side."""

    def __init__(self, file: File, content: bytes, newest: DurableEnd) -> None:
        self._file = file
        self.end = newest
        self.is_persisted = True
        # The synced slots take turns by themselves: the newer one stays while the other is torn.
        self._synced_slot = min(_SYNCED_SLOTS, key=lambda slot: _generation(content, slot))

    @classmethod
    def create(cls, files: Files, path: Path, end: DurableEnd) -> None:
        """Write the file whole. The caller syncs the directory."""
        draft = temporary(path)
        file = files.create(draft)
        try:
            slot = end.pack().ljust(SLOT_SPACING, b"\0")
            write_all(file, 0, slot * 4)
            file.sync()
        finally:
            file.close()
        files.rename(draft, path)

    @classmethod
    def open(cls, files: Files, path: Path) -> DurableFile:
        newest, content = read_durable(files, path), files.read(path)
        return cls(files.open(path), content, newest)

    def publish(self, end: DurableEnd) -> None:
        """Tell other processes. `end.generation` is set here."""
        self.end = DurableEnd(self.end.generation + 1, *end[1:])
        self.is_persisted = False
        write_all(self._file, SLOT_SPACING * (self.end.generation % 2), self.end.pack())

    def persist(self, end: DurableEnd) -> None:
        """Publish, and return when a power cut cannot take it back."""
        self.publish(end)
        write_all(self._file, SLOT_SPACING * self._synced_slot, self.end.pack())
        self._file.sync()
        self._synced_slot = sum(_SYNCED_SLOTS) - self._synced_slot
        self.is_persisted = True

    def close(self) -> None:
        self._file.close()


def read_durable(files: Files, path: Path) -> DurableEnd:
    try:
        newest = parse(files.read(path))
    except FileNotFoundError:
        newest = None
    if newest is None:
        raise unreadable(path)
    return newest


def write_all(file: File, position: int, content: bytes) -> None:
    """Write through interruptions and short writes."""
    view = memoryview(content)
    while view:
        try:
            written = file.write_at(position, [view])
        except InterruptedError:
            continue
        position += written
        view = view[written:]


def unreadable(path: Path) -> Corruption:
    return Corruption(
        f"{path} is unreadable: how far the log was synced is not known",
        hint="`calve wal repair --durable` writes it again from what the segments hold; rows at "
        "the very end that were damaged at the same time would go unnoticed",
        context={"file": str(path)},
    )
