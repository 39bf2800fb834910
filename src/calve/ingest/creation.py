"""Making topics: with a table that is there already, or with one that their rows will make."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from calve.errors import CalveError, Conflict, InvalidRequest, NotFound
from calve.tables.catalog import LakeCatalog
from calve.tables.feeding import feeding_topic, topic_columns
from calve.tables.positions import committed_positions
from calve.topics.define import define_bound, define_topic
from calve.topics.fit import schema_of_first
from calve.topics.topic import TopicSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    import pyarrow as pa
    from pyiceberg.table import Table

    from calve.audit import Trail
    from calve.clock import Clock
    from calve.model import TableName
    from calve.settings import Settings
    from calve.topics.registry import TopicRegistry
    from calve.topics.topic import Topic


class _Making:
    """A topic that somebody is making from its first rows, for others to wait for."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.is_made = False
        self.failure: CalveError | None = None  # if it was not about those rows


class TopicCreation:
    """Asks the catalog when a topic is made, and never while rows come in."""

    def __init__(
        self, settings: Settings, registry: TopicRegistry, clock: Clock, trail: Trail
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._clock = clock
        self._trail = trail
        self._lock = threading.Lock()
        self._catalog: LakeCatalog | None = None
        self._makings: dict[TableName, _Making] = {}

    def create(self, name: TableName, spec: TopicSpec) -> Topic:
        table = self.table(name.by_user())
        if spec.bind_table:
            return self._registry.add(self._bound(name, spec, table))
        topic = define_topic(name, spec, now=self._clock.now())
        if table is None:
            return self._registry.add(topic)
        present = self._registry.find_same(topic)
        if present is None:
            raise Conflict(
                f"there is a table {name} already",
                hint=f"`calve topic create {name} --table` has the topic's rows go into it",
                context={"topic": str(name)},
            )
        return present

    @contextmanager
    def creating(self, name: TableName, spec: TopicSpec) -> Iterator[Topic]:
        """The same around what gives the topic its stream, and the stream its table.

        A topic that was made to feed a table, and could not be given it, is withdrawn.
        """
        is_new = self._registry.find(name) is None
        topic = self.create(name, spec)
        try:
            yield topic
        except CalveError:
            if spec.bind_table and is_new:
                with suppress(CalveError):
                    self._registry.withdraw(topic)
            raise

    def create_from(self, name: TableName, schema: pa.Schema) -> None:
        """Have a topic with the columns of a first batch, unless there is one by now.

        Of many who come at once with first rows, one makes it and is recorded. The others wait, or
        they would all ask the catalog and stand in line for the audit log.
        """
        making = _Making()
        while (first := self._first(name, making)) is not making:
            first.is_over.wait()
            if first.is_made:
                return
            if first.failure is not None:
                raise _again(first.failure)
        try:
            self._make_from(name, schema)
            making.is_made = True
        except CalveError as error:
            making.failure = None if isinstance(error, InvalidRequest) else error
            raise
        finally:
            with self._lock:
                del self._makings[name]
            making.is_over.set()

    def _first(self, name: TableName, making: _Making) -> _Making:
        """Whose turn it is to make the topic."""
        with self._lock:
            return self._makings.setdefault(name, making)

    def _make_from(self, name: TableName, schema: pa.Schema) -> None:
        if self._registry.find(name) is not None:
            return
        with self._trail.recording("topic.create", str(name), {"from": "its first rows"}):
            try:
                self.create(name, TopicSpec(schema=schema_of_first(schema)))
            except Conflict:
                if self._registry.find(name) is None:
                    raise  # or another process was faster

    def committed_in_table(self, topic: Topic, partition: int) -> int | None:
        """The offset that the topic's table has reached, if there is one."""
        table = self.table(topic.name)
        position = committed_positions(table).get(partition) if table else None
        return position.offset if position else None

    def hand_over(self, topic: Topic, partition: int, begin: Callable[[int], UUID]) -> None:
        """Give the topic's table to a stream that begins where the table ends.

        So no range of an earlier stream comes in behind it: of a topic that was deleted while the
        pipeline worked on it, or of a log that was lost.
        """
        table = self.table(topic.name)
        if table is None:
            begin(topic.first_offsets.get(partition, 0))
            return
        # Whoever only takes rows in need not load what writes to tables.
        from calve.pipeline.dead_letters import DeadLetterCommits
        from calve.tables.handover import hand_over

        letters = DeadLetterCommits(self.catalog)
        hand_over(
            table,
            partition,
            begin,
            topic=topic.name,
            settle=lambda fed: letters.settle_all(topic, fed),
        )

    @property
    def catalog(self) -> LakeCatalog:
        """Opened at the first call."""
        with self._lock:
            if self._catalog is None:
                self._catalog = LakeCatalog(self._settings)
            return self._catalog

    def table(self, name: TableName) -> Table | None:
        try:
            return self.catalog.load_table(name)
        except NotFound:
            return None

    def _bound(self, name: TableName, spec: TopicSpec, table: Table | None) -> Topic:
        if table is None:
            raise NotFound(
                f"there is no table {name} to bind the topic to",
                hint="make the table first, or leave its binding out: the rows will make one",
            )
        if spec.schema is not None or spec.partition_by or spec.sort_by or spec.kind != "rows":
            raise InvalidRequest(
                "a topic that is bound to a table has the table's columns, partitions and order",
                hint="leave these out",
            )
        owner = feeding_topic(table)
        if owner not in {None, name}:
            raise Conflict(f"the topic {owner} feeds the table {name}", hint="delete that first")
        topic = define_bound(
            name,
            spec,
            topic_columns(table),
            last_column_id=table.metadata.last_column_id,
            now=self._clock.now(),
        )
        ends = {number: each.offset for number, each in committed_positions(table).items()}
        return msgspec.structs.replace(topic, first_offsets=ends)

    def close(self) -> None:
        with self._lock:
            if self._catalog is not None:
                self._catalog.close()


def _again(error: CalveError) -> CalveError:
    """For another thread: each that raises an error leaves its traces in it."""
    return type(error)(error.message, hint=error.hint, context=dict(error.context))
