"""Requests of OTLP into the log: admitted, decoded, appended, and acknowledged when all is durable.

One request may fill several tables, each of which is a topic. It is acknowledged when every one of
them has its rows; a sender that is told to retry may repeat what one of them has already.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from calve.errors import CalveError, InvalidRequest, UnknownOutcome
from calve.ingest.ensuring import ensure_topic
from calve.ingest.otlp.decoding import Decoded, decode, decode_together, read_message
from calve.ingest.otlp.gathering import Call, Gathering
from calve.ingest.otlp.promotion import with_promoted
from calve.ingest.otlp.storage import file_properties
from calve.ingest.otlp.tables import TABLES
from calve.ingest.otlp.weight import weight, weight_to_parse
from calve.ingest.refusals import refusing
from calve.model import DEFAULT_TENANT, TableName
from calve.topics.topic import TopicSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calve.access import Caller
    from calve.ingest.admission import Admitted
    from calve.ingest.intake import Intake
    from calve.wal.payload import Part

DATASET_HEADER: Final = "x-calve-dataset"
_REASONS_MAX: Final = 5
_SPECS: Final = {
    table.name: TopicSpec(
        schema=table.schema,
        partition_by=table.partition_by,
        sort_by=table.sort_by,
        properties=file_properties(table.schema),
    )
    for table in TABLES.values()
}


class Taken(NamedTuple):
    """What became of a request: how many records were rejected, and some of the reasons.

    There may be something to say although none was.
    """

    rejected: int
    reason: str

    @classmethod
    def of(cls, parts: Sequence[Decoded]) -> Taken:
        rejected = [each for part in parts for each in part.rejected]
        reasons = list(dict.fromkeys(each.reason for each in rejected))
        reasons += sorted({each for part in parts for each in part.remarks})
        more = f" and {len(reasons) - _REASONS_MAX} more" if len(reasons) > _REASONS_MAX else ""
        return cls(len(rejected), "; ".join(reasons[:_REASONS_MAX]) + more)


_Call: TypeAlias = Call[Taken | CalveError]
_GROUP_BYTES_MAX: Final = 1 << 20
_gathering: Final[Gathering[Taken | CalveError]] = Gathering(_GROUP_BYTES_MAX)
# Threads that decode beside each other would wake each other at every call that lets go of the
# interpreter, which is for a third of the processor's time.
_turns: Final = threading.Lock()


class _Sender(NamedTuple):
    """Who sends, and what of."""

    signal: str
    tenant: str
    dataset: str
    caller: Caller

    @property
    def kind(self) -> tuple[str | None, ...]:
        """The same for those whose requests may be stored as one."""
        return (self.signal, self.tenant, self.dataset, self.caller.token_id)

    def table(self, part: Decoded) -> TableName:
        name = TableName(self.tenant, self.dataset, part.table.name)
        self.caller.require_seen(name)
        return name


class _Ready(NamedTuple):
    """What is to be appended to each topic, and what its sender is to be told then."""

    rows: list[tuple[TableName, Part | list[Part]]]
    taken: Taken


class Telemetry:
    """Takes requests into one intake. Safe to share between threads."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    def take(
        self,
        signal: str,
        body: bytes,
        *,
        caller: Caller,
        dataset: str | None,
        admitted: Admitted,
    ) -> Taken:
        """Return when every record of a request in protobuf is durable, stored or rejected.

        Tables are the caller's tenant's; its own dataset, unless `dataset` names another.
        `admitted` holds the body's bytes; it stays the caller's to release.
        """
        tenant = caller.only_tenant or DEFAULT_TENANT
        sender = _Sender(signal, tenant, dataset or caller.dataset, caller)
        if self._intake.limits is not None:
            self._intake.limits.require_room(tenant)
        to_parse = weight_to_parse(body)
        admitted.grow(to_parse)
        message = read_message(signal, body)
        admitted.grow(max(0, weight(signal, message, len(body)) - to_parse))
        if len(body) > _GROUP_BYTES_MAX:  # it takes no turn, so that nobody waits for it
            return self._append(self._ready(sender, decode(signal, message), len(body)))
        return self._take_in_turn(sender, Call((self._intake, sender.kind), message, len(body)))

    def _take_in_turn(self, sender: _Sender, call: _Call) -> Taken:
        while call.outcome is None:
            if group := _gathering.group(call):
                self._lead(group, sender)
        if isinstance(call.outcome, CalveError):
            raise copy(call.outcome) from call.outcome.__cause__
        return call.outcome

    def _lead(self, group: Sequence[_Call], sender: _Sender) -> None:
        """Store all that a group holds; or nothing of it, so that each goes on alone."""
        with _gathering.leading(group):
            with _turns:
                parts = _decoded(sender.signal, [each.message for each in group])
            body_bytes = sum(each.body_bytes for each in group)
            ready = None
            if len(group) == 1:
                ready = self._ready(sender, parts or [], body_bytes)
            elif parts is not None:
                with suppress(CalveError):  # it may be about one of them
                    ready = self._ready(sender, parts, body_bytes)
            if ready is not None:
                self._append_for(group, ready)

    def _append_for(self, group: Sequence[_Call], ready: _Ready) -> None:
        outcome: Taken | CalveError = UnknownOutcome("the request may be stored, or a part of it")
        try:
            outcome = self._append(ready)
        except CalveError as error:
            outcome = error
        finally:
            for each in group:
                each.outcome = outcome

    def _ready(self, sender: _Sender, parts: Sequence[Decoded], body_bytes: int) -> _Ready:
        """Raise what is wrong with it before anything is appended."""
        names = [sender.table(part) for part in parts]
        rows = [(name, self._rows(part, name)) for part, name in zip(parts, names, strict=True)]
        if len(rows) > 1:
            # All of them or none: what was in already would come again with the others, or stay
            # in although the sender was told that the request cannot be stored.
            for name, each in rows:
                self._intake.require_fits(name, each)
        if self._intake.limits is not None:
            self._intake.limits.take(sender.tenant, sum(map(_row_count, parts)), body_bytes)
        return _Ready(rows, Taken.of(parts))

    def _append(self, ready: _Ready) -> Taken:
        pending = [self._intake.submit(name, rows, is_counted=True) for name, rows in ready.rows]
        with refusing():
            for each in pending:
                each.wait()
        return ready.taken

    def _rows(self, part: Decoded, name: TableName) -> Part | list[Part]:
        """As its topic wants them, which is made if it is not there."""
        topic = ensure_topic(self._intake, name, _SPECS[part.table.name])
        rows: list[Part] = [] if part.rows is None else [with_promoted(part.rows, topic)]
        if part.rejected:
            rows.append(part.rejected)
        return rows[0] if len(rows) == 1 else rows


def _decoded(signal: str, messages: Sequence[Any]) -> Sequence[Decoded] | None:
    """None for several of which one has to be told something."""
    return decode(signal, messages[0]) if len(messages) == 1 else decode_together(signal, messages)


def _row_count(part: Decoded) -> int:
    return (0 if part.rows is None else part.rows.num_rows) + len(part.rejected)


def dataset_of(value: str | None) -> str | None:
    """The dataset that a request asks for in its header; InvalidRequest if there can be none."""
    if value is None:
        return None
    try:
        TableName(DEFAULT_TENANT, value, "logs")
    except InvalidRequest as error:
        raise InvalidRequest(
            f"the header {DATASET_HEADER} is {value!r}, which is no dataset", hint=error.hint
        ) from error
    return value
