"""Dead letters sent through the topic's front door again, each exactly once.

Round by round: it is written down in the dead-letter table which rows go where, they are appended
under producers that follow from that, and one commit removes them and the note. Killed anywhere,
the next call goes on with the round that it finds; two at once work on the same round.

Exactly once as long as the log remembers the round's producers: it forgets those that were silent
longest, when very many others have sent since.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from calve.errors import Conflict, InvalidRequest
from calve.ingest.dead_letters.again import ReadAgain
from calve.ingest.dead_letters.letters import LetterScan
from calve.ingest.dead_letters.plan import next_chunks
from calve.ingest.dead_letters.rounds import NO_ROUND, Chunk, Round, round_under_way
from calve.ingest.dead_letters.views import Replayed, Selection
from calve.ingest.formats import KnownTypes
from calve.tables.commit import Committed, TableCommit
from calve.tables.data_files import new_operation_id
from calve.tables.staging import Edit
from calve.wal import Rejected

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from pyiceberg.table import Table

    from calve.ingest.intake import Intake
    from calve.model import TableName
    from calve.tables.catalog import LakeCatalog

REASONS_SHOWN: Final = 5


class _Sent(NamedTuple):
    rows: int = 0
    rejected: int = 0
    reasons: tuple[str, ...] = ()

    def plus(self, read: ReadAgain) -> _Sent:
        reasons = [*self.reasons, *(each.reason for each in read.rejected)]
        return _Sent(
            self.rows + read.row_count,
            self.rejected + len(read.rejected),
            tuple(dict.fromkeys(reasons))[:REASONS_SHOWN],
        )


class Replay:
    """Rounds of one topic's dead letters. For several threads and processes at once."""

    def __init__(
        self, intake: Intake, catalog: LakeCatalog, topic: TableName, table: Callable[[], Table]
    ) -> None:
        self._intake = intake
        self._catalog = catalog
        self._topic = topic
        self._table = table

    def try_out(self, selection: Selection, ends: Mapping[int, int]) -> Replayed:
        """What a round would do, without doing it."""
        table = self._table()
        chunks = next_chunks(LetterScan(table, selection, ends))
        sent = _Sent()
        for chunk in chunks:
            sent = sent.plus(self._read(table, chunk))
        return self._replayed(sent, ends, is_done=not chunks, dry_run=True)

    def run_round(self, selection: Selection, ends: Mapping[int, int]) -> Replayed:
        """Finish the round that is under way, or begin and finish the next one."""
        table = self._table()
        found = round_under_way(table.properties)
        if found is None:
            chunks = next_chunks(LetterScan(table, selection, ends))
            if not chunks:
                return self._replayed(_Sent(), ends, is_done=True)
            found, table = self._begun(table, chunks)
        self._require_here(found)
        sent = _Sent()
        for number, chunk in enumerate(found.chunks):
            sent = self._send(table, found.producer(number), chunk, sent)
        self._make_durable()
        self._finish(found)
        return self._replayed(sent, ends, is_done=False)

    def give_up_round(self) -> None:
        """Forget a round that cannot be finished, because the log that it went to is lost."""
        self._noted(self._table(), lambda _: NO_ROUND)

    def _replayed(
        self, sent: _Sent, ends: Mapping[int, int], *, is_done: bool, dry_run: bool = False
    ) -> Replayed:
        return Replayed(
            topic=str(self._topic),
            rows=sent.rows,
            rejected=sent.rejected,
            reasons=list(sent.reasons),
            is_done=is_done,
            ends=dict(ends),
            dry_run=dry_run,
        )

    def _begun(self, table: Table, chunks: Sequence[Chunk]) -> tuple[Round, Table]:
        """A new round, or the one that somebody else was faster with; and the table that has it."""
        wanted = Round(
            id=uuid4(),
            stream=self._stream(),
            to_partition=self._intake.partition,
            chunks=tuple(chunks),
        )

        def note(current: Table) -> Mapping[str, str]:
            return {} if round_under_way(current.properties) else wanted.entry()

        noted = self._noted(table, note)
        found = round_under_way(noted.properties)
        assert found is not None
        return found, noted

    def _noted(self, table: Table, note: Callable[[Table], Mapping[str, str]]) -> Table:
        """Set a property together with a snapshot, or leave the table as it is."""
        commit = TableCommit(table, is_told_otherwise=True)
        summary = {"calve.operation": new_operation_id("replay")}

        def attempt() -> Committed | None:
            properties = note(commit.table)
            if not properties:
                return None
            return commit.attempt(Edit(summary=summary, properties=properties))

        commit.reload()
        done = commit.repeat(attempt)
        return done.table if done else commit.table

    def _stream(self) -> UUID:
        """The identity of the topic's stream here; made if no row has come in here yet."""
        self._intake.topics.topic(self._topic)
        self._intake.offsets(self._topic)
        binding = self._intake.topics.topic(self._topic).partitions[self._intake.partition]
        return binding.stream_id

    def _require_here(self, found: Round) -> None:
        if found.stream == self._stream():
            return
        raise Conflict(
            f"a replay of dead letters of {self._topic} is under way, into partition "
            f"{found.to_partition} with the stream {found.stream}, which is not here",
            hint="run it again at the node that has that log; if the log is lost or the topic was "
            "made anew, --give-up (give_up=True) forgets the replay, and its rows may come twice",
            context={"stream": str(found.stream), "partition": str(found.to_partition)},
        )

    def _send(self, table: Table, producer: str, chunk: Chunk, sent: _Sent) -> _Sent:
        """Append a chunk, unless it was before; rows that are gone by now are left out."""
        read = self._read(table, chunk)
        if not read.parts:
            return sent
        try:
            pending = self._intake.submit(self._topic, read.parts, producer=producer, sequence=0)
            pending.wait()
        except InvalidRequest as error:
            # Each row fits, and all together do not; what is set aside fits always.
            read = self._set_aside(table, chunk, error.message)
            self._intake.submit(self._topic, read.parts, producer=producer, sequence=0).wait()
        return sent.plus(read)

    def _read(self, table: Table, chunk: Chunk) -> ReadAgain:
        topic = self._intake.topics.topic(self._topic)
        bytes_max = self._intake.settings.ingest.request_bytes_max
        read = ReadAgain(KnownTypes.of(topic), bytes_max)
        for content_type, originals in _originals(table, chunk).items():
            read.add(originals, content_type)
        return read

    def _set_aside(self, table: Table, chunk: Chunk, reason: str) -> ReadAgain:
        read = ReadAgain(KnownTypes(), 0)
        for content_type, originals in _originals(table, chunk).items():
            read.rejected += [Rejected(each, content_type, reason) for each in originals]
        return read

    def _make_durable(self) -> None:
        """Whatever the log's mode of syncing: when they leave here, nobody else has the rows."""
        self._intake.sync()

    def _finish(self, found: Round) -> None:
        """Remove what was sent, and the note of it, in one commit."""
        from calve.changes import delete_offsets

        def settled(table: Table) -> dict[str, str]:
            current = round_under_way(table.properties)
            return dict(NO_ROUND) if current is not None and current.id == found.id else {}

        delete_offsets(
            self._catalog,
            self._topic.dead_letters,
            found.offsets,
            operation="replay",
            settled=settled,
        )


def _originals(table: Table, chunk: Chunk) -> dict[str, list[bytes]]:
    """What is there of a chunk, by content type."""
    wanted = Selection(offsets=chunk.offsets, partition=chunk.partition)
    found: defaultdict[str, list[bytes]] = defaultdict(list)
    for batch in LetterScan(table, wanted).batches(("content_type", "original")):
        types, originals = (batch.column(name).to_pylist() for name in batch.schema.names)
        for content_type, original in zip(types, originals, strict=True):
            found[content_type].append(original)
    return found
