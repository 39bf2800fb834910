"""One DoPut stream of the client: written by one thread, its acknowledgements read by another."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from calve.errors import CalveError, Unavailable
from calve.protocol import Answer, PutMetadata, error_of
from calve.protocol.flight_errors import translated

if TYPE_CHECKING:
    from collections.abc import Callable

    from calve.client.link import Link

_ANSWERS: Final = msgspec.json.Decoder(Answer)


class Stream:
    def __init__(
        self,
        link: Link,
        topic: str,
        schema: pa.Schema,
        *,
        answered: Callable[[Stream, Answer], None],
        ended: Callable[[], None],
    ) -> None:
        """`answered` and `ended` are called from the thread that reads."""
        self.schema = schema
        self.is_over = False
        self.is_deserted = False
        self.answered_count = 0
        self._url = link.url
        self._writer, self._reader = link.put(topic, schema)
        self._answered = answered
        self._ended = ended
        self._problem: CalveError | None = None
        self._thread = threading.Thread(
            target=self._read_all, name="calve-client-answers", daemon=True
        )
        self._thread.start()

    def send(self, rows: pa.RecordBatch, metadata: PutMetadata) -> None:
        """Write a batch; raises nothing if the stream is broken: it is over then."""
        try:
            self._writer.write_with_metadata(rows, msgspec.json.encode(metadata))
        except (pa.ArrowException, OSError):
            self.is_over = True

    def end(self) -> CalveError | None:
        """Say that nothing more comes, and wait for what is still to be acknowledged."""
        try:
            self._writer.done_writing()
        except (pa.ArrowException, OSError):
            self.is_over = True
        return self.failure()

    def desert(self) -> None:
        """Leave the stream to its reading thread, which closes it when it ends, if ever."""
        self.is_deserted = True

    def failure(self) -> CalveError | None:
        """Why the stream is over; for the thread that writes."""
        self._thread.join()
        status = self._close()
        return self._problem or status

    def _close(self) -> CalveError | None:
        try:
            self._writer.close()
        except (pa.ArrowException, OSError) as error:
            return translated(error, self._url)
        return None

    def _read_all(self) -> None:
        try:
            while (content := self._reader.read()) is not None:
                answer = _ANSWERS.decode(memoryview(content))
                if isinstance(answer.problem, msgspec.UnsetType):
                    self._answered(self, answer)
                else:
                    self._problem = error_of(answer.problem)
                    break
        except (pa.ArrowException, OSError):
            pass  # `failure` asks for the reason
        except msgspec.MsgspecError as error:
            self._problem = Unavailable(f"{self._url} is no service of Calve: {error}")
        self.is_over = True
        if self.is_deserted:
            self._close()
        self._ended()
