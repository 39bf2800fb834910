"""Questions of many at once, within the lake's bounds: time, memory, rows, and whose turn it is.

An answer holds its turn until all of it was worked out; one that is small is worked out at once, so
that nobody waits for a slow client. Whatever becomes of the client, its query ends: a thread looks
after those whose clients have gone, and after the memory of the process, of which DuckDB does not
count all.
"""

from __future__ import annotations

import resource
import threading
import weakref
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from calve.errors import CalveError, InvalidRequest, NotFound, Unavailable
from calve.query.engine import Limits
from calve.query.sql import HOST, run_sql
from calve.query.stream import Stop
from calve.query.tail import Tails
from calve.query.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from calve.access import Caller
    from calve.access.limits import TenantLimits
    from calve.query.parameters import Parameters
    from calve.query.rows import Rows
    from calve.settings import Settings
    from calve.tables.catalog import LakeCatalog

_WAITING_MAX: Final = 256
_HELD_BYTES: Final = 8 << 20
_LOOK_SECONDS: Final = 0.05
_IDLE_SECONDS: Final = 10.0
_SLACK_BYTES: Final = 256 << 20
_STATM: Final = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True)
class Question:
    """One statement; `client` is whose turn it takes, `tenant` whose tables it may see.

    A short name means what it means to the `caller`, who sees its own tables only.
    """

    sql: str
    parameters: Parameters | None = None
    fresh: bool = True
    client: str = ""
    tenant: str | None = None
    caller: Caller = HOST


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """A query that is under way."""

    id: str
    sql: str
    client: str
    asked_at: datetime
    is_waiting: bool


class _Running:
    """A query from being asked to its end."""

    def __init__(self, question: Question) -> None:
        self.id = uuid4().hex
        self.question = question
        self.asked_at = datetime.now(UTC)
        self.stop = Stop()
        self.has_turn = False
        self._lock = threading.Lock()
        self._is_gone: Callable[[], bool] | None = None

    def watch(self, is_gone: Callable[[], bool] | None) -> None:
        """Tell who knows whether anybody still wants it; whoever did before is not asked again."""
        with self._lock:
            self._is_gone = is_gone

    def look(self) -> None:
        """End it if nobody wants it any more."""
        with self._lock:
            if self._is_gone is not None and self._is_gone():
                self.stop.end(Unavailable("whoever asked has gone"))

    def is_of(self, tenant: str | None) -> bool:
        return tenant in {None, self.tenant}

    @property
    def tenant(self) -> str | None:
        """Whose query it is; None for one over all of them."""
        return self.question.caller.only_tenant or self.question.tenant

    def status(self) -> QueryStatus:
        asked = self.question
        return QueryStatus(self.id, asked.sql, asked.client, self.asked_at, not self.has_turn)


