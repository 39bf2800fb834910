"""Whether rows that come in fit a topic, what becomes of its schema, and of each batch.

`fit` decides once for an Arrow schema: columns go by name. What the topic does not know is added,
left out, set aside or refused, as its policy says; what clashes is refused with every column that
does. Batches whose columns the topic has as they are go in uncopied.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from calve.errors import InvalidRequest
from calve.tables.columns import check_columns
from calve.tables.inputs.conform import ColumnPlan, conform_batch
from calve.tables.inputs.convert import converter
from calve.tables.inputs.origin import Origin, Unfit, require_values
from calve.tables.schemas import schema_from_arrow
from calve.tables.type_clashes import clashes
from calve.topics.alter import with_room_for
from calve.topics.limits import check_size
from calve.topics.reshape import Shaped, Shaper, declared, is_stored_as
from calve.wal.payload import Rejected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.schema import Schema

    from calve.topics.topic import Topic

ARROW_CONTENT_TYPE: Final = "application/vnd.apache.arrow.stream"
_RECENT_MAX: Final = 4
_CACHED_MAX: Final = 256
_SHOWN_MAX: Final = 20
_HERE: Final = Origin()


@dataclass(frozen=True, slots=True)
class Fit:
    """How batches of one Arrow schema go into a topic."""

    topic: Topic  # as it has to be before they do: grown, or as it was
    is_plain: bool  # whether they go in as they are
    _plans: list[ColumnPlan]
    _target: pa.Schema
    _required: tuple[tuple[int, pa.Field], ...]
    _set_aside: tuple[tuple[int, str], ...]  # columns whose rows go to the dead letters

    def batch(self, batch: pa.RecordBatch, numbers: Sequence[int] | None = None) -> pa.RecordBatch:
        """The batch as it goes into the log; InvalidRequest names the row that cannot."""
        numbers = range(1, 1 + batch.num_rows) if numbers is None else numbers
        if not self.is_plain:
            return conform_batch(batch, self._plans, self._target, _HERE, numbers)
        for place, field in self._required:
            require_values(batch.column(place), field, _HERE, numbers)
        return batch

    def split(
        self, batch: pa.RecordBatch, before: int = 0
    ) -> tuple[pa.RecordBatch | None, list[Rejected]]:
        """What goes in, and the rows that are set aside, each with its reason.

        Rows are numbered from 1, after those that came `before`.
        """
        rows, numbers, rejected = self._without_unknown(batch, before)
        if not rows.num_rows:
            return None, rejected
        if self.topic.on_bad_row == "refuse":
            return self.batch(rows, numbers), rejected
        good: list[pa.RecordBatch] = []
        self._sort_out(rows, numbers, good, rejected)
        return (pa.concat_batches(good) if good else None), rejected

    @property
    def sets_aside(self) -> bool:
        """Whether rows go to the dead letters, for their columns or their values."""
        return bool(self._set_aside) or self.topic.on_bad_row == "dead_letter"

    def _without_unknown(
        self, batch: pa.RecordBatch, before: int
    ) -> tuple[pa.RecordBatch, Sequence[int], list[Rejected]]:
        numbers: Sequence[int] = range(before + 1, before + 1 + batch.num_rows)
        rejected: list[Rejected] = []
        for place, name in self._set_aside:
            has_value = batch.column(place).is_valid()
            rejected += _all_rejected(batch.filter(has_value), f"the topic has no column {name!r}")
            is_left = pc.invert(has_value)
            batch = batch.filter(is_left)
            numbers = list(compress(numbers, is_left.to_pylist()))
        if not self._plans:
            rejected += _all_rejected(batch, "it has no value")
            batch = batch.slice(0, 0)
        return batch, numbers, rejected

    def _sort_out(
        self,
        batch: pa.RecordBatch,
        numbers: Sequence[int],
        good: list[pa.RecordBatch],
        rejected: list[Rejected],
    ) -> None:
        """Halve what cannot go in, until the rows that are to blame stand alone."""
        try:
            good.append(self.batch(batch, numbers))
        except InvalidRequest as error:
            if batch.num_rows == 1:
                rejected += _all_rejected(batch, error.message)
                return
            half = batch.num_rows // 2
            self._sort_out(batch.slice(0, half), numbers[:half], good, rejected)
            self._sort_out(batch.slice(half), numbers[half:], good, rejected)


class Fitter:
    """Fits for one version of a topic, remembered by schema. Safe to share between threads."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._recent: tuple[tuple[pa.Schema, Fit], ...] = ()
        self._fits: dict[pa.Schema, Fit] = {}

    def fit(self, schema: pa.Schema) -> Fit:
        # Arrow compares schemas in a fraction of the time that it needs to hash one.
        for known, found in self._recent:
            if known.equals(schema):
                return found
        found = self._fits.get(schema) or self._decided(schema)
        self._recent = ((schema, found), *self._recent[: _RECENT_MAX - 1])
        return found

    def _decided(self, schema: pa.Schema) -> Fit:
        found = fit(self.topic, schema)
        if len(self._fits) >= _CACHED_MAX:
            self._fits.clear()
        self._fits[schema] = found
        return found


def fit(topic: Topic, schema: pa.Schema) -> Fit:
    """How batches of an Arrow schema go into a topic; InvalidRequest if they cannot."""
    return _Fitting(topic, schema).result()


