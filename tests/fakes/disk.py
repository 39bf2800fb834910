"""A disk that crashes, tears and fails on purpose: the log's `Files` over a model in memory.

What is written is in the cache until it is synced; names are in the cache until their directory
is. `after_crash` makes the disk that the next boot finds: the synced state plus whatever part of
the rest a `Survival` keeps. A sync that failed leaves its pages clean, as Linux does: a later
sync says yes and writes nothing.
"""

from __future__ import annotations

import copy
import itertools
import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from calve.wal.files import Bytes


class Crash(BaseException):
    """The power is gone. Not an Exception: nothing may handle it."""


class Survival(Enum):
    """Which part of what was not synced is there after a crash."""

    NOTHING = "nothing"
    EVERYTHING = "everything"  # what a killed process leaves behind
    PREFIX = "prefix"  # of the operations on each file; the last one torn at any byte
    SCATTERED = "scattered"  # any pieces of any operation
    DATA_ONLY = "data only"  # contents, but no directory entry
    NAMES_ONLY = "names only"  # directory entries, but no contents


@dataclass(frozen=True, slots=True)
class _Write:
    position: int
    content: bytes


@dataclass(frozen=True, slots=True)
class _Resize:
    length: int


_FileOperation = _Write | _Resize


class _Mapping(bytearray):
    """What a reader has mapped: as long as it was then, and with what is written since."""


@dataclass(slots=True)
class _Inode:
    number: int
    synced: bytearray = field(default_factory=bytearray)
    cached: bytearray = field(default_factory=bytearray)
    unsynced: list[_FileOperation] = field(default_factory=list)
    mappings: list[weakref.ref[_Mapping]] = field(default_factory=list)

    def apply(self, operation: _FileOperation) -> None:
        _apply(self.cached, operation)
        self.unsynced.append(operation)
        for mapping in filter(None, (each() for each in self.mappings)):
            now = self.cached[: len(mapping)]
            mapping[: len(now)] = now

    def mapped(self) -> memoryview:
        mapping = _Mapping(self.cached)
        self.mappings = [each for each in self.mappings if each() is not None]
        self.mappings.append(weakref.ref(mapping))
        return memoryview(mapping).toreadonly()


@dataclass(frozen=True, slots=True)
class _Link:
    name: str
    inode: int


@dataclass(frozen=True, slots=True)
class _Unlink:
    name: str


@dataclass(frozen=True, slots=True)
class _Rename:
    source: str
    target: str
    inode: int


_NameOperation = _Link | _Unlink | _Rename


@dataclass(slots=True)
class _Directory:
    synced: dict[str, int] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)
    unsynced: list[_NameOperation] = field(default_factory=list)


Fault = Callable[[str, "SimulatedDisk"], None]


