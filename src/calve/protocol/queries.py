"""The JSON of questions in SQL over HTTP and Flight: what is asked, and what an answer is of."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

QUERY: Final = "query"
# The key in the metadata of an answer's schema under which `AnswerFacts` are.
FACTS: Final = b"calve.answer"


class QueryOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One SELECT. `parameters` are values for `?` and `$1` in order, or for `$name` by name.

    With `tenant` there are no tables but those of the tenant.
    """

    sql: Annotated[str, Meta(min_length=1)]
    parameters: list[Any] | dict[str, Any] | None = None
    fresh: bool = True
    tenant: str | None = None


class QueryTicket(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same as a ticket of Flight."""

    kind: Literal["query"] = "query"
    sql: str
    parameters: list[Any] | dict[str, Any] | None = None
    fresh: bool = True
    tenant: str | None = None


class AsOfView(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a table: `committed` and `durable` are offsets by partition, for a topic's."""

    table: str
    snapshot_id: int | None
    committed: dict[int, int] = {}
    durable: dict[int, int] = {}


class AnswerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer is of, and how the times that it names were understood."""

    id: str
    as_of: list[AsOfView]
    times: list[str] = []


class QueryView(msgspec.Struct, frozen=True, kw_only=True):
    """A query that is under way."""

    id: str
    sql: str
    client: str
    asked_at: str
    is_waiting: bool


class QueryList(msgspec.Struct, frozen=True, kw_only=True):
    queries: list[QueryView]
