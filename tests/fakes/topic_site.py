"""A topic of two partitions, taken in by two processes' worth of logs, with a pipeline at hand."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary, update_snapshot_summaries

from calve.errors import Unavailable
from calve.ingest import Intake
from calve.lake import Lake
from calve.model import TableName
from calve.pipeline.pipeline import Pipeline
from calve.settings import Settings
from calve.state import State, open_state
from calve.subscriptions import Batch, Subscription, TopicReader
from calve.tables import staging
from calve.tables.commit import TableCommit
from calve.tables.data_files import new_operation_id, write_data_files
from calve.tables.staging import Edit
from calve.topics import TopicSpec
from tests.fakes.pipelines import run_here

_COMPACT = "compact"
_summaries = update_snapshot_summaries


def _summaries_of(summary: Summary, previous_summary: Any = None) -> Summary:
    """Calve's own commits replace no files by the same rows; those of a compaction do."""
    made = _summaries(summary, previous_summary)
    if not made.additional_properties.get("calve.operation", "").startswith(_COMPACT):
        return made
    return Summary(operation=Operation.REPLACE, **made.additional_properties)


# For threads of a test too, which must not see it come and go.
staging.update_snapshot_summaries = _summaries_of  # type: ignore[attr-defined]


def compact_table(
    table: Table,
    *,
    order: str = "_calve_offset",
    descending: bool = False,
    file_rows: int = 1 << 40,
) -> None:
    """All rows of a table in new files, in some order."""
    rows = table.scan().to_arrow()
    rows = rows.sort_by([(order, "descending" if descending else "ascending")])
    old = [task.file for task in table.scan().plan_files()]
    if not old:
        return
    operation = new_operation_id(_COMPACT)
    files = [
        file
        for at in range(0, rows.num_rows, file_rows)
        for file in write_data_files(
            table, rows.slice(at, file_rows).to_batches(), operation_id=f"{operation}-{at}"
        )
    ]
    commit = TableCommit(table)
    edit = Edit(added=files, removed=old, summary={"calve.operation": operation})
    commit.repeat(lambda: commit.attempt(edit))


@dataclass
class TopicSite:
    """`rows` of each partition are numbered: a row's `id` is its offset, unless a test says not."""

    settings: Settings
    lake: Lake
    state: State
    intakes: dict[int, Intake]
    topic: str = "orders"
    pipeline: Pipeline = field(init=False)

    def __post_init__(self) -> None:
        options: dict[str, Any] = {"session": None, "run_pieces": run_here}
        self.pipeline = Pipeline(
            self.settings, state=self.state, catalog=self.lake.catalog, **options
        )

    @property
    def name(self) -> TableName:
        return TableName.parse(self.topic)

    def create(self, **spec: Any) -> None:
        self.intakes[0].create_topic(self.name, TopicSpec(**spec))

    def durable(self, partition: int = 0) -> int:
        return self.intakes[partition].offsets(self.name).durable

    def append(self, count: int, partition: int = 0, **more: Any) -> int:
        """Rows, acknowledged; the end of them."""
        intake = self.intakes[partition]
        known = intake.topics.find(self.name)
        start = self.durable(partition) if known and partition in known.partitions else 0
        rows = [{"id": start + n, **more} for n in range(count)]
        end = intake.submit(self.name, pa.RecordBatch.from_pylist(rows)).wait().end
        assert end is not None
        return end

    def commit(self) -> None:
        """Bring everything to the table."""
        assert self.pipeline.drain(30)

    def trim(self, partition: int = 0) -> None:
        """Let go of all that is committed."""
        log = self.intakes[partition].log
        log.rotate()
        while True:
            # The intake's own thread may be at it just now, and refuses others meanwhile.
            try:
                log.trim()
            except Unavailable:
                time.sleep(0.01)
            else:
                return

    def log_path(self, partition: int = 0) -> Path:
        found = self.intakes[partition].settings.wal.path
        assert found is not None
        return found

    def restart(self, partition: int = 0) -> None:
        """Have a partition's rows taken in by another, which opens the log anew."""
        ended = self.intakes[partition]
        ended.close()
        self.intakes[partition] = Intake(ended.settings)

    @property
    def table(self) -> Table:
        return self.lake.catalog.load_table(self.topic)

    def compact(self, *, descending: bool = False, file_rows: int = 1 << 40) -> None:
        """All rows in new files, both partitions together, as a compaction does it."""
        compact_table(self.table, descending=descending, file_rows=file_rows)

    def read(self, start: Any = "earliest", **options: Any) -> TopicReader:
        return self.lake.read(self.topic, start, **options)

    def subscribe(self, name: str = "billing", **options: Any) -> Subscription:
        return self.lake.subscribe(self.topic, name, **options)

    def all(self, start: Any = "earliest", **options: Any) -> dict[int, list[int]]:
        """The offsets of everything that there is, by partition, in the order they come."""
        with self.read(start, follow=False, **options) as reader:
            return offsets_of(reader)


def offsets_of(batches: Any) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for batch in batches:
        found.setdefault(batch.partition, []).extend(batch_offsets(batch))
    return found


def batch_offsets(batch: Batch) -> list[int]:
    """The offsets of a batch, which has nothing beyond what it says that it speaks of."""
    rows = batch.to_arrow()
    offsets: list[int] = rows.column("_calve_offset").to_pylist()
    assert all(batch.first_offset <= each < batch.next_offset for each in offsets)
    assert set(rows.column("_calve_partition").to_pylist()) == {batch.partition}
    if "id" in rows.schema.names:
        assert rows.column("id").to_pylist() == offsets
    return offsets


@contextmanager
def topic_site(settings: Settings, *, partitions: int = 1) -> Iterator[TopicSite]:
    """A lake whose partitions have a log each; every row that is committed may leave its log."""
    with ExitStack() as opened:
        own = settings.wal.path
        assert own is not None
        others = {number: own.with_name(f"log{number}") for number in range(1, partitions)}
        shared = msgspec.structs.replace(
            settings,
            pipeline=msgspec.structs.replace(
                settings.pipeline, logs=",".join(map(str, others.values()))
            ),
        )
        intakes: dict[int, Intake] = {}

        def end() -> None:
            for each in intakes.values():
                each.close()

        opened.callback(end)
        intakes[0] = Intake(shared)
        for number, path in others.items():
            elsewhere = msgspec.structs.replace(
                shared,
                wal=msgspec.structs.replace(shared.wal, path=path),
                ingest=msgspec.structs.replace(shared.ingest, partition=number, flight_port=0),
            )
            intakes[number] = Intake(elsewhere)
        state = open_state(shared)
        opened.callback(state.close)
        lake = opened.enter_context(Lake(shared))
        site = TopicSite(shared, lake, state, intakes)
        opened.callback(site.pipeline.close)
        yield site
