"""Arrow batches of any number become a table's data files; memory is bounded.

Written with PyIceberg's private writer. Rows are gathered to pieces, by partition, and
each piece is a row group of an open file. A file stays below the table's target size on disk, as
far as that can be told from what was written before. Where the table has a sort order, a piece is
sorted and makes files of its own.

Files are named for the operation that wrote them. Until somebody commits them, no table knows them;
if writing fails they are deleted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Any, Final, Self
from uuid import uuid4

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import Table, TableProperties
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, ListType, MapType, StructType
from pyiceberg.utils.properties import property_as_int

from calve.errors import InvalidRequest
from calve.tables.dictionaries import own_dictionaries, with_dictionaries
from calve.tables.expiry import clear_away
from calve.tables.file_sizes import FileSizes, is_enough
from calve.tables.file_statistics import ParquetFileWriter
from calve.tables.parquet_options import parquet_options
from calve.tables.partitions import Partitioner, Place
from calve.tables.projection import mend_projection
from calve.tables.sorting import sorted_rows
from calve.tables.staging import require_writable
from calve.tables.translate import translating

mend_projection()

PIECE_BYTES: Final = 64 * 1024 * 1024
# An input must be this much longer before one more file is written beside the others.
_LANE_BYTES: Final = 4 * PIECE_BYTES
_LANES_MAX: Final = 4
_OPEN_MAX: Final = 256


def new_operation_id(operation: str) -> str:
    """A name for one operation on one table, with which the names of its files begin."""
    return f"{operation}-{uuid4()}"


def write_data_files(
    table: Table,
    batches: Iterable[pa.RecordBatch],
    *,
    operation_id: str,
    schema: Schema | None = None,
) -> list[DataFile]:
    """The rows as data files, none of them in the table yet."""
    with DataFileWriter(table, operation_id=operation_id, schema=schema) as writer:
        for batch in batches:
            writer.write(pa.Table.from_batches([batch]))
        return writer.finish()


class DataFileWriter:
    """Writes data files of one table. A context manager: left without `finish`, it leaves nothing.

    Not for several threads; it has threads of its own. `schema` is one that the table is to get
    with the commit of these files. At most `lanes_max` pieces are on their way at once. `sizes`
    says how large files become, if not as large as the table says.
    """

    def __init__(
        self,
        table: Table,
        *,
        operation_id: str,
        schema: Schema | None = None,
        piece_bytes: int | None = None,
        lanes_max: int | None = None,
        sizes: FileSizes | None = None,
    ) -> None:
        require_writable(table)
        self._piece_bytes = piece_bytes or PIECE_BYTES
        self._schema = schema or table.schema()
        self._layout = _Layout(
            table, self._schema, operation_id, sizes or FileSizes(target_bytes(table))
        )
        self._partitioner = Partitioner(table.spec(), self._schema)
        self._sort_order = table.sort_order()
        is_plain = self._sort_order.is_unsorted and table.spec().is_unpartitioned()
        # Larger where pieces would be cut up among partitions, or are whole files.
        self._gathered_max = self._piece_bytes * (1 if is_plain else 2)
        self._lanes_max = lanes_max or max(1, min(os.cpu_count() or 1, _LANES_MAX))
        self._pool = ThreadPoolExecutor(self._lanes_max, thread_name_prefix="calve-write")
        self._incoming = _Rows()
        self._gathered: dict[Place | None, _Rows] = {}
        self._gathered_bytes = 0
        self._seen_bytes = 0
        self._open: dict[Place | None, list[_Lane]] = {}
        self._running: set[Future[None]] = set()
        self._begun: list[_OpenFile] = []
        self._done: list[DataFile] | None = None
        self.rows = 0

    def write(self, rows: pa.Table) -> None:
        """Take rows that have the table's columns; those before may still be on their way."""
        with translating():
            if rows.num_rows:
                self._incoming.add(self._layout.fitted(rows))
                self.rows += rows.num_rows
            if self._incoming.bytes >= self._piece_bytes // 2:
                self._divide()

    def finish(self) -> list[DataFile]:
        """The files with all rows that were written."""
        with translating():
            self._divide()
            for place in list(self._gathered):
                self._flush(place)
            for place in list(self._open):
                self._close(self._open.pop(place))
            self._await(0)
            self._done = [file.described() for file in self._begun]
        return self._done

    def discard(self) -> None:
        """Take `finish` back: nothing of what was written is wanted."""
        self._done = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of everything; without `finish`, delete what was written."""
        wait(self._running)
        self._pool.shutdown()
        if self._done is None:
            for file in self._begun:
                file.abandon()
            clear_away(self._layout.io, [file.path for file in self._begun])

    def _divide(self) -> None:
        """Give the rows that came in to their partitions, and write where that makes too many."""
        incoming, self._incoming = self._incoming, _Rows()
        if not incoming.parts:
            return
        for place, part in self._partitioner.divide(pa.concat_tables(incoming.parts)):
            size = self._gathered.setdefault(place, _Rows()).add(part)
            self._gathered_bytes += size
            self._seen_bytes += size
        while self._gathered_bytes >= self._gathered_max:
            self._flush(max(self._gathered, key=lambda place: self._gathered[place].bytes))

    def _flush(self, place: Place | None) -> None:
        gathered = self._gathered.pop(place)
        self._gathered_bytes -= gathered.bytes
        piece = pa.concat_tables(gathered.parts)
        if not self._sort_order.is_unsorted:
            lane = self._new_lane(place)
            row_bytes = gathered.bytes / piece.num_rows

            held = [piece]
            del piece, gathered

            def write_sorted() -> None:
                # Handed over, so that the rows as they came can go while they are sorted.
                lane.write(self._in_order(held.pop()), row_bytes, is_all=True)
                lane.close()

            self._submit(lane, write_sorted)
            return
        lane = self._lane(place)
        self._submit(lane, lambda: lane.write(piece, piece.nbytes / piece.num_rows))

    def _in_order(self, rows: pa.Table) -> pa.Table:
        rows = with_dictionaries(rows, self._layout.dictionary_bytes_max)
        return sorted_rows(rows, self._sort_order, self._schema)

    def _lane(self, place: Place | None) -> _Lane:
        """A lane of the partition that is idle, or a new one."""
        # Put back last: the first is the one that was not written to for the longest time.
        lanes = self._open[place] = self._open.pop(place, [])
        idle = next((each for each in lanes if each.is_idle()), None)
        wanted = 1 if place is not None else 1 + self._seen_bytes // _LANE_BYTES
        if idle is None and len(lanes) < min(wanted, self._lanes_max):
            idle = self._new_lane(place)
            lanes.append(idle)
            self._close_oldest()
        return idle or lanes[0]

    def _new_lane(self, place: Place | None) -> _Lane:
        sort_order = self._sort_order
        sort_order_id = None if sort_order.is_unsorted else sort_order.order_id
        return _Lane(self._layout, place, sort_order_id, self._begun)

    def _close_oldest(self) -> None:
        while len(self._open) > _OPEN_MAX:
            self._close(self._open.pop(next(iter(self._open))))

    def _close(self, lanes: Iterable[_Lane]) -> None:
        for lane in lanes:
            self._submit(lane, lane.close)

    def _submit(self, lane: _Lane, work: Callable[[], None]) -> None:
        """Do the work in another thread, after what is still to be done on the same lane."""
        self._await(self._lanes_max - 1)
        before = lane.last

        def in_turn() -> None:
            if before is not None:
                before.result()
            work()

        lane.last = self._pool.submit(in_turn)
        self._running.add(lane.last)

    def _await(self, left: int) -> None:
        """Wait until no more than so many pieces are on their way; raise what one has met."""
        while len(self._running) > left:
            done, self._running = wait(self._running, return_when="FIRST_COMPLETED")
            for future in done:
                future.result()


@dataclass(slots=True)
class _Rows:
    parts: list[pa.Table] = field(default_factory=list)
    bytes: int = 0

    def add(self, rows: pa.Table) -> int:
        size: int = rows.nbytes
        self.parts.append(rows)
        self.bytes += size
        return size


class _Renamed:
    """A batch under a schema that has other names and nothing else; nothing is copied.

    PyIceberg's own way loses values of fields inside of a list in a list.
    """

    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        self._batch = batch
        self._schema = schema

    def __arrow_c_array__(self, _: object = None) -> tuple[object, object]:
        return self._schema.__arrow_c_schema__(), self._batch.__arrow_c_array__()[1]


class _Layout:
    """How and where the files of one table are written."""

    def __init__(self, table: Table, schema: Schema, operation_id: str, sizes: FileSizes) -> None:
        written_as = table.properties.get(TableProperties.WRITE_FILE_FORMAT, "parquet").lower()
        if written_as != FileFormat.PARQUET.value.lower():
            raise InvalidRequest(
                f"the table's files are to be written as {written_as}, which only Spark can",
                hint="set the property write.format.default to parquet, or use engine='spark'",
            )
        self.io: FileIO = table.io
        self.properties = table.properties
        self.spec_id = table.metadata.default_spec_id
        self.sizes = sizes
        self._schema = schema
        # Parquet files have names that Avro can write too; readers go by the ids.
        self.file_schema = _without_required_fields(sanitize_column_names(schema))
        self._arrow_schema: pa.Schema = schema_to_pyarrow(schema, include_field_ids=True)
        self._file_arrow_schema: pa.Schema = schema_to_pyarrow(
            self.file_schema, include_field_ids=True
        )
        self.options = parquet_options(schema, self.file_schema, table.properties)
        self.dictionary_bytes_max = _dictionary_bytes_max(table)
        self._locations = table.location_provider()
        self._operation_id = operation_id
        self._numbers = count()

    def fitted(self, rows: pa.Table) -> pa.Table:
        """The rows under the table's names, in its order and types, required values present."""
        columns = []
        for target in self._arrow_schema:
            column = rows.column(target.name)
            if not target.nullable and column.null_count:
                raise InvalidRequest(
                    f"column {target.name!r}: a required value is missing",
                    hint="fill it in, or make the column optional",
                    context={"column": target.name},
                )
            columns.append(column if column.type == target.type else column.cast(target.type))
        return pa.Table.from_arrays(columns, schema=self._arrow_schema)

    def written(self, rows: pa.Table) -> pa.Table:
        """The rows under the names that the file has for the columns."""
        if self.file_schema == self._schema:
            return rows
        schema = pa.schema(
            named.with_type(held.type) if pa.types.is_dictionary(held.type) else named
            for named, held in zip(self._file_arrow_schema, rows.schema, strict=True)
        )
        renamed = [pa.record_batch(_Renamed(batch, schema)) for batch in rows.to_batches()]
        return pa.Table.from_batches(renamed, schema)

    def new_file(self, place: Place | None, sort_order_id: int | None) -> _OpenFile:
        name = f"{self._operation_id}-{next(self._numbers):05d}.parquet"
        path = self._locations.new_data_location(name, place)
        return _OpenFile(self, path, place, sort_order_id)


