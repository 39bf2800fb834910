"""Delete files as other engines write them, which PyIceberg cannot: by position, by equality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record

from calve.tables.staging import Edit, _Snapshot
from calve.tables.transaction import LeanTransaction

_PATH = pa.field("file_path", pa.string(), metadata={"PARQUET:field_id": "2147483546"})
_POSITION = pa.field("pos", pa.int64(), metadata={"PARQUET:field_id": "2147483545"})


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _Deletes(_Snapshot):
    deletes: Sequence[DataFile]

    def _manifests(self) -> list[ManifestFile]:
        writer = _DeletesWriter(
            self._transaction.table_metadata.spec(),
            self.schema(),
            self.new_manifest_output(),
            self._snapshot_id,
            self._compression,
        )
        with writer:
            for file in self.deletes:
                entry = ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=self._snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=file,
                )
                writer.add_entry(entry)
        return [*super()._manifests(), writer.to_manifest_file()]


def delete_positions(
    table: Table,
    positions: Mapping[str, Sequence[int]],
    *,
    row_bounds: Mapping[int, bytes] | None = None,
) -> None:
    """Delete rows by their places in data files of the newest partitioning.

    Some engines write the deleted rows along, so that the delete file has bounds of theirs.
    """
    files = {task.file.file_path: task.file for task in table.scan().plan_files()}
    deletes = []
    for path, places in positions.items():
        rows = pa.table(
            [pa.array([path] * len(places)), pa.array(places, pa.int64())],
            schema=pa.schema([_PATH, _POSITION]),
        )
        bounds = {2147483546: path.encode(), **(row_bounds or {})}
        deletes.append(
            _delete_file(
                table,
                rows,
                DataFileContent.POSITION_DELETES,
                partition=files[path].partition,
                lower_bounds=bounds,
                upper_bounds=bounds,
            )
        )
    _commit(table, deletes)


def delete_equal(table: Table, column: str, values: Sequence[Any]) -> None:
    """Delete rows by a value of theirs, in an unpartitioned table."""
    source = table.schema().find_field(column)
    metadata = {"PARQUET:field_id": str(source.field_id)}
    array = pa.array(values)
    rows = pa.table([array], schema=pa.schema([pa.field(column, array.type, metadata=metadata)]))
    file = _delete_file(
        table, rows, DataFileContent.EQUALITY_DELETES, equality_ids=[source.field_id]
    )
    _commit(table, [file])


def _delete_file(table: Table, rows: pa.Table, content: DataFileContent, **given: Any) -> DataFile:
    path = table.location_provider().new_data_location(f"{uuid4()}-deletes.parquet")
    output = table.io.new_output(path)
    with output.create() as stream:
        pq.write_table(rows, stream)
    file = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        record_count=rows.num_rows,
        file_size_in_bytes=len(output),
        **{"partition": Record(), **given},
    )
    file.spec_id = table.metadata.default_spec_id
    return file


def _commit(table: Table, deletes: list[DataFile]) -> None:
    producer = _Deletes(LeanTransaction(table), Edit(), "main")
    producer.deletes = deletes
    producer._operation = Operation.DELETE
    updates, requirements = producer._commit()
    table._do_commit(updates, requirements)
