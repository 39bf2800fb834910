"""The entries of a range of a partition's log: from its directory, else from a service.

Both ways give the same entries, in order and without a gap, or an error of Calve's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from calve.errors import CalveError, Conflict, NotFound, Unavailable
from calve.protocol import Frames
from calve.protocol.flight_errors import Translating
from calve.sources.asking import call_options, connect
from calve.wal import Entry, Kind, LogReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from calve.settings import Secret
    from calve.sources.place import LogPlace, LogSpan
    from calve.wal import Stream

# A mapped segment that was read counts as memory until it is let go.
_MAPPED_MAX: Final = 2


class Sources:
    """The logs that a task reads, each opened once. A context manager, for one thread."""

    def __init__(self, token: Secret | None = None) -> None:
        """`token` is for services that need one, where a span has no ticket."""
        self._token = token
        self._readers: dict[str, LogReader | CalveError] = {}
        self._clients: dict[str, Any] = {}

    def entries(self, span: LogSpan) -> Iterator[Entry]:
        """Every entry of the span; Unavailable if the log is not there to its end."""
        reached = span.start
        for entry in self._entries(span):
            if entry.first_offset != reached:
                break
            yield entry
            reached = entry.end_offset
        if reached != span.end:
            raise Unavailable(
                f"the log of {span.topic}, partition {span.partition}, was read from "
                f"{span.start} and ended at {reached}, before {span.end}",
                hint="it may be behind a copy of itself; the next attempt reads it anew",
            )

    def _entries(self, span: LogSpan) -> Iterator[Entry]:
        reader = self._reader(span.place.directory)
        if isinstance(reader, LogReader) and reader.log_id == span.place.log_id:
            return reader.read(_stream(reader, span), span.start, span.end)
        if span.place.flight is None:
            raise _not_here(span.place, reader)
        return self._frames(span, span.place.flight)

    def _reader(self, directory: str) -> LogReader | CalveError:
        found = self._readers.get(directory)
        if found is None:
            found = self._readers[directory] = _opened(Path(directory))
        return found

    def _frames(self, span: LogSpan, url: str) -> Iterator[Entry]:
        from pyarrow import flight

        ticket = flight.Ticket(span.ticket or msgspec.json.encode(span.range))
        with Translating(url):
            if url not in self._clients:
                self._clients[url] = connect(url, span.place.tls)
            stream = self._clients[url].do_get(ticket, call_options(self._token))
            for chunk in stream:
                yield from _decoded(chunk.data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for reader in self._readers.values():
            if isinstance(reader, LogReader):
                reader.close()
        for client in self._clients.values():
            client.close()


def _opened(directory: Path) -> LogReader | CalveError:
    try:
        return LogReader(directory, mapped_max=_MAPPED_MAX)
    except NotFound as error:
        return error
    except OSError as error:
        return NotFound(f"{directory} cannot be read: {error.strerror}")


def _stream(reader: LogReader, span: LogSpan) -> Stream:
    stream = reader.stream(span.topic, span.partition)
    if stream.id != span.place.stream_id:
        raise Conflict(
            f"{stream.name} is stream {stream.id} in the log, but {span.place.stream_id} was "
            "expected",
            hint="the topic was deleted and made again; what is left of its table is its own",
            context={"found": str(stream.id), "expected": str(span.place.stream_id)},
        )
    return stream


def _not_here(place: LogPlace, found: LogReader | CalveError) -> NotFound:
    reason = f"it holds log {found.log_id}" if isinstance(found, LogReader) else found.message
    return NotFound(
        f"log {place.log_id} is not in {place.directory}: {reason}",
        hint="let every executor see the log's directory, or name the service that has it",
        context={"expected": str(place.log_id)},
    )


def _decoded(frames: pa.RecordBatch) -> Iterator[Entry]:
    assert frames.schema.equals(Frames.SCHEMA)
    columns = [frames.column(field.name) for field in Frames.SCHEMA]
    for row in zip(*columns, strict=True):
        kind, first, end, ingested_at_us, content_sum, payload = row
        yield Entry(
            Kind[kind.as_py().upper()],
            first.as_py(),
            end.as_py(),
            ingested_at_us.as_py(),
            _batch(payload.as_buffer()) if payload.is_valid else None,
            content_sum.as_py(),
        )


def _batch(payload: pa.Buffer) -> pa.RecordBatch:
    with pa.ipc.open_stream(payload) as reader:
        return reader.read_next_batch()