def schema_of_first(schema: pa.Schema) -> pa.Schema:
    """The columns of a topic that is made from a first batch: those with a type, all optional."""
    check_size(schema)
    fields = [
        pa.field(field.name, field.type) for field in schema if not pa.types.is_null(field.type)
    ]
    if not fields:
        raise _no_columns()
    return pa.schema(fields)


class _Fitting:
    def __init__(self, topic: Topic, schema: pa.Schema) -> None:
        self._topic = topic
        self._source = schema
        self._own = topic.arrow_schema
        self._shaper = Shaper(topic.memory.place, adds=topic.on_unknown_column == "add")

    def result(self) -> Fit:
        self._check_source()
        columns = self._shaped_columns()
        set_aside = self._apply_policy()
        incoming = self._incoming(columns)
        grown = self._topic
        if self._topic.on_unknown_column == "add":
            grown = with_room_for(self._topic, incoming)
        _require_no_clash(grown, incoming, sent=[name for _, name, _ in columns])
        own = self._own if grown is self._topic else grown.arrow_schema
        plans = [_plan(place, own.field(name), shaped) for place, name, shaped in columns]
        fields = [plan.field for plan in plans]
        is_plain = (
            not set_aside
            and [field.name for field in fields] == self._source.names
            and all(plan.convert is _as_it_is for plan in plans)
        )
        required = tuple(each for each in enumerate(fields) if not each[1].nullable)
        return Fit(grown, is_plain, plans, pa.schema(fields), required, set_aside)

    def _check_source(self) -> None:
        check_size(self._source)
        if not self._source.names:
            raise _no_columns()
        check_columns(self._source.names)

    def _shaped_columns(self) -> list[tuple[int, str, Shaped]]:
        """Each column that goes in: where it stands, what the topic calls it, and its type."""
        columns = []
        for place, field in enumerate(self._source):
            name = self._shaper.name((field.name,), field.type, self._own)
            if name is not None:
                at = self._own.get_field_index(name)
                own = self._own.field(at).type if at >= 0 else None
                columns.append((place, name, self._shaper.shape(field.type, own, (field.name,))))
        names = Counter(name for _, name, _ in columns)
        if not names and self._topic.on_unknown_column in {"add", "ignore"}:
            raise _no_columns()
        for name, count in names.items():
            if count > 1:
                raise InvalidRequest(
                    f"column {name!r} is there twice: under this name, and under one that it had",
                    hint="send it once, under its name of now",
                    context={"column": name},
                )
        return columns

    def _apply_policy(self) -> tuple[tuple[int, str], ...]:
        unknown = [*self._shaper.dropped, *self._shaper.unknown]
        if not unknown or self._topic.on_unknown_column in {"add", "ignore"}:
            return ()
        if self._topic.on_unknown_column == "refuse":
            shown = ", ".join(repr(".".join(path)) for path in unknown[:_SHOWN_MAX])
            raise InvalidRequest(
                f"topic {self._topic.name} has no column {shown}",
                hint="leave it out, or have the topic take new columns: "
                "on_unknown_column = add, ignore or dead_letter",
                context={"columns": ", ".join(".".join(path) for path in unknown)},
            )
        first = {path[0]: ".".join(path) for path in reversed(unknown)}
        return tuple((self._source.get_field_index(top), name) for top, name in first.items())

    def _incoming(self, columns: Sequence[tuple[int, str, Shaped]]) -> Schema:
        fields = []
        for place, name, shaped in columns:
            at = self._own.get_field_index(name)
            kind = declared(shaped.type, self._own.field(at).type if at >= 0 else None)
            nullable = self._source.field(place).nullable
            fields.append(pa.field(name, kind, nullable=nullable))
        return schema_from_arrow(pa.schema(fields))


def _require_no_clash(topic: Topic, incoming: Schema, *, sent: Sequence[str]) -> None:
    found = clashes(topic.schema, incoming)
    if not found:
        return
    shown = "; ".join(str(clash) for clash in found[:_SHOWN_MAX])
    more = f" and {len(found) - _SHOWN_MAX} more" if len(found) > _SHOWN_MAX else ""
    raise InvalidRequest(
        f"the rows do not fit topic {topic.name}: {shown}{more}",
        hint="send these columns with the topic's types; `calve topic describe` shows them",
        context={"columns": ", ".join(clash.path for clash in found), "sent": ", ".join(sent)},
    )


def _plan(place: int, own: pa.Field, shaped: Shaped) -> ColumnPlan:
    if is_stored_as(shaped.type, own.type):
        return ColumnPlan(own.with_type(shaped.type), place, shaped.convert or _as_it_is)
    try:
        convert = converter(shaped.type, own.type)
    except Unfit as error:
        raise _HERE.error(error.problem, column=own.name, hint=error.hint) from error
    return ColumnPlan(own, place, shaped.then(convert))


def _as_it_is(array: pa.Array) -> pa.Array:
    return array


def _all_rejected(batch: pa.RecordBatch, reason: str) -> list[Rejected]:
    rows = (batch.slice(row, 1) for row in range(batch.num_rows))
    return [Rejected(arrow_stream(row), ARROW_CONTENT_TYPE, reason) for row in rows]


def arrow_stream(row: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_batch(row)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _no_columns() -> InvalidRequest:
    return InvalidRequest(
        "the rows have no column that the topic could keep",
        hint="send at least one column with a type and a name of the topic's",
    )
