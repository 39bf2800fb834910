"""Data files described from their own footers, when nobody is left who knows what was written."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from calve.tables.translate import reading_file, translating


def described_files(table: Table, paths: Iterable[str]) -> list[DataFile]:
    """Parquet files that were written for a table, as a commit of them needs them."""
    with translating():
        return [_described(table, path) for path in paths]


def _described(table: Table, path: str) -> DataFile:
    file = table.io.new_input(path)
    with reading_file(path), file.open() as stream:
        footer = pq.read_metadata(stream)
        written = pyarrow_to_schema(footer.schema.to_arrow_schema())
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(written, table.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(written),
    )
    spec = _spec(table)
    partition = statistics.partition(spec, table.schema()) if spec.fields else Record()
    description = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=len(file),
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
    description.spec_id = spec.spec_id
    return description


def _spec(table: Table) -> PartitionSpec:
    """None of the table's partitionings, if it has that: a file of any contents goes with it."""
    specs = table.metadata.specs().values()
    return next((each for each in specs if each.is_unpartitioned()), table.spec())