class SimulatedDisk:
    def __init__(self) -> None:
        self.operations: list[str] = []
        self.crash_at: int | None = None
        self.free = 1 << 40
        self.fault: Fault | None = None  # may raise before an operation takes place
        self.short_reads = False
        self.short_writes = False
        self._inodes: dict[int, _Inode] = {}
        self._directories: dict[Path, _Directory] = {Path("/"): _Directory()}
        self._next_inode = 1
        self._locked: set[int] = set()
        self._is_dead = False

    def create(self, path: Path) -> _SimulatedFile:
        directory = self._directory(path)
        if path.name in directory.cached:
            raise FileExistsError(path)
        self._begin("create")
        inode = self._new_inode()
        directory.cached[path.name] = inode.number
        directory.unsynced.append(_Link(path.name, inode.number))
        self._end()
        return _SimulatedFile(self, inode)

    def open(self, path: Path) -> _SimulatedFile:
        return _SimulatedFile(self, self._find(path))

    def read(self, path: Path) -> bytes:
        return bytes(self._find(path).cached)

    def read_start(self, path: Path, length: int | None = None) -> bytes:
        return bytes(self._find(path).cached[:length])

    def map(self, path: Path) -> memoryview:
        return self._find(path).mapped()

    def exists(self, path: Path) -> bool:
        self._live()
        return path in self._directories or path.name in self._directory(path).cached

    def size(self, path: Path) -> int:
        return len(self._find(path).cached)

    def names(self, directory: Path) -> list[str]:
        self._live()
        return list(self._directories[directory].cached)

    def sizes(self, directory: Path) -> dict[str, int]:
        return {name: self.size(directory / name) for name in self.names(directory)}

    def make_directory(self, path: Path) -> None:
        # Directories are there at once: what a crash does to names is tried with files.
        for parent in [*reversed(path.parents), path]:
            self._directories.setdefault(parent, _Directory())

    def rename(self, source: Path, target: Path) -> None:
        directory = self._directory(source)
        assert source.parent == target.parent
        self._begin("rename")
        inode = directory.cached.pop(source.name)
        directory.cached[target.name] = inode
        directory.unsynced.append(_Rename(source.name, target.name, inode))
        self._end()

    def unlink(self, path: Path) -> None:
        self._find(path)
        self._begin("unlink")
        directory = self._directory(path)
        del directory.cached[path.name]
        directory.unsynced.append(_Unlink(path.name))
        self._end()

    def sync_directory(self, path: Path) -> None:
        self._begin("sync directory", crash_before=True)
        directory = self._directories[path]
        directory.synced = dict(directory.cached)
        directory.unsynced.clear()

    def lock(self, path: Path) -> _SimulatedLock | None:
        number = self._find(path).number
        if number in self._locked:
            return None
        self._locked.add(number)
        return _SimulatedLock(self, number)

    def is_locked(self, path: Path) -> bool:
        return self._find(path).number in self._locked

    def place(self, path: Path) -> str:
        return f"inode {self._find(path).number}"

    def free_bytes(self, directory: Path) -> int:
        return self.free

    def after_crash(self, survival: Survival, seed: int) -> SimulatedDisk:
        """The disk as the next boot finds it. This one stays as it is."""
        choice = random.Random(seed)
        found = SimulatedDisk()
        found._next_inode = self._next_inode
        for number, inode in self._inodes.items():
            content = _surviving_content(inode, survival, choice)
            found._inodes[number] = _Inode(number, bytearray(content), bytearray(content))
        for path, directory in self._directories.items():
            names = _surviving_names(directory, survival, choice)
            found._directories[path] = _Directory(dict(names), dict(names))
        return found

    def after_kill(self) -> SimulatedDisk:
        """The disk as the next process finds it: the system lives, and with it what is cached."""
        found = SimulatedDisk()
        found._next_inode = self._next_inode
        found._inodes = copy.deepcopy(self._inodes)
        for inode in found._inodes.values():
            inode.mappings = []
        found._directories = copy.deepcopy(self._directories)
        return found

    def damage(self, path: Path, change: Callable[[bytearray], None]) -> None:
        """Change a file behind everybody's back, in the cache and on the disk."""
        inode = self._find(path)
        change(inode.cached)
        inode.synced = bytearray(inode.cached)
        inode.unsynced.clear()

    def copy(self) -> SimulatedDisk:
        return self.after_crash(Survival.EVERYTHING, 0)

    def _new_inode(self) -> _Inode:
        inode = self._inodes[self._next_inode] = _Inode(self._next_inode)
        self._next_inode += 1
        return inode

    def _directory(self, path: Path) -> _Directory:
        return self._directories.get(path.parent) or _Directory()

    def _find(self, path: Path) -> _Inode:
        self._live()
        number = self._directory(path).cached.get(path.name)
        if number is None:
            raise FileNotFoundError(path)
        return self._inodes[number]

    def _live(self) -> None:
        if self._is_dead:
            raise Crash

    def _begin(self, operation: str, *, crash_before: bool = False) -> None:
        self._live()
        self.operations.append(operation)
        if self.fault is not None:
            self.fault(operation, self)
        if crash_before:
            self._end()

    def _end(self) -> None:
        """Crash when an operation is done but nothing of it synced, or a sync has not begun."""
        if self.crash_at is not None and len(self.operations) > self.crash_at:
            self._is_dead = True
            raise Crash


