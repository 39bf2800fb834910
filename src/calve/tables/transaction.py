"""PyIceberg's transaction, without its copies of the metadata."""

from __future__ import annotations

from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate


class LeanTransaction(Transaction):
    """PyIceberg applies all updates and copies the metadata each time it is asked for.

    Adding a column asks ten times, and each column that was ever added makes a copy longer.
    """

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._seen: tuple[tuple[TableUpdate, ...], TableMetadata] = ((), table.metadata)

    @property
    def table_metadata(self) -> TableMetadata:
        if self._seen[0] != self._updates:
            self._seen = (self._updates, super().table_metadata)
        return self._seen[1]