class Answer:
    """An answer under way. Close it, or go through its batches to the end; for one thread."""

    def __init__(self, queries: Queries, running: _Running, rows: Rows) -> None:
        self._running = running
        self._rows = rows
        self._batches = rows.batches()
        self._held: list[pa.RecordBatch] = []
        self._let_go = weakref.finalize(self, queries.end, running)
        self.id = running.id
        self.schema = rows.schema
        self.as_of = rows.as_of
        self.times = rows.times
        self._work_ahead()

    def _work_ahead(self) -> None:
        size_bytes = 0
        try:
            for batch in self._batches:
                self._held.append(batch)
                size_bytes += batch.nbytes
                if size_bytes > _HELD_BYTES:
                    return
        except BaseException:
            self.close()
            raise
        self._let_go()

    def batches(self, is_gone: Callable[[], bool] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, once. What ends it, from `Queries.cancel` to the time-out, is raised here."""
        self._running.watch(is_gone)
        try:
            while self._held:
                yield self._held.pop(0)
            yield from self._batches
        finally:
            self.close()

    def close(self) -> None:
        self._running.watch(None)
        self._held.clear()
        self._batches = iter(())
        self._let_go()


class Queries:
    """Safe to share between threads."""

    def __init__(
        self,
        settings: Settings,
        catalog: Callable[[], LakeCatalog],
        *,
        limits: TenantLimits | None = None,
    ) -> None:
        query = settings.query
        self._catalog = catalog
        self._tenants = limits
        self._tails = Tails(settings)
        self._limits = Limits(
            time_ms_max=query.time_ms_max,
            memory_bytes_max=max(query.memory_bytes_max // query.concurrent_max, 1),
            rows_max=query.rows_max,
        )
        self._wait_seconds = query.time_ms_max / 1000
        self._turns = Turns(query.concurrent_max, waiting_max=_WAITING_MAX)
        self._room_bytes = query.memory_bytes_max + settings.ingest.memory_bytes_max + _SLACK_BYTES
        self._lock = threading.Lock()
        self._open: dict[str, _Running] = {}
        self._begun = threading.Event()
        self._is_closing = False
        self._watch: threading.Thread | None = None
        self._idle_bytes = 0

    def ask(self, question: Question, is_gone: Callable[[], bool] | None = None) -> Answer:
        """Answer a question when it is its turn; raises what is wrong with it.

        `is_gone` is asked meanwhile, and not after this has returned.
        """
        running = _Running(question)
        running.watch(is_gone)
        self._begin(running)
        try:
            self._turns.take(question.client, running.stop, self._wait_seconds)
            running.has_turn = True
            rows = run_sql(
                self._catalog(),
                question.sql,
                parameters=question.parameters,
                limits=self._limits,
                tails=self._tails if question.fresh else None,
                tenant=question.tenant,
                caller=question.caller,
                stop=running.stop,
            )
            answer = Answer(self, running, rows)
        except BaseException:
            self.end(running)
            raise
        finally:
            running.watch(None)
        return answer

    def list(self, tenant: str | None = None) -> list[QueryStatus]:
        """Those that are under way; of a tenant, its own."""
        with self._lock:
            return [each.status() for each in self._open.values() if each.is_of(tenant)]

    def cancel(self, query_id: str, tenant: str | None = None) -> QueryStatus:
        """End a query, of a tenant one of its own; whoever asked it is told so."""
        with self._lock:
            found = self._open.get(query_id)
        if found is None or not found.is_of(tenant):
            raise NotFound(f"no query {query_id!r} is under way", hint="it may have ended")
        found.stop.end(InvalidRequest("the query was cancelled", hint="ask again if need be"))
        return found.status()

    def end(self, running: _Running) -> None:
        """Let go of a query; again is nothing."""
        with self._lock:
            is_open = self._open.pop(running.id, None) is not None
        if is_open and self._tenants is not None:
            self._tenants.leave_query(running.tenant)
        if is_open and running.has_turn:
            self._turns.give()

    def close(self) -> None:
        """End all of them."""
        with self._lock:
            self._is_closing = True
            watch = self._watch
        self._end_all(Unavailable("the service stops", hint="ask again when it is back"))
        self._begun.set()
        if watch is not None:
            watch.join()
        self._tails.close()

    def _begin(self, running: _Running) -> None:
        with self._lock:
            if self._is_closing:
                raise Unavailable("the service stops", hint="ask again when it is back")
            if self._tenants is not None:
                self._tenants.enter_query(running.tenant)
            if not self._open:
                self._idle_bytes = _memory_bytes()
            self._open[running.id] = running
            self._begun.set()
            if self._watch is None:
                self._watch = threading.Thread(target=self._look, name="calve-query", daemon=True)
                self._watch.start()

    def _end_all(self, reason: CalveError) -> None:
        with self._lock:
            found = list(self._open.values())
        for each in found:
            each.stop.end(reason)

    def _look(self) -> None:
        """End those that nobody waits for, and the newest ones while memory runs out."""
        while not self._is_closing:
            if not self._begun.wait(_IDLE_SECONDS):
                self._tails.forget()
                continue
            with self._lock:
                found = list(self._open.values())
                if not found:
                    self._begun.clear()
            for each in found:
                each.look()
            if found and _memory_bytes() - self._idle_bytes > self._room_bytes:
                going = [each for each in found if each.has_turn and each.stop.reason is None]
                for each in going[-1:]:
                    each.stop.end(_too_much())
            threading.Event().wait(_LOOK_SECONDS)


def _too_much() -> InvalidRequest:
    return InvalidRequest(
        "the query needs more memory than there is for queries",
        hint="ask for fewer rows or columns, or raise query.memory_bytes_max",
    )


def _memory_bytes() -> int:
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
