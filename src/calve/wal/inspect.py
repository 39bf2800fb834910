"""A log at a glance, as plain data: who it is, its segments and damage in them, its topics.

Works beside a writer, and on a damaged log as far as that can be read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

from calve.errors import CalveError, Corruption, NotFound
from calve.wal.chain import SegmentChain
from calve.wal.durable import read_durable
from calve.wal.identity import read_identity
from calve.wal.layout import segment_numbers
from calve.wal.reader import LogReader
from calve.wal.segment import BadSegment, index_position, read_segment_header
from calve.wal.survey import survey

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

    from calve.wal.files import Files
    from calve.wal.layout import LogLayout
    from calve.wal.survey import Damage


@dataclass(frozen=True, slots=True)
class SegmentDescription:
    number: int
    file: str
    bytes: int
    is_sealed: bool
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class StreamDescription:
    topic: str
    partition: int
    stream_id: UUID
    first_offset: int
    durable_offset: int


@dataclass(frozen=True, slots=True)
class LogDescription:
    path: Path
    log_id: UUID
    format_version: int
    created_at: datetime
    has_writer: bool
    bytes: int
    segments: list[SegmentDescription]
    streams: list[StreamDescription]
    problem: str | None = None


def require_log(files: Files, layout: LogLayout) -> None:
    if files.exists(layout.root) and segment_numbers(files, layout):
        return
    if files.exists(layout.identity) or files.exists(layout.durable):
        raise Corruption(
            f"{layout.root} holds a log without any segment",
            hint="bring back the directory from a copy; if it is lost, move it aside: the next "
            "append begins a new log",
            context={"file": str(layout.root)},
        )
    raise NotFound(
        f"{layout.root} holds no log",
        hint="--data names the lake's directory; its log is made by the first append",
    )


def describe_log(files: Files, layout: LogLayout, *, check: bool = True) -> LogDescription:
    """With `check`, every frame is looked at; without, damage inside of a segment is not seen."""
    require_log(files, layout)
    identity = read_identity(files, layout)
    segments = list(_describe_segments(files, layout))
    streams, problem = _describe_streams(files, layout)
    if check:
        damages = _damages(files, layout)
        found = {each.file: damages.pop(each.file, None) for each in segments}
        segments = [replace(each, problem=each.problem or found[each.file]) for each in segments]
        elsewhere = [f"{file} is {text}" for file, text in damages.items()]
        problem = problem or "; ".join(elsewhere) or None
    return LogDescription(
        path=layout.root,
        log_id=identity.log_id,
        format_version=identity.format_version,
        created_at=identity.created_at,
        has_writer=_has_writer(files, layout),
        bytes=sum(segment.bytes for segment in segments),
        segments=segments,
        streams=streams,
        problem=problem,
    )


def _describe_segments(files: Files, layout: LogLayout) -> Iterator[SegmentDescription]:
    chain = SegmentChain(files, layout, read_identity(files, layout).log_id)
    numbers = segment_numbers(files, layout)
    unsettled = _first_unsettled(files, layout, numbers)
    for number in numbers:
        path = layout.segment(number)
        try:
            view = files.map(path) if number < unsettled else memoryview(files.read_start(path))
        except FileNotFoundError:
            continue  # retention was faster
        yield _describe_segment(path.name, number, view, chain)


def _first_unsettled(files: Files, layout: LogLayout, numbers: list[int]) -> int:
    """From here on a writer may cut segments short: they are read, not mapped."""
    try:
        return read_durable(files, layout.durable).segment
    except Corruption:
        return numbers[-1]


def _describe_segment(
    name: str, number: int, view: memoryview, chain: SegmentChain
) -> SegmentDescription:
    try:
        header = read_segment_header(view)
    except BadSegment as error:
        return SegmentDescription(number, name, len(view), is_sealed=False, problem=error.reason)
    is_sealed = index_position(view, header.salt) is not None
    problem = chain.why_foreign(header, number)
    return SegmentDescription(number, name, len(view), is_sealed=is_sealed, problem=problem)


def _damages(files: Files, layout: LogLayout) -> dict[str, str]:
    """By file, the first damage in it and how many more there are."""
    found: dict[str, list[Damage]] = {}
    for damage in survey(files, layout).damages:
        found.setdefault(damage.path.name, []).append(damage)
    return {
        file: f"damaged at byte {first.begin}: {first.reason}"
        + (f", and in {len(others)} more places" if others else "")
        for file, (first, *others) in found.items()
    }


def _describe_streams(
    files: Files, layout: LogLayout
) -> tuple[list[StreamDescription], str | None]:
    try:
        with LogReader(layout.root, files=files) as reader:
            return [
                StreamDescription(
                    str(stream.topic), stream.partition, stream.id, *reader.offsets(stream)
                )
                for stream in sorted(reader.streams, key=lambda s: (s.topic, s.partition))
            ], None
    except CalveError as error:
        return [], error.message


def _has_writer(files: Files, layout: LogLayout) -> bool:
    return files.exists(layout.lock) and files.is_locked(layout.lock)
