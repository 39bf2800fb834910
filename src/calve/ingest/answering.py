"""What front doors tell of an answer, alike over HTTP and Flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calve.protocol.queries import AnswerFacts, AsOfView

if TYPE_CHECKING:
    from calve.query.queries import Answer


def facts_of(answer: Answer) -> AnswerFacts:
    return AnswerFacts(
        id=answer.id,
        as_of=[
            AsOfView(
                table=each.table,
                snapshot_id=each.snapshot_id,
                committed=dict(each.committed),
                durable=dict(each.durable),
            )
            for each in answer.as_of
        ],
        times=list(answer.times),
    )
