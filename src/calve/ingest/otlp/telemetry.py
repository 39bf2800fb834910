"""Requests of OTLP into the log: admitted, decoded, appended, and acknowledged when all is durable.

One request may fill several tables, each of which is a topic. It is acknowledged when every one of
them has its rows; a sender that is told to retry may repeat what one of them has already.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, NamedTuple

from calve.errors import InvalidRequest
from calve.ingest.ensuring import ensure_topic
from calve.ingest.otlp.decoding import Decoded, decode, read_message
from calve.ingest.otlp.promotion import with_promoted
from calve.ingest.otlp.storage import file_properties
from calve.ingest.otlp.tables import TABLES
from calve.ingest.otlp.weight import weight, weight_to_parse
from calve.ingest.refusals import refusing
from calve.model import DEFAULT_TENANT, TableName
from calve.topics.topic import TopicSpec

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from calve.access import Caller
    from calve.ingest.admission import Admitted
    from calve.ingest.intake import Intake
    from calve.wal.payload import Part

DATASET_HEADER: Final = "x-calve-dataset"
_REASONS_MAX: Final = 5
_TURN_BYTES_MAX: Final = 1 << 20
_turns: Final = threading.Lock()  # of the process, as the interpreter is
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
    def of(cls, parts: list[Decoded]) -> Taken:
        rejected = [each for part in parts for each in part.rejected]
        reasons = list(dict.fromkeys(each.reason for each in rejected))
        reasons += sorted({each for part in parts for each in part.remarks})
        more = f" and {len(reasons) - _REASONS_MAX} more" if len(reasons) > _REASONS_MAX else ""
        return cls(len(rejected), "; ".join(reasons[:_REASONS_MAX]) + more)


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
        limits = self._intake.limits
        if limits is not None:
            limits.require_room(tenant)
        to_parse = weight_to_parse(body)
        admitted.grow(to_parse)
        with _turn(len(body)):
            message = read_message(signal, body)
            admitted.grow(max(0, weight(signal, message, len(body)) - to_parse))
            parts = decode(signal, message)
        names = [TableName(tenant, dataset or caller.dataset, part.table.name) for part in parts]
        for name in names:
            caller.require_seen(name)
        rows = [self._rows(part, name) for part, name in zip(parts, names, strict=True)]
        if len(rows) > 1:
            # All of them or none: what was in already would come again with the others, or stay
            # in although the sender was told that the request cannot be stored.
            for name, each in zip(names, rows, strict=True):
                self._intake.require_fits(name, each)
        if limits is not None:
            limits.take(tenant, sum(map(_row_count, parts)), len(body))
        pending = [
            self._intake.submit(name, each, is_counted=True)
            for name, each in zip(names, rows, strict=True)
        ]
        with refusing():
            for each in pending:
                each.wait()
        return Taken.of(parts)

    def _rows(self, part: Decoded, name: TableName) -> Part | list[Part]:
        """As its topic wants them, which is made if it is not there."""
        topic = ensure_topic(self._intake, name, _SPECS[part.table.name])
        rows: list[Part] = [] if part.rows is None else [with_promoted(part.rows, topic)]
        if part.rejected:
            rows.append(part.rejected)
        return rows[0] if len(rows) == 1 else rows


def _turn(body_bytes: int) -> AbstractContextManager[object]:
    """One request is decoded at a time: hundreds of calls into Arrow, each of which lets go of the
    interpreter, would have threads wake each other for a third of the processor's time. Large
    requests take no turn, so that nobody waits for them."""
    return _turns if body_bytes <= _TURN_BYTES_MAX else nullcontext()


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
