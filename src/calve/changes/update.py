"""Gives columns of some rows new values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from calve.changes.change import Change
from calve.changes.rewrite import FileChanges, FileResult, Rewrite
from calve.changes.rows import Piece, divided, meant_rows, row_mask
from calve.condition import Scalar, parse_condition, parse_scalar
from calve.errors import InvalidRequest
from calve.model import TableName
from calve.query.row_engine import RowEngine
from calve.tables.catalog import LakeCatalog
from calve.tables.columns import OWN_PREFIX
from calve.tables.condition_columns import condition_columns
from calve.tables.inputs import open_input
from calve.tables.nearest import meant
from calve.tables.reading import FileReader
from calve.tables.schemas import arrow_schema

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask

_EVERY_ROW = "true"


@dataclass(frozen=True, slots=True)
class Expression:
    """A value that is worked out for each row: `Expression("age + 1")`.

    Written in the language of conditions. Numbers are rounded to the column's type; what does not
    fit it is an InvalidRequest, and the table stays as it was.
    """

    text: str


class Assignments:
    """The new values of some columns: the same for all rows, or worked out for each."""

    def __init__(self, updates: Mapping[str, object], schema: Schema) -> None:
        if not isinstance(updates, Mapping):
            raise InvalidRequest(
                f"{updates!r} does not say what columns become", hint='name them: {"age": 30}'
            )
        if not updates:
            raise InvalidRequest("nothing to update", hint='name a column: {"age": 30}')
        arrow = arrow_schema(schema)
        columns = {column.name: column for column in condition_columns(schema)}
        self.constants: dict[str, pa.Scalar] = {}
        self.scalars: dict[str, tuple[Scalar, pa.DataType]] = {}
        for name, value in updates.items():
            if name not in arrow.names:
                raise InvalidRequest(
                    f"the table has no column {name!r}{meant(name, arrow.names)}",
                    hint=f"its columns are {', '.join(map(repr, arrow.names[:10]))}",
                )
            if name.startswith(OWN_PREFIX):
                raise InvalidRequest(
                    f"column {name!r} is Calve's own", hint="a row keeps its place in the topic"
                )
            field = arrow.field(name)
            if not isinstance(value, Expression):
                self.constants[name] = _constant(value, field)
                continue
            if name not in columns:
                raise InvalidRequest(f"column {name!r}: no expression gives such a type")
            scalar = parse_scalar(value.text, columns[name].type, list(columns.values()))
            self.scalars[name] = (scalar, field.type)

    def piece(self, engine: RowEngine, kept: pa.Table, meant: pa.Table) -> Piece:
        """The rows that stay, among them those that have the values already, and the others."""
        if not meant.num_rows:
            return kept, meant
        new = self.applied(engine, meant)
        names = [*self.constants, *self.scalars]
        different = engine.different(meant.select(names), new.select(names))
        if len(different) == meant.num_rows:
            return kept, new
        equal = meant.filter(pc.invert(row_mask(different, meant.num_rows)))
        return pa.concat_tables([kept, equal]), new.take(different)

    def applied(self, engine: RowEngine, rows: pa.Table) -> pa.Table:
        """The rows with their new values."""
        values = engine.values(rows, self.scalars) if self.scalars else None
        for place, name in enumerate(rows.column_names):
            if name in self.constants:
                rows = rows.set_column(place, name, pa.repeat(self.constants[name], rows.num_rows))
            elif values is not None and name in self.scalars:
                rows = rows.set_column(place, name, values.column(name))
        return rows


def update_rows(
    catalog: LakeCatalog,
    name: TableName | str,
    updates: Mapping[str, object],
    where: str | None = None,
    *,
    branch: str | None = None,
) -> Change:
    """Set columns of the rows for which the condition is true; of all rows without one.

    A value is a Python value that fits the column, or an `Expression` over the row as it was. Rows
    that have the values already are left alone and not counted.
    """
    rewrite = Rewrite(catalog, name, "update", branch=branch)
    with RowEngine() as engine:

        def plan() -> FileChanges:
            schema = rewrite.table.schema()
            condition = parse_condition(
                _EVERY_ROW if where is None else where, condition_columns(schema)
            )
            assignments = Assignments(updates, schema)

            def work(reader: FileReader, task: FileScanTask) -> FileResult:
                mask = meant_rows(engine, reader, task, condition)
                if not pc.any(mask).as_py():
                    return FileResult()
                return rewrite.replace(
                    lambda: (
                        assignments.piece(engine, kept, meant)
                        for kept, meant in divided(reader, task, mask)
                    )
                )

            changes = FileChanges()
            for file, result in rewrite.results(condition.facts(), work):
                if result.is_touched:
                    changes.replace(file, result)
                    changes.updated_rows += result.changed_rows
            return changes

        return rewrite.run(plan)


def _constant(value: object, field: pa.Field) -> pa.Scalar:
    """The value as the column holds it, by the rules that rows are read with."""
    target = pa.schema([field])
    column = open_input([{field.name: value}], schema=target).read_all().column(0)
    return column[0]
