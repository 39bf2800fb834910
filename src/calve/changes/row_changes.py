"""What is asked of the rows of a lake's tables, done by the engine that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calve.changes.change import Change
from calve.changes.delete import delete_rows
from calve.changes.flush_first import flush_first
from calve.changes.update import update_rows
from calve.changes.upsert import upsert_rows
from calve.changes.with_spark import delete_with_spark, update_with_spark, upsert_with_spark
from calve.errors import InvalidRequest
from calve.model import TableName
from calve.tables.references import is_main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from calve.settings import Settings
    from calve.tables.catalog import LakeCatalog


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Of an open lake. `spark` gives its session, and starts it if need be."""

    catalog: LakeCatalog
    settings: Settings
    spark: Callable[[], SparkSession]

    def update(
        self,
        table: str,
        updates: Mapping[str, object],
        where: str | None,
        *,
        branch: str | None,
        engine: str,
        flush: bool,
    ) -> Change:
        by_spark = _is_spark(engine)
        self._bring_in(table, branch=branch, flush=flush)
        if by_spark:
            return update_with_spark(
                self.catalog, self.spark(), table, updates, where, branch=branch
            )
        return update_rows(self.catalog, table, updates, where, branch=branch)

    def delete(
        self, table: str, where: str, *, branch: str | None, engine: str, flush: bool
    ) -> Change:
        by_spark = _is_spark(engine)
        self._bring_in(table, branch=branch, flush=flush)
        if by_spark:
            return delete_with_spark(self.catalog, self.spark(), table, where, branch=branch)
        return delete_rows(self.catalog, table, where, branch=branch)

    def upsert(  # noqa: PLR0913
        self,
        table: str,
        data: object,
        keys: Sequence[str],
        *,
        format: str | None,  # noqa: A002
        delimiter: str | None,
        branch: str | None,
        engine: str,
        force: bool,
    ) -> Change:
        if _is_spark(engine):
            return upsert_with_spark(
                self.catalog, self.spark(), table, data, keys,
                format=format, delimiter=delimiter, branch=branch, force=force,
            )  # fmt: skip
        return upsert_rows(
            self.catalog, table, data, keys,
            format=format, delimiter=delimiter, branch=branch, force=force,
        )  # fmt: skip

    def _bring_in(self, table: str, *, branch: str | None, flush: bool) -> None:
        """A topic feeds main alone: what is still in its log is no concern of a branch."""
        if flush and is_main(branch):
            flush_first(self.catalog, self.settings, TableName.parse(table))


def _is_spark(engine: str) -> bool:
    if engine not in {"python", "spark"}:
        raise InvalidRequest(f"there is no engine {engine!r}", hint="use python or spark")
    return engine == "spark"
