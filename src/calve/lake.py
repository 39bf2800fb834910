"""The lake, which `calve.open` gives: one place of tables, with everything that works on them."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from calve.audit import audited
from calve.audit.actions import FOLLOWERS
from calve.connections import Connections, LakeSource, settings_of
from calve.errors import Conflict
from calve.manager import IcebergManager
from calve.model import TableName
from calve.settings import Settings
from calve.tables.catalog import LakeCatalog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from calve.ingest import Intake, Produced, TopicOffsets
    from calve.ingest.dead_letters.box import DeadLetters
    from calve.query.parameters import Parameters
    from calve.query.rows import Rows
    from calve.query.tail import Tails
    from calve.service.serving import Serving
    from calve.subscriptions import OnRollback, Start, Subscription, TopicReader
    from calve.subscriptions.follower import OnExpired, OnOverwrite, Since, TableFollower
    from calve.subscriptions.opening import Readers
    from calve.subscriptions.register import Subscriptions
    from calve.topics.control import PipelineControl
    from calve.writer import BatchOptimizationConfig, IcebergTableWriter, RetryConfig


@audited(FOLLOWERS)
class Lake:
    """A place of Iceberg tables. A context manager; safe to share between threads."""

    def __init__(
        self, settings: Settings, *, spark: SparkSession | None = None, create: bool = True
    ) -> None:
        """Open the lake; without `create`, one that is not there yet is an error."""
        self._connections = Connections(settings, spark=spark, create=create)
        self.settings = self._connections.settings
        self._trail = self._connections.trail
        self._lock = threading.Lock()
        self._intake: Intake | None = None
        self._serving: Serving | None = None
        self._pipeline: PipelineControl | None = None
        self._tails: Tails | None = None
        self._opened = ExitStack()

    @property
    def catalog(self) -> LakeCatalog:
        return self._connections.catalog

    @cached_property
    def tables(self) -> IcebergManager:
        """Every operation on the lake's tables."""
        return IcebergManager(self._connections)

    def writer(
        self,
        table: str,
        *,
        batch: BatchOptimizationConfig | None = None,
        retry: RetryConfig | None = None,
    ) -> IcebergTableWriter:
        """A writer for one table, over the connections of this lake; close it before the lake."""
        from calve.writer import IcebergTableWriter

        return IcebergTableWriter(
            self._connections, TableName.parse(table), batch=batch, retry=retry
        )

    def sql(
        self,
        text: str,
        parameters: Parameters | None = None,
        *,
        fresh: bool = True,
        tenant: str | None = None,
    ) -> Rows:
        """Ask in SQL, over all tables and topics of the lake; nothing can be changed by it.

        A topic has every row that was acknowledged before, each once: those of its table, and
        those that are still on their way there. Without `fresh`, only what is in the table.
        `parameters` are the values of `?` and `$1`, as a list, or of `$name`, as a mapping. For a
        `tenant` there are no tables but its own.
        """
        from calve.query.sql import run_sql

        return run_sql(
            self.catalog,
            text,
            parameters=parameters,
            spark=self._connections.spark,
            tails=self._open_tails() if fresh else None,
            tenant=tenant,
        )

    def _open_tails(self) -> Tails:
        from calve.query.tail import Tails

        with self._lock:
            if self._tails is None:
                self._tails = self._opened.enter_context(Tails(self.settings))
            return self._tails

    @property
    def intake(self) -> Intake:
        """Where rows come in; opened at the first call, and closed with the lake.

        Conflict if another process takes rows into this lake.
        """
        with self._lock:
            if self._intake is None:
                self._intake = open_intake(self._connections)
            return self._intake

    def produce(
        self,
        topic: str,
        rows: Any,
        *,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Produced:
        """Append rows to a topic, and return when they are durable.

        Frames, Arrow data, dicts or columns. With a producer and a sequence, which counts up from
        0, the same call again appends nothing.
        """
        from calve.ingest import produce

        name = TableName.parse(topic)
        return produce(self.intake, name, rows, producer=producer, sequence=sequence)

    def flush(self, topic: str, timeout_seconds: float = 60) -> TopicOffsets:
        """Return when every row that was acknowledged before is in the table."""
        return self.intake.flush(TableName.parse(topic), timeout_seconds)

    def read(  # noqa: PLR0913
        self,
        topic: str,
        start: Start = "earliest",
        *,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        partitions: Sequence[int] | None = None,
        follow: bool = True,
        on_rollback: OnRollback = "fail",
    ) -> TopicReader:
        """Every row of a topic from a place on, in the order of offsets, once each; then new ones.

        `start` is "earliest", "latest", an offset, `{partition: offset}` or a datetime. `where`
        and `columns` choose as in a query. Without `follow` it ends with what is durable now.
        If the table is rolled back behind the reader, it fails, goes on all the same ("skip"), or
        goes back too ("from"). Close it before the lake.
        """
        return self._readers.read(
            self.catalog,
            TableName.parse(topic),
            start,
            where=where,
            columns=columns,
            partitions=partitions,
            follow=follow,
            on_rollback=on_rollback,
        )

    def subscribe(  # noqa: PLR0913
        self,
        topic: str,
        name: str,
        start: Start = "earliest",
        *,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        follow: bool = True,
        on_rollback: OnRollback = "fail",
        lease_seconds: float = 15,
    ) -> Subscription:
        """A place in a topic that has a name and is durable: read on from it, and acknowledge.

        One that is new begins at `start`, as for `read`. At least once: what was not acknowledged
        comes again. One consumer at a time has it, and another one takes over, `lease_seconds`
        after the first has died at the latest. Close it before the lake.
        """
        return self.subscriptions.open(
            topic,
            name,
            start,
            where=where,
            columns=columns,
            follow=follow,
            on_rollback=on_rollback,
            lease_seconds=lease_seconds,
        )

    @cached_property
    def subscriptions(self) -> Subscriptions:
        """All subscriptions, to be looked after: list, describe, seek, reset, delete."""
        from calve.subscriptions.register import Subscriptions

        return Subscriptions(
            self.settings,
            lambda topic, start, **options: self._readers.read(
                self.catalog, topic, start, **options
            ),
        )

    def follow(  # noqa: PLR0913
        self,
        table: str,
        start: Since = "latest",
        *,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        follow: bool = True,
        on_overwrite: OnOverwrite = "fail",
        on_expired: OnExpired = "fail",
        name: str | None = None,
        lease_seconds: float | None = 900,
    ) -> TableFollower:
        """The rows that others append to a table that no topic feeds, snapshot by snapshot.

        `start` is "latest", "earliest", the id of a snapshot or a datetime. A compaction is passed
        over. A snapshot that changed or removed rows fails it, is left out ("skip"), or has the
        rows of its new files read ("read"); so does a rollback. Falling behind the table's expiry
        fails it too, or is passed over ("skip").

        `expire_snapshots` leaves what it has yet to read for `lease_seconds` after it asked for
        rows last; with None nothing is left or recorded. One with a `name` is remembered: it
        begins where the last of that name was. Close it before the lake.
        """
        from calve.subscriptions.follower import TableFollower
        from calve.subscriptions.holds import FollowerHold

        parsed = TableName.parse(table)
        hold = FollowerHold.open(self.settings, parsed, name, lease_seconds)
        return TableFollower(
            parsed,
            start,
            catalog=self.catalog,
            poll_interval_ms=self.settings.reader.poll_interval_ms,
            where=where,
            columns=columns,
            follow=follow,
            on_overwrite=on_overwrite,
            on_expired=on_expired,
            hold=hold,
        )

    def unfollow(self, table: str, name: str) -> None:
        """Forget a follower with a name: the next one of that name begins anew."""
        from calve.subscriptions.holds import forget_follower

        forget_follower(self.settings, TableName.parse(table), name)

    @cached_property
    def _readers(self) -> Readers:
        from calve.subscriptions.opening import Readers

        return Readers(self.settings)

    def dead_letters(self, topic: str) -> DeadLetters:
        """The rows that a topic could not take: to list, show, replay and discard."""
        from calve.ingest.dead_letters.box import DeadLetters

        return DeadLetters(
            lambda: self.catalog,
            TableName.parse(topic),
            lambda: self.intake,
            self._require_topic,
            trail=self._trail,
        )

    def _require_topic(self, name: TableName) -> None:
        from calve.state import open_state
        from calve.topics.registry import TopicRegistry

        with closing(open_state(self.settings)) as state:
            TopicRegistry(state).topic(name)

    @property
    def pipeline(self) -> PipelineControl:
        """What brings rows to tables, wherever it runs: to be watched and directed."""
        from calve.service.directing import pipeline_of

        with self._lock:
            if self._pipeline is None:
                self._pipeline = self._opened.enter_context(pipeline_of(self.settings))
            return self._pipeline

    def serve(self, *, pipeline: bool = False, otlp: bool = False) -> Serving:
        """Take rows over the network too, in threads of this process, as `calve up` does.

        It listens where the settings say, from now until the handle or the lake is closed. Needs
        the part `server`; Conflict if a service of this lake is running already. With `pipeline`,
        which needs Spark, a thread also brings the rows to their tables; the end drains them. With
        `otlp`, which needs that part, OpenTelemetry is taken in, too.
        """
        from calve.service.announcement import Announcement
        from calve.service.serving import Serving

        intake = self.intake
        with ExitStack() as ending:
            announcement = Announcement(self.settings)
            ending.callback(announcement.release)
            if pipeline:
                from calve.service.embedded import PipelineThread

                spark = self._connections.lake_spark
                ending.callback(PipelineThread(self.settings, spark, self.catalog).close)
            serving = Serving(intake, otlp=otlp, at_end=ending.pop_all().close)
        announcement.tell(serving.addresses, {})
        with self._lock:
            self._serving = serving
        return serving

    def spark(self) -> SparkSession:
        """A session whose default catalog is this lake's; Spark is started at the first call.

        The same session each time, unless it was stopped or Spark has died: then a new one.
        """
        return self._connections.spark()

    def close(self, error: BaseException | None = None) -> None:
        """Let go of everything; `error` is on its way to the caller, who will want to read it."""
        with self._lock:
            intake, self._intake = self._intake, None
            serving, self._serving = self._serving, None
        with ExitStack() as closing:  # each of them, also when another fails
            closing.callback(self._connections.close, error)
            closing.callback(self._opened.close)
            if intake is not None:
                closing.callback(intake.close)
            if serving is not None:
                closing.callback(serving.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.close(error)

    def __repr__(self) -> str:
        return f"Lake({str(self.settings.data)!r}, catalog={self.settings.catalog.type!r})"


def open_intake(connections: Connections) -> Intake:
    """The intake of an open lake, in this process."""
    from calve.ingest import Intake

    _ = connections.catalog  # which a closed lake refuses
    try:
        return Intake(connections.settings)
    except Conflict as error:
        if "writer" not in error.context:
            raise
        raise Conflict(
            f"somebody else takes rows into this lake: {error.message}",
            hint="a service is running: send the rows to it with `Client`, or --server; in one "
            "program, share one open lake",
            context=error.context,
        ) from error


def open(  # noqa: A001
    lake: LakeSource = None, *, spark: SparkSession | None = None
) -> Lake:
    """Open the lake in a directory, or the one that the settings describe; make it if it is new.

    A directory is the flag `--data`: `calve.toml` and the environment still count, as they do for
    the command line. With a session passed in, Calve works in it and never stops it.
    """
    return Lake(settings_of(lake), spark=spark)
