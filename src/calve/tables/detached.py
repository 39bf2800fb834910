"""A table as plain data, for another process that writes data files for it.

Such a table has no catalog and no snapshots: nothing can be read from it or committed to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil

from calve.tables.column_history import unrecorded_memory

if TYPE_CHECKING:
    from pyiceberg.typedef import Identifier

_NOBODY: Final = NoopCatalog("detached")


def slim_metadata(table: Table) -> bytes:
    """Iceberg's own JSON of the table as it is now; of its past, what became of columns."""
    metadata = table.metadata
    slim = metadata.model_copy(
        update={
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "statistics": [],
            "partition_statistics": [],
            "refs": {},
            "current_snapshot_id": None,
            "schemas": [metadata.schema()],
            "partition_specs": [metadata.spec()],
            "sort_orders": [table.sort_order()],
            "properties": {**metadata.properties, **unrecorded_memory(table)},
        }
    )
    return slim.model_dump_json().encode()


def store_properties(table: Table) -> dict[str, str]:
    """What opens the table's files, its secrets included, apart from the table's own properties.

    A REST catalog adds an object that logs in to itself, which a store has no use for.
    """
    own = table.properties
    given = table.io.properties
    return {
        name: value
        for name, value in given.items()
        if own.get(name) != value and isinstance(value, str)
    }


def detached_table(
    identifier: Identifier, metadata: bytes, store: dict[str, str], location: str
) -> Table:
    """The table again, made of `slim_metadata` and `store_properties`."""
    parsed = TableMetadataUtil.parse_raw(metadata.decode())
    io = load_file_io({**parsed.properties, **store}, location)
    return Table(identifier, parsed, "", io, _NOBODY)
