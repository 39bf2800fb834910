"""DoGet of a question in SQL: its answer, batch by batch, ended when the client goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from calve.ingest.answering import facts_of
from calve.ingest.flight.calls import stopping
from calve.protocol.queries import FACTS
from calve.query.queries import Question

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from calve.access import Caller
    from calve.ingest.flight.calls import Call
    from calve.ingest.intake import Intake
    from calve.protocol.queries import QueryTicket

_PIECE_BYTES: Final = 1 << 20


class FlightAnswer:
    """The answer to a ticket, worked out as far as its columns."""

    def __init__(self, intake: Intake, wanted: QueryTicket, caller: Caller, context: Any) -> None:
        question = Question(
            wanted.sql,
            wanted.parameters,
            wanted.fresh,
            caller.share(caller.address),
            wanted.tenant,
            caller,
        )
        is_valid = intake.doorkeeper.is_valid
        self._is_over = lambda: context.is_cancelled() or not is_valid(caller)
        self._answer = intake.queries.ask(question, self._is_over)
        facts = msgspec.json.encode(facts_of(self._answer))
        self.schema: pa.Schema = self._answer.schema.with_metadata({FACTS: facts})

    def batches(self, _: Any, call: Call) -> Iterator[pa.RecordBatch]:
        call.is_busy = True
        for batch in self._answer.batches(self._is_over):
            # Arrow copies a message on its way to the client.
            step = max(1, batch.num_rows * _PIECE_BYTES // max(1, batch.nbytes))
            for start in range(0, batch.num_rows, step):
                if call.is_ending:
                    raise stopping()
                yield batch.slice(start, step).cast(self.schema)
