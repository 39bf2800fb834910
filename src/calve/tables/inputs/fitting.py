"""Rows fitted to a table whose columns may grow for them.

Columns are matched by name. One that the table lacks is added, once a value for it is seen; fields
of structs likewise. Types become wider where Iceberg allows it: to what Arrow data declares, and
for values without a declared type only when one of them needs it. Whatever else does not fit is
refused with its column, and has changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Self

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from calve.errors import InvalidRequest
from calve.tables.inputs.conform import (
    ColumnPlan,
    conform_array,
    conform_batch,
    match_names,
    plan_columns,
)
from calve.tables.inputs.convert import Text
from calve.tables.inputs.guess import guess_values
from calve.tables.inputs.origin import Origin, Unfit
from calve.tables.inputs.parts import Columns, Part, Values
from calve.tables.inputs.rows import column_array
from calve.tables.schema_growth import grown
from calve.tables.schemas import arrow_schema, schema_from_arrow


class RowFitter:
    """Fits the rows of one transaction, part by part. `schema` is what they need so far."""

    def __init__(
        self, schema: Schema | None = None, *, last_column_id: int = 0, text: Text = Text.TYPED
    ) -> None:
        """Begin with columns that are there, or with none for a table that is to be made.

        Of values from JSON, the text that is all dates or timestamps makes a column of them.
        """
        self.schema = schema or Schema()
        self._text = text
        self._last_column_id = last_column_id
        self._target = arrow_schema(self.schema)
        # What the columns of the last Arrow data turned out to need.
        self._planned: tuple[pa.Schema, list[ColumnPlan]] | None = None
        # Types of values for which a column cannot change: found out once, however many there are.
        self._of_no_use: frozenset[tuple[str, pa.DataType]] = frozenset()

    @classmethod
    def of(cls, table: Table) -> Self:
        return cls(table.schema(), last_column_id=table.metadata.last_column_id)

    def fit(self, part: Part, *, before: int = 0) -> pa.RecordBatch:
        """The part with all columns of `schema`; `before` counts the rows before it, for errors."""
        origin = Origin(before=before)
        if isinstance(part, Columns):
            return self._fit_values(part, origin)
        return self._fit_arrow(part, origin)

    def _fit_arrow(self, batch: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        known = set(self._target.names)
        # Nobody can tell yet what such a column is to hold.
        kept = [f.name for f in batch.schema if f.name in known or not pa.types.is_null(f.type)]
        if len(kept) < batch.num_columns:
            batch = batch.select(kept)
        places = range(1, 1 + batch.num_rows)
        if self._planned is not None and self._planned[0] == batch.schema:
            return conform_batch(batch, self._planned[1], self._target, origin, places)
        schema = self._grown_for(batch.schema)
        target = self._target_of(schema)
        plans = plan_columns(batch.schema, target, origin)
        fitted = conform_batch(batch, plans, target, origin, places)
        self._grow(schema, target)
        self._planned = batch.schema, plans
        return fitted

    def _grown_for(self, source: pa.Schema) -> Schema:
        fields = []
        for field in source:
            is_known = field.name in self._target.names
            if is_known and field.type == self._target.field(field.name).type:
                continue
            try:
                schema_from_arrow(pa.schema([field]))
            except InvalidRequest:
                # A column that is there has its type: what comes is converted to it, or refused.
                if not is_known:
                    raise
                continue
            fields.append(field)
        return self._grown(self.schema, fields) if fields else self.schema

    def _fit_values(self, part: Columns, origin: Origin) -> pa.RecordBatch:
        places = range(1, 1 + part.num_rows)
        schema = self.schema
        known = set(self._target.names)
        arrays: dict[str, pa.Array] = {}
        new: list[pa.Field] = []
        for name, values in part.values.items():
            if name in known:
                arrays[name], schema = self._fit_known(name, values, schema, origin, places)
            elif (kind := self._kind_of(name, values, origin)) is not None:
                new.append(pa.field(name, kind))
        # All at once: each change of a schema looks at all of its columns.
        schema = self._grown(schema, new) if new else schema
        target = self._target_of(schema)
        for field in new:
            values, wanted = part.values[field.name], target.field(field.name)
            arrays[field.name] = self._fitted(values, wanted, origin, places)
        match_names(list(arrays), target, origin)
        self._grow(schema, target)
        columns = [
            arrays[field.name] if field.name in arrays else pa.nulls(part.num_rows, field.type)
            for field in target
        ]
        return pa.RecordBatch.from_arrays(columns, schema=target)

    def _fit_known(
        self, name: str, values: Values, schema: Schema, origin: Origin, places: range
    ) -> tuple[pa.Array, Schema]:
        """The column as the table has it; or with the first change of it that makes all fit."""
        try:
            return self._fitted(values, self._target.field(name), origin, places), schema
        except InvalidRequest:
            for wider in self._changes_of(name, values, schema, origin):
                with suppress(InvalidRequest):
                    field = self._target_of(wider).field(name)
                    return self._fitted(values, field, origin, places), wider
            raise

    def _changes_of(
        self, name: str, values: Values, schema: Schema, origin: Origin
    ) -> Iterator[Schema]:
        is_of_use = False
        kind = None
        with suppress(InvalidRequest):
            kind = self._kind_of(name, values, origin)
            if kind is None or (name, kind) in self._of_no_use:
                return
            for widens in (False, True):
                wider = self._grown(schema, [pa.field(name, kind)], widens=widens)
                if wider is not schema:
                    is_of_use = True
                    yield wider
        if kind is not None and not is_of_use:
            self._of_no_use |= {(name, kind)}

    def _grown(self, schema: Schema, fields: list[pa.Field], *, widens: bool = True) -> Schema:
        incoming = schema_from_arrow(pa.schema(fields))
        return grown(schema, incoming, last_column_id=self._last_column_id, widens=widens)

    def _target_of(self, schema: Schema) -> pa.Schema:
        return self._target if schema is self.schema else arrow_schema(schema)

    def _grow(self, schema: Schema, target: pa.Schema) -> None:
        if schema is not self.schema:
            self.schema, self._target, self._planned = schema, target, None
            self._of_no_use = frozenset()

    def _kind_of(self, name: str, values: Values, origin: Origin) -> pa.DataType | None:
        """The type of a column that nobody has declared; None while there is no value in it."""
        if isinstance(values, pa.Array):
            return None if pa.types.is_null(values.type) else values.type
        try:
            return guess_values(values, dated_text=self._text is Text.JSON)
        except Unfit as error:
            raise origin.error(error.problem, column=name, hint=error.hint) from error

    def _fitted(self, values: Values, field: pa.Field, origin: Origin, places: range) -> pa.Array:
        if isinstance(values, pa.Array):
            return conform_array(values, field, origin, places)
        return column_array(values, field, origin, places, self._text)