def target_bytes(table: Table) -> int:
    """How large the table's data files are to become."""
    default = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
    name = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES
    return property_as_int(table.properties, name, default) or default


def _dictionary_bytes_max(table: Table) -> int:
    """Above which Parquet writes a column's values one by one."""
    default = TableProperties.PARQUET_DICT_SIZE_BYTES_DEFAULT
    found = property_as_int(table.properties, TableProperties.PARQUET_DICT_SIZE_BYTES, default)
    return default if found is None else found


def _without_required_fields(schema: Schema) -> Schema:
    """The schema with every field of a struct nullable: below a missing struct it has no value.

    The rows were checked for required values that are missing elsewhere.
    """
    return Schema(
        *(
            field.model_copy(update={"field_type": _nullable_inside(field.field_type)})
            for field in schema.fields
        ),
        schema_id=schema.schema_id,
        identifier_field_ids=schema.identifier_field_ids,
    )


def _nullable_inside(kind: IcebergType) -> IcebergType:
    match kind:
        case StructType():
            return StructType(
                *(
                    field.model_copy(
                        update={"field_type": _nullable_inside(field.field_type), "required": False}
                    )
                    for field in kind.fields
                )
            )
        case ListType():
            inside = _nullable_inside(kind.element_type)
            return ListType(kind.element_id, inside, kind.element_required)
        case MapType():
            key, value = _nullable_inside(kind.key_type), _nullable_inside(kind.value_type)
            return MapType(kind.key_id, key, kind.value_id, value, kind.value_required)
    return kind


