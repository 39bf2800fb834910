"""One DoPut stream: batches in, an acknowledgement for each, in order, when it is durable.

The thread that reads submits. A producer that waits for each acknowledgement gets it from that
same thread, which is faster; one that sends on is answered by a second thread, so that reading
goes on while the log syncs. What is under way is bounded in number and bytes: over it reading
pauses, and gRPC makes the sender wait.
"""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from calve.errors import CalveError, InvalidRequest, Overloaded
from calve.ingest.flight.calls import stopping
from calve.ingest.flight.pace import Pace
from calve.ingest.refusals import as_refusal
from calve.protocol import Answer, PutMetadata, problem_of
from calve.protocol.flight import BATCH_KEY, decode
from calve.wal import Acknowledgement

if TYPE_CHECKING:
    from calve.ingest.flight.calls import Call
    from calve.ingest.flight.turns import Speaker
    from calve.ingest.intake import Intake
    from calve.wal import PendingAppend

OUTSTANDING_MAX: Final = 256  # as many as the log knows of a producer by number
# More is not faster: it would only be memory that the log has not written yet.
OUTSTANDING_BYTES_MAX: Final = 2 << 20
_REFUSED_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 0.01
_encoded: Final = msgspec.json.Encoder().encode


class _Due(NamedTuple):
    """An answer that is owed."""

    place: int  # of the batch in its stream
    pending: PendingAppend | Acknowledgement
    content_bytes: int  # which are admitted


