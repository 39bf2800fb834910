"""Who reads a snapshot: DuckDB, or PyIceberg or Spark where DuckDB would be wrong or fail.

Decided from metadata and manifests before anything is read. docs/internals/reads.md has the
reasons, and a test holds each of them against the engines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from calve.tables.condition_columns import condition_columns
from calve.tables.stores.access import Access, access_to
from calve.tables.survey import Survey, survey
from calve.tables.transforms import is_manifest_name
from calve.tables.views import TableView

_DUCKDB_DATA: Final = frozenset({"parquet"})
_DUCKDB_DELETES: Final = frozenset({"parquet", "puffin"})
_PYICEBERG_DATA: Final = frozenset({"parquet", "orc"})
_PYICEBERG_DELETES: Final = frozenset({"parquet", "orc", "puffin"})
# As a list of single files that a query may open; beyond it, the list itself would be the cost.
_ELSEWHERE_MAX: Final = 10_000
# Manifests on a local disk: some 20 ms of DuckDB's time.
_PLANNED_TWICE_MAX: Final = 32


class Engine(StrEnum):
    DUCKDB = "duckdb"
    PYICEBERG = "pyiceberg"
    SPARK = "spark"


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine, why not the usual one, and for DuckDB how it reaches the files.

    `is_planned_fast` where DuckDB finds the files so fast that it may do so twice.
    """

    engine: Engine
    reason: str = ""
    access: Access | None = None
    elsewhere: frozenset[str] = frozenset()
    is_planned_fast: bool = False


def choose_engine(view: TableView) -> Choice:
    seen = survey(view)
    if reason := _only_spark(seen):
        return Choice(Engine.SPARK, reason)
    if reason := _not_for_duckdb(view, seen):
        return Choice(Engine.PYICEBERG, reason)
    access = access_to(view.table)
    if access is None:
        return Choice(Engine.PYICEBERG, "its store is one that DuckDB cannot open")
    is_planned_fast = access.s3 is None and seen.manifests <= _PLANNED_TWICE_MAX
    return Choice(
        Engine.DUCKDB,
        access=access,
        elsewhere=seen.elsewhere,
        is_planned_fast=is_planned_fast,
    )


def _only_spark(seen: Survey) -> str | None:
    if seen.has_equality_deletes:
        return "it has equality deletes"
    if others := (seen.data - _PYICEBERG_DATA) | (seen.deletes - _PYICEBERG_DELETES):
        return f"it has {_listed(others)} files"
    return None


def _not_for_duckdb(view: TableView, seen: Survey) -> str | None:
    if others := (seen.data - _DUCKDB_DATA) | (seen.deletes - _DUCKDB_DELETES):
        return f"it has {_listed(others)} files"
    if _lost_partition_source(view, seen):
        return "it was partitioned by a column that is gone"
    if _odd_partition_name(view, seen):
        return "it is partitioned under a name that DuckDB cannot read"
    if len(seen.elsewhere) > _ELSEWHERE_MAX:
        return "too many of its files lie outside the table's own place"
    if urlsplit(view.table.metadata_location).path == "":
        return "its catalog does not say where its metadata is"
    return _unlike_duckdbs(view)


def _unlike_duckdbs(view: TableView) -> str | None:
    """What DuckDB cannot do with the columns that are to be shown."""
    if len(condition_columns(view.schema)) < len(view.schema.fields):
        return "it has a type that DuckDB does not know"
    if has_clashing_names(view.schema):
        return "it has names that differ in case only"
    if view.branch is not None and view.has_newer_columns:
        return "its columns have changed since the branch was written to"
    return None


def _lost_partition_source(view: TableView, seen: Survey) -> bool:
    """DuckDB ends the whole process on such a table."""
    specs = view.table.specs()
    known = set(view.schema.field_ids)
    return any(
        field.source_id not in known
        for spec_id in seen.spec_ids
        if spec_id in specs
        for field in specs[spec_id].fields
    )


def _odd_partition_name(view: TableView, seen: Survey) -> bool:
    """DuckDB ends the whole process on such a table too."""
    specs = view.table.specs()
    return any(
        not is_manifest_name(field.name)
        for spec_id in seen.spec_ids
        if spec_id in specs
        for field in specs[spec_id].fields
    )


def has_clashing_names(schema: Schema) -> bool:
    """Whether two names of one struct differ in case only, which DuckDB does not see."""
    return _same_names(field.name for field in schema.fields) or any(
        _clash_below(field.field_type) for field in schema.fields
    )


def _clash_below(kind: IcebergType) -> bool:
    match kind:
        case StructType():
            return _same_names(field.name for field in kind.fields) or any(
                _clash_below(field.field_type) for field in kind.fields
            )
        case ListType():
            return _clash_below(kind.element_type)
        case MapType():
            return _clash_below(kind.key_type) or _clash_below(kind.value_type)
    return False


def _same_names(names: Iterable[str]) -> bool:
    listed = [name.casefold() for name in names]
    return len(set(listed)) < len(listed)


def _listed(formats: Iterable[str]) -> str:
    return " and ".join(kind.upper() if kind == "orc" else kind.title() for kind in sorted(formats))