class _Lane:
    """Files of one partition, one after the other, written by one thread at a time."""

    def __init__(
        self,
        layout: _Layout,
        place: Place | None,
        sort_order_id: int | None,
        begun: list[_OpenFile],
    ) -> None:
        """Every file goes to `begun`, whatever becomes of it."""
        self.last: Future[None] | None = None
        self._layout = layout
        self._place = place
        self._sort_order_id = sort_order_id
        self._begun = begun
        self._file: _OpenFile | None = None

    def is_idle(self) -> bool:
        return self.last is None or self.last.done()

    def write(self, rows: pa.Table, row_bytes: float, *, is_all: bool = False) -> None:
        """Write to the open file and to as many more as it takes; `is_all` if no more will come.

        A row has so many bytes as Arrow counts them without dictionaries.
        """
        sizes = self._layout.sizes
        all_rows = rows.num_rows
        while rows.num_rows:
            file = self._opened()
            before = file.bytes
            goal = sizes.goal_bytes(before, rows.num_rows * row_bytes if is_all else None)
            if is_enough(before, goal):
                self.close()
                continue
            part = rows.slice(0, sizes.rows_within(goal - before, row_bytes))
            file.write(part if part.num_rows == all_rows else own_dictionaries(part))
            sizes.learn(part.num_rows, part.num_rows * row_bytes, file.bytes - before)
            rows = rows.slice(part.num_rows)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _opened(self) -> _OpenFile:
        if self._file is None:
            self._file = self._layout.new_file(self._place, self._sort_order_id)
            self._begun.append(self._file)
        return self._file