class _SimulatedFile:
    def __init__(self, disk: SimulatedDisk, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode

    def read_at(self, position: int, length: int) -> bytes:
        self._disk._live()
        if self._disk.short_reads and length > 1:
            length //= 2
        return bytes(self._inode.cached[position : position + length])

    def write_at(self, position: int, buffers: Sequence[Bytes]) -> int:
        content = b"".join(buffers)
        if self._disk.short_writes and len(content) > 1:
            content = content[: len(content) // 2]
        try:
            self._disk._begin("write")
        except PartialWrite as partial:
            self._inode.apply(_Write(position, content[: len(content) // 2]))
            raise partial.error from None
        self._inode.apply(_Write(position, content))
        self._disk._end()
        return len(content)

    def sync(self) -> None:
        try:
            self._disk._begin("sync", crash_before=True)
        except OSError as error:
            if not isinstance(error, InterruptedError):
                self._inode.unsynced.clear()  # clean pages that never reached the disk
            raise
        for operation in self._inode.unsynced:
            _apply(self._inode.synced, operation)
        self._inode.unsynced.clear()

    def truncate(self, length: int) -> None:
        self._disk._begin("truncate")
        self._inode.apply(_Resize(length))
        self._disk._end()

    def preallocate(self, length: int) -> None:
        self._disk._begin("preallocate")
        if length > len(self._inode.cached):
            self._inode.apply(_Resize(length))
        self._disk._end()

    def size(self) -> int:
        return len(self._inode.cached)

    def close(self) -> None:
        pass


class PartialWrite(Exception):
    """Raised by a fault: half of the write happens, then the error."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


class _SimulatedLock:
    def __init__(self, disk: SimulatedDisk, inode: int) -> None:
        self._disk = disk
        self._inode = inode

    def release(self) -> None:
        self._disk._locked.discard(self._inode)


def _apply(content: bytearray, operation: _FileOperation) -> None:
    if isinstance(operation, _Resize):
        del content[operation.length :]
        content.extend(bytes(operation.length - len(content)))
        return
    end = operation.position + len(operation.content)
    if end > len(content):
        content.extend(bytes(end - len(content)))
    content[operation.position : end] = operation.content


def _surviving_content(inode: _Inode, survival: Survival, choice: random.Random) -> bytearray:
    content = bytearray(inode.synced)
    if survival in (Survival.NOTHING, Survival.NAMES_ONLY):
        return content
    operations: list[_FileOperation] = list(inode.unsynced)
    if survival is Survival.EVERYTHING:
        return bytearray(inode.cached)
    if survival is Survival.PREFIX:
        operations = _torn_prefix(operations, choice)
    if survival is Survival.SCATTERED:
        operations = [piece for operation in operations for piece in _pieces(operation, choice)]
    for operation in operations:
        _apply(content, operation)
    return content


def _torn_prefix(operations: list[_FileOperation], choice: random.Random) -> list[_FileOperation]:
    kept = operations[: choice.randint(0, len(operations))]
    last = kept[-1] if kept else None
    if isinstance(last, _Write):
        cut = choice.randint(0, len(last.content))
        kept[-1] = _Write(last.position, last.content[:cut])
    return kept


def _pieces(operation: _FileOperation, choice: random.Random) -> list[_FileOperation]:
    """Some parts of an operation, cut at any byte."""
    if isinstance(operation, _Resize):
        return [operation] if choice.random() < 0.5 else []
    size = len(operation.content)
    cuts = sorted({0, size, *(choice.randint(0, size) for _ in range(4))})
    return [
        _Write(operation.position + begin, operation.content[begin:end])
        for begin, end in itertools.pairwise(cuts)
        if choice.random() < 0.5
    ]


def _surviving_names(
    directory: _Directory, survival: Survival, choice: random.Random
) -> dict[str, int]:
    if survival in (Survival.EVERYTHING, Survival.NAMES_ONLY):
        return dict(directory.cached)
    names = dict(directory.synced)
    operations = list(directory.unsynced)
    if survival in (Survival.NOTHING, Survival.DATA_ONLY):
        operations = []
    if survival is Survival.PREFIX:
        operations = operations[: choice.randint(0, len(operations))]
    if survival is Survival.SCATTERED:
        operations = [operation for operation in operations if choice.random() < 0.5]
    for operation in operations:
        _apply_name(names, operation)
    return names


def _apply_name(names: dict[str, int], operation: _NameOperation) -> None:
    if isinstance(operation, _Link):
        names[operation.name] = operation.inode
    elif isinstance(operation, _Unlink):
        names.pop(operation.name, None)
    else:
        names.pop(operation.source, None)
        names[operation.target] = operation.inode