class PutStream:
    def __init__(
        self, intake: Intake, call: Call, speaker: Speaker, reader: Any, writer: Any
    ) -> None:
        self._intake = intake
        self._admission = intake.admission
        self._client = call.caller.share(call.peer.address)
        self._caller = call.caller
        self._name = speaker.name
        self._speaker = speaker
        self._call = call
        self._reader = reader
        self._writer = writer
        self._bytes_max = intake.settings.ingest.request_bytes_max
        self._identity = _Identity()
        self._due: SimpleQueue[_Due | None] = SimpleQueue()
        self._answered = threading.Condition()
        self._failure: CalveError | None = None
        self._outstanding_bytes = 0
        self._pace = Pace()
        self._place = 0
        # A client may have an answer, and send on, before its write has returned: so it counts as
        # given from its beginning. Who sees that answers the next batch, but not before this lock.
        self._writing = threading.Lock()
        self._answers_begun = 0
        self._is_gone = False  # the client's end of the stream
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Until the client has sent everything, and has every answer."""
        refusal: CalveError | None = None
        try:
            while self._failure is None and self._take_one():
                pass
        except CalveError as error:
            refusal = _placed(error, self._place)
        finally:
            self._finish()
            self._speaker.close()
        failure = self._failure or refusal
        if failure is not None:
            raise failure

    def _take_one(self) -> bool:
        begun = time.perf_counter()
        chunk = self._next_chunk()
        if chunk is None:
            return False
        read_seconds = time.perf_counter() - begun
        batch, metadata = chunk.data, chunk.app_metadata
        if batch is None:
            self._identity.note(metadata)
            return True
        content_bytes = self._accepted_bytes(batch)
        is_owed = self._place > self._answers_begun
        goes_on = self._pace.goes_on(read_seconds, content_bytes, is_owed=is_owed)
        due = self._submitted(batch, content_bytes, *self._identity.of(metadata))
        if goes_on:
            self._hand_over(due)
        else:
            self._answer(due)
        self._place += 1
        return True

    def _next_chunk(self) -> Any:
        try:
            return self._reader.read_chunk()
        except StopIteration:
            return None
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(
                f"the batch cannot be read as Arrow: {error}",
                hint="send record batches of the stream's schema",
            ) from error

    def _accepted_bytes(self, batch: pa.RecordBatch) -> int:
        content_bytes: int = batch.get_total_buffer_size()
        self._call.delivered(content_bytes, batch.num_columns)
        if self._call.is_ending:
            raise stopping()
        self._intake.doorkeeper.recheck(self._caller)
        if content_bytes > self._bytes_max:
            pa.default_memory_pool().release_unused()  # a small message may have become large
            raise InvalidRequest(
                f"a batch of {content_bytes} bytes is too large: {self._bytes_max} are the most "
                "(ingest.request_bytes_max)",
                hint="send the rows in smaller batches",
                context={"bytes_max": str(self._bytes_max)},
            )
        return content_bytes

    def _submitted(
        self, batch: pa.RecordBatch, content_bytes: int, producer: str | None, sequence: int | None
    ) -> _Due:
        """Submit the batch. It is here already: so wait a while for room before it is refused."""
        self._begin_one(content_bytes)
        deadline: float | None = None
        try:
            while True:
                try:
                    return self._submit(batch, content_bytes, producer, sequence)
                except Overloaded:
                    now = time.monotonic()
                    deadline = deadline or now + _REFUSED_SECONDS
                    if self._call.outstanding == 1 and now > deadline:
                        raise
                    self._pause()
        except BaseException:
            self._end_one(content_bytes)
            raise

    def _submit(
        self, batch: pa.RecordBatch, content_bytes: int, producer: str | None, sequence: int | None
    ) -> _Due:
        self._admission.take(self._client, content_bytes)
        try:
            return _Due(self._place, self._append(batch, producer, sequence), content_bytes)
        except BaseException:
            self._admission.give_back(self._client, content_bytes)
            raise

    def _append(
        self, batch: pa.RecordBatch, producer: str | None, sequence: int | None
    ) -> PendingAppend | Acknowledgement:
        submit = self._intake.submit
        if producer is None:
            return submit(self._name, batch, sequence=sequence)
        turn = self._speaker.turn(producer)
        with turn.lock:
            turn.require(self._speaker, producer)
            try:
                return submit(self._name, batch, producer=producer, sequence=sequence)
            except InvalidRequest:
                repeat = self._intake.repeated(self._name, producer, sequence)
                if repeat is None:
                    raise
                return repeat

    def _has_room(self, content_bytes: int) -> bool:
        """A batch that is alone may be as large as it is."""
        return not self._call.outstanding or (
            self._call.outstanding < OUTSTANDING_MAX
            and self._outstanding_bytes + content_bytes <= OUTSTANDING_BYTES_MAX
        )

    def _begin_one(self, content_bytes: int) -> None:
        with self._answered:
            if self._call.outstanding:
                self._answered.wait_for(lambda: self._has_room(content_bytes))
            self._call.outstanding += 1
            self._outstanding_bytes += content_bytes

    def _pause(self) -> None:
        with self._answered:
            self._answered.wait(_PAUSE_SECONDS)

    def _end_one(self, content_bytes: int) -> None:
        with self._answered:
            self._call.outstanding -= 1
            self._outstanding_bytes -= content_bytes
            if self._thread is not None:  # or nobody else can wait
                self._answered.notify_all()

    def _hand_over(self, due: _Due) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._answer_all, name="calve-flight-answers", daemon=True
            )
            self._thread.start()
        self._due.put(due)

    def _answer_all(self) -> None:
        while (due := self._due.get()) is not None:
            self._answer(due)

    def _answer(self, due: _Due) -> None:
        """Wait until the batch is durable, and tell the client; or tell what went wrong."""
        try:
            try:
                pending = due.pending
                done = pending if isinstance(pending, Acknowledgement) else pending.wait()
            except CalveError as error:
                self._fail(_placed(as_refusal(error), due.place))
                return
            finally:
                self._admission.give_back(self._client, due.content_bytes)
            if self._failure is None:
                self._write(Answer(done.first, done.end, done.is_repeat))
        finally:
            self._end_one(due.content_bytes)

    def _fail(self, error: CalveError) -> None:
        """The reading thread may wait for a message that never comes: so tell it at once."""
        if self._failure is None:
            self._failure = error
            if threading.current_thread() is self._thread:
                self._write(Answer(problem=problem_of(error)))

    def _write(self, answer: Answer) -> None:
        if self._is_gone:
            return
        try:
            with self._writing:
                self._answers_begun += 1
                self._writer.write(_encoded(answer))
            self._call.touch()
        except (pa.ArrowException, OSError):
            self._is_gone = True  # the rows are durable, and nobody is left to be told

    def _finish(self) -> None:
        if self._thread is not None:
            self._due.put(None)
            self._thread.join()


def _placed(error: CalveError, place: int) -> CalveError:
    """The error with the batch that it is about: answers to those before may be lost on the way."""
    context = {**error.context, BATCH_KEY: str(place)}
    return type(error)(error.message, hint=error.hint, context=context)


class _Identity:
    """Who sends: given with each batch, or once and then counted up."""

    __slots__ = ("_producer", "_sequence")

    def __init__(self) -> None:
        self._producer: str | None = None
        self._sequence: int | None = None

    def note(self, metadata: Any) -> None:
        """Metadata without a batch: it speaks of the next one."""
        self.of(metadata)
        if self._sequence is not None:
            self._sequence -= 1

    def of(self, metadata: Any) -> tuple[str | None, int | None]:
        if metadata is not None and metadata.size:
            given = decode(memoryview(metadata), PutMetadata, what="a batch's metadata")
            self._producer = given.producer if given.producer is not None else self._producer
            self._sequence = given.sequence
        elif self._sequence is not None:
            self._sequence += 1
        return self._producer, self._sequence