class _OpenFile:
    """One file."""

    def __init__(
        self, layout: _Layout, path: str, place: Place | None, sort_order_id: int | None
    ) -> None:
        self.path = path
        self.bytes = 0
        self._layout = layout
        self._place = place
        self._sort_order_id = sort_order_id
        self._output = layout.io.new_output(path)
        self._writer: ParquetFileWriter | None = ParquetFileWriter(
            self._output, layout.file_schema, layout.properties, layout.options
        )
        self._description: DataFile | None = None

    def write(self, rows: pa.Table) -> None:
        writer = self._writer
        assert writer is not None
        writer.write(self._layout.written(rows))
        self.bytes = writer.written_bytes

    def close(self) -> None:
        assert self._writer is not None
        statistics = self._writer.close()
        # It would keep the memory of its last pages.
        self._writer = None
        description = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.path,
            file_format=FileFormat.PARQUET,
            partition=self._place.partition if self._place else Record(),
            file_size_in_bytes=len(self._output),
            sort_order_id=self._sort_order_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        description.spec_id = self._layout.spec_id
        self._description = description

    def abandon(self) -> None:
        """Let go of the file, whatever state it is in."""
        writer = self._writer
        stream: Any = None if writer is None else writer._fos  # noqa: SLF001
        if writer is not None and stream is not None:
            with suppress(OSError, pa.ArrowException, ValueError, RuntimeError):
                writer.close()
            with suppress(OSError, pa.ArrowException, ValueError):
                stream.close()

    def described(self) -> DataFile:
        assert self._description is not None
        return self._description
