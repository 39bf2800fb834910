"""A Parquet file with what its table is told about it: counts, and the bounds of its columns.

PyIceberg takes the bounds of dates and times as Python's, which end with the year 9999; here they
are the numbers that the file holds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet as pq
from pyiceberg.io import OutputFile
from pyiceberg.io.pyarrow import (
    DataFileStatistics,
    MetricModeTypes,
    MetricsMode,
    ParquetFormatWriter,
    StatisticsCollector,
    StatsAggregator,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.schema import Schema
from pyiceberg.typedef import Properties
from pyiceberg.types import (
    DateType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
)

from calve.tables.dictionaries import has_dictionaries, unrepeated
from calve.tables.parquet_options import BLOOM, ParquetOptions

_MOMENTS: Final = (
    *(DateType, TimeType, TimestampType, TimestamptzType),
    *(TimestampNanoType, TimestamptzNanoType),
)
_COUNTS: Final = MetricsMode(MetricModeTypes.COUNTS)
_UNBOUNDED: Final = (_COUNTS, MetricsMode(MetricModeTypes.NONE))


class ParquetFileWriter(ParquetFormatWriter):
    """Writes one file, its columns as the options say."""

    def __init__(
        self, output: OutputFile, schema: Schema, properties: Properties, options: ParquetOptions
    ) -> None:
        # PyIceberg warns of those that it does not know to follow.
        known = {name: value for name, value in properties.items() if not name.startswith(BLOOM)}
        super().__init__(output, schema, known)
        self._options = options

    def write(self, table: pa.Table) -> None:
        """Add rows, of which the first ones are like those that follow."""
        if self._writer is None:
            self._parquet_writer_kwargs.update(self._options.for_rows(table))
            self._do_without_dictionaries(table)
            if has_dictionaries(table.schema) or self._options.settings:
                # Dictionaries would be given to whoever reads the file with Arrow; and of many
                # columns Arrow's own schema takes as much as all else in the footer.
                self._parquet_writer_kwargs["store_schema"] = False
        super().write(table)

    def _do_without_dictionaries(self, rows: pa.Table) -> None:
        """Of columns that hardly repeat, where no property says how they are encoded."""
        chosen = self._parquet_writer_kwargs
        vain = unrepeated(rows, chosen["dictionary_pagesize_limit"])
        vain.difference_update(self._options.encoded)
        if vain:
            paths = chosen.get("use_dictionary", parquet_path_to_id_mapping(self._file_schema))
            chosen["use_dictionary"] = [path for path in paths if path not in vain]

    @property
    def written_bytes(self) -> int:
        """How long the file is by now."""
        stream: Any = self._fos
        length: int = stream.tell()
        return length

    def close(self) -> DataFileStatistics:
        """End the file."""
        if self._result is not None:
            return self._result
        if self._writer is None or self._fos is None:
            raise ValueError("nothing was written")
        with self._fos:
            self._writer.close()
            metadata = self._writer.writer.metadata
            self._result = file_statistics(metadata, self._file_schema, self._properties)
        return self._result


def file_statistics(
    metadata: pq.FileMetaData, schema: Schema, properties: Properties
) -> DataFileStatistics:
    """What a table with such properties wants to know of a file with such columns."""
    plan = compute_statistics_plan(schema, properties)
    ids = parquet_path_to_id_mapping(schema)
    moments = {
        field_id: column
        for field_id, column in plan.items()
        if isinstance(column.iceberg_type, _MOMENTS) and column.mode not in _UNBOUNDED
    }
    counted = {field_id: replace(column, mode=_COUNTS) for field_id, column in moments.items()}
    found = data_file_statistics_from_parquet_metadata(
        parquet_metadata=metadata, stats_columns={**plan, **counted}, parquet_column_mapping=ids
    )
    found.column_aggregates.update(_bounds(metadata, moments, ids))
    return found


def _bounds(
    metadata: pq.FileMetaData, columns: dict[int, StatisticsCollector], ids: dict[str, int]
) -> dict[int, StatsAggregator]:
    """Of columns whose every row group has them: a bound that leaves out a part loses rows."""
    bounds: dict[int, StatsAggregator] = {}
    unknown: set[int] = set()
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(place)
            field_id = ids[chunk.path_in_schema]
            if field_id not in columns:
                continue
            found = chunk.statistics
            if found is not None and found.has_min_max:
                if field_id not in bounds:
                    kind = columns[field_id].iceberg_type
                    bounds[field_id] = StatsAggregator(kind, found.physical_type)
                bounds[field_id].update_min(found.min_raw)
                bounds[field_id].update_max(found.max_raw)
            elif found is None or found.null_count < chunk.num_values:
                unknown.add(field_id)
    return {field_id: each for field_id, each in bounds.items() if field_id not in unknown}
