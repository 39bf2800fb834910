"""Whether a segment is the one that belongs in its place: this log's, this number, this chain.

Each header names its log, its number, and a link to the segment before it. A file of another log,
of another number, or of a copy of this log that went its own way is refused with both names and
never read. Logs of older builds have no links; there only log and number are compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calve.errors import Conflict
from calve.wal.frame import BadFrame, Kind, candidates, read_frame, salt_at
from calve.wal.scan import later_headers
from calve.wal.segment import (
    HEADER_BYTES,
    BadSegment,
    SegmentHeader,
    damaged,
    read_link,
    read_segment_header,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from uuid import UUID

    from calve.wal.durable import DurableEnd
    from calve.wal.files import Files
    from calve.wal.layout import LogLayout

_WAY_OUT = (
    "bring back the file that belongs here, or see `calve wal verify` for the rows that it held "
    "and `calve wal repair` for giving them up"
)


class SegmentChain:
    """The segments of one log, and what proves that they are."""

    def __init__(self, files: Files, layout: LogLayout, log_id: UUID) -> None:
        self._files = files
        self._layout = layout
        self.log_id = log_id

    def why_foreign(self, header: SegmentHeader, number: int) -> str | None:
        if (header.log_id, header.number) == (self.log_id, number):
            return None
        return (
            f"it is segment {header.number} of log {header.log_id}, "
            f"not segment {number} of log {self.log_id}"
        )

    def own_header(self, number: int, view: memoryview) -> SegmentHeader:
        """The header, if it is readable and this log's; Corruption or Conflict if not."""
        path = self._layout.segment(number)
        try:
            header = read_segment_header(view)
        except BadSegment as error:
            raise damaged(path, error.position, error.reason) from error
        self.require_own(header, number)
        return header

    def require_own(self, header: SegmentHeader, number: int) -> None:
        reason = self.why_foreign(header, number)
        if reason is not None:
            raise Conflict(
                f"{self._layout.segment(number)} does not belong here: {reason}",
                hint=_WAY_OUT,
                context={"found": str(header.log_id), "expected": str(self.log_id)},
            )

    def require_continued(self, header: SegmentHeader, view: memoryview) -> None:
        """Raise Conflict when the next segment was begun behind another file than this one."""
        following = self._header(header.number + 1)
        if following is not None:
            self._require_link(header, read_link(view, header), following)

    def require_continues(self, header: SegmentHeader) -> SegmentHeader:
        """The segment before; Conflict when it is not the one that this one was begun behind."""
        view = self._files.map(self._layout.segment(header.number - 1))
        before = self.own_header(header.number - 1, view)
        self._require_link(before, read_link(view, before), header)
        return before

    def _require_link(
        self, header: SegmentHeader, found: int | None, following: SegmentHeader
    ) -> None:
        if is_linked(found, following):
            return
        paths = [self._layout.segment(one.number) for one in (header, following)]
        raise Conflict(
            f"{paths[0]} and {paths[1]} do not belong together: the second continues another "
            f"segment {header.number} of log {self.log_id}, as a copy of the log has one",
            hint=_WAY_OUT,
            context={"found": f"{found:016x}", "expected": f"{following.previous:016x}"},
        )

    def _header(self, number: int) -> SegmentHeader | None:
        """A segment's header, if it is there, whole and this log's."""
        try:
            start = self._files.read_start(self._layout.segment(number), HEADER_BYTES)
            header = read_segment_header(memoryview(start))
        except (FileNotFoundError, BadSegment):
            return None
        return header if self.why_foreign(header, number) is None else None

    def first_segment(self, numbers: Collection[int], end: DurableEnd) -> int:
        """The log's first segment: where `durable` says, or before, while the files go on.

        A crash may have come between that file and a removal, or the file may be wrong. Both look
        the same, so what is still there counts; retention, which is told what is committed,
        removes it again.
        """
        first = end.first_segment
        while first - 1 in numbers and self._is_whole(first - 1):
            first -= 1
        return first

    def _is_whole(self, number: int) -> bool:
        try:
            view = self._files.map(self._layout.segment(number))
            header = read_segment_header(view)
        except (FileNotFoundError, BadSegment):
            return False
        found, following = read_link(view, header), self._header(number + 1)
        is_own = self.why_foreign(header, number) is None and found is not None
        return is_own and following is not None and is_linked(found, following)

    def misplaced(
        self, newest_first: Iterable[tuple[int, memoryview | None]], durable: DurableEnd
    ) -> dict[int, str]:
        """The segments that do not belong in their places, and why.

        The durable end vouches for its segment, and from there each one for the one before it.
        """
        found: dict[int, str] = {}
        following: SegmentHeader | None = None
        for number, view in newest_first:
            header = None if view is None else find_header(view, self.log_id, number)
            if view is None or header is None:
                following = None
                continue
            reason = self.why_foreign(header, number)
            is_unlinked = following is not None and not is_linked(
                find_link(view, header), following
            )
            if number == durable.segment and reason is None:
                if not is_spoken_of(header, durable.salt):
                    reason = f"it is not the file that {self._layout.durable} speaks of"
                elif is_unlinked:
                    found[number + 1] = f"it continues another segment {number}"
            elif is_unlinked and reason is None:
                reason = f"it is not the segment {number} that segment {number + 1} continues"
            if reason is not None:
                found[number] = reason
            following = header if reason is None else None
        return found


def find_header(view: memoryview, log_id: UUID, number: int) -> SegmentHeader | None:
    """The header; a damaged one is made up from the first whole frame, which knows the salt."""
    try:
        return read_segment_header(view)
    except BadSegment:
        pass
    for position in candidates(view, HEADER_BYTES):
        salt = salt_at(view, position)
        try:
            read_frame(view, position, salt)
        except BadFrame:
            continue
        return SegmentHeader(log_id, number, salt, 0)
    return None


def find_link(view: memoryview, header: SegmentHeader) -> int | None:
    """The link of a segment whose header may be made up; None when nobody can know it.

    A repaired segment goes by a link that lies in its header alone, any other by its seal.
    """
    try:
        return read_link(view, read_segment_header(view))
    except BadSegment:
        return None if _may_be_repaired(view, header.salt) else read_link(view, header)


def _may_be_repaired(view: memoryview, salt: int) -> bool:
    """Whether all frames are as a repair writes them, each with all before it synced. A writer
    begins a segment with several in one write: a schema or a stream comes twice."""
    frames = later_headers(view, HEADER_BYTES, salt)
    return all(h.durable == h.position for h in frames if h.kind not in (Kind.STATE, Kind.INDEX))


def is_linked(found: int | None, following: SegmentHeader) -> bool:
    """Whether nothing speaks against it that `following` was begun behind the link `found`."""
    return found is None or not following.previous or found == following.previous


def is_spoken_of(header: SegmentHeader, salt: int) -> bool:
    """Whether a durable end with this salt speaks of the file, or of one that a repair replaced."""
    return salt in (header.salt, header.replaces)
