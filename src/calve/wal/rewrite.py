"""Damaged segments written anew: drafts of all of them first, then one file after the other.

Each file is kept aside as it was before a new one takes its place; a crash leaves the old segment
or the new. What may be given up is decided before (`repair`).
"""

from __future__ import annotations

from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from calve.errors import Corruption
from calve.wal.chain import find_link
from calve.wal.draft import SegmentDraft
from calve.wal.durable import DurableFile, write_all
from calve.wal.frame import Kind, checksum, read_frame
from calve.wal.identity import read_identity
from calve.wal.layout import temporary
from calve.wal.segment import SegmentHeader, new_salt
from calve.wal.state import LogState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from calve.wal.files import Files
    from calve.wal.layout import LogLayout
    from calve.wal.survey import SegmentSurvey, Survey


def aside_path(layout: LogLayout, path: Path, content: memoryview) -> Path:
    """Named after what is in it: each file that a repair replaces is kept, and once."""
    return layout.aside / f"{path.name}.{checksum(content):016x}"


class _Before(NamedTuple):
    """The segment before, as it is after the repair; its state is made only when it is needed."""

    link: int
    state: Callable[[], LogState]


def _state_of(draft: SegmentDraft) -> LogState:
    return draft.state


class Rewrite:
    """The damaged segments of a log that was surveyed; nobody writes it."""

    def __init__(self, files: Files, layout: LogLayout, found: Survey) -> None:
        self._files = files
        self._layout = layout
        self._found = found
        self._log_id = read_identity(files, layout).log_id
        self._schemas = {s.number: self._find_schemas(s) for s in found.segments if s.damages}

    def draft(self) -> list[SegmentDraft]:
        """All of them, in memory: whatever cannot be put in order shows before a file changes."""
        drafts: list[SegmentDraft] = []
        before: _Before | None = None
        for segment, following in zip_longest(self._found.segments, self._found.segments[1:]):
            if segment.damages:
                draft = self._draft(segment, before, following.header if following else None)
                drafts.append(draft)
                before = _Before(draft.link, partial(_state_of, draft))
            else:
                before = _Before(self._link(segment), partial(self._end_state, segment))
        return drafts

    def replace(self, drafts: list[SegmentDraft]) -> None:
        damaged = (segment for segment in self._found.segments if segment.damages)
        for segment, draft in zip(damaged, drafts, strict=True):
            self._keep_aside(segment)
            _write_file(self._files, segment.path, draft.finish())
            self._point_durable_at(draft)

    def _link(self, segment: SegmentSurvey) -> int:
        assert segment.header is not None
        return find_link(self._files.map(segment.path), segment.header) or 0

    def _end_state(self, segment: SegmentSurvey) -> LogState:
        """What is known at the end of a segment that is whole."""
        assert segment.state is not None
        state = LogState.decode(memoryview(segment.state.encode()))
        view = self._files.map(segment.path)
        for header in segment.frames:
            state.apply_frame(read_frame(view, header.position, header.salt))
        return state

    def _state_from_next(self, segment: SegmentSurvey) -> LogState:
        """Names and offsets from the segment behind, when nothing is left before this one: what
        was in it counts as no longer in the log."""
        later = (one.state for one in self._found.segments if one.number > segment.number)
        state = next((one for one in later if one is not None), None)
        if state is None:
            raise Corruption(
                f"{segment.path} holds the names of all topics, and both copies are damaged",
                hint="bring back the file from a copy",
                context={"file": str(segment.path)},
            )
        return LogState.decode(memoryview(state.encode()))

    def _draft(
        self, segment: SegmentSurvey, before: _Before | None, following: SegmentHeader | None
    ) -> SegmentDraft:
        start = segment.state or self._start_state(segment, before)
        header = self._header(segment, before, following)
        header = header._replace(created_at_us=max(header.created_at_us, start.last_time_us))
        draft = SegmentDraft(segment, start, header, self._found.names)
        draft.copy_frames(self._view(segment), self._schemas[segment.number])
        return draft

    def _start_state(self, segment: SegmentSurvey, before: _Before | None) -> LogState:
        if before is not None:
            return before.state()
        return LogState() if segment.number == 1 else self._state_from_next(segment)

    def _header(
        self, segment: SegmentSurvey, before: _Before | None, following: SegmentHeader | None
    ) -> SegmentHeader:
        """The old header, or what can be known of it, with what ties the file to its place."""
        old = segment.header or SegmentHeader(self._log_id, segment.number, 0, 0)
        durable = self._found.durable
        return old._replace(
            salt=new_salt(),
            previous=old.previous or (before.link if before else 0),
            answers_to=following.previous if following else 0,
            replaces=durable.salt if segment.number == durable.segment else old.salt,
        )

    def _view(self, segment: SegmentSurvey) -> memoryview:
        return memoryview(b"") if segment.is_missing else self._files.map(segment.path)

    def _find_schemas(self, segment: SegmentSurvey) -> dict[int, bytes]:
        """Schemas that rows here need and that only other segments still hold."""
        present = {header.schema for header in segment.frames if header.kind == Kind.SCHEMA}
        wanted = {h.schema for h in segment.frames if h.takes_offsets and h.schema} - present
        found: dict[int, bytes] = {}
        for other in self._found.segments:
            for header in other.frames:
                if header.kind == Kind.SCHEMA and header.schema in wanted - found.keys():
                    content = self._files.map(other.path)
                    frame = read_frame(content, header.position, header.salt)
                    found[header.schema] = bytes(frame.payload)
        return found

    def _keep_aside(self, segment: SegmentSurvey) -> None:
        if segment.is_missing:
            return
        view = self._view(segment)
        self._files.make_directory(self._layout.aside)
        path = aside_path(self._layout, segment.path, view)
        if not self._files.exists(path):
            _write_file(self._files, path, bytes(view))

    def _point_durable_at(self, draft: SegmentDraft) -> None:
        durable = DurableFile.open(self._files, self._layout.durable)
        try:
            if durable.end.segment == draft.header.number:
                durable.persist(
                    durable.end._replace(
                        salt=draft.header.salt, position=draft.position, last_position=0
                    )
                )
        finally:
            durable.close()


def _write_file(files: Files, path: Path, content: bytes) -> None:
    """Put a file in its place whole, on the disk, over whatever was there."""
    draft = temporary(path)
    if files.exists(draft):
        files.unlink(draft)
    file = files.create(draft)
    try:
        write_all(file, 0, content)
        file.sync()
    finally:
        file.close()
    files.rename(draft, path)
    files.sync_directory(path.parent)
