"""SQL over the lake's tables: one SELECT, read-only, bounded, each table at one snapshot."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import duckdb
import pyarrow as pa

from calve.errors import CalveError, InvalidRequest, NotFound
from calve.query.engine import IDLE, NO_LIMITS, Idle, Limits, quoted
from calve.query.rows import Rows, Shown
from calve.query.scan import BATCH_ROWS, iceberg_source, require_spark, spark_batches
from calve.query.statement import Statement, TableAt, parse_statement
from calve.query.stream import Budget, bounded, conform
from calve.tables.answer_types import result_schema
from calve.tables.condition_columns import condition_columns
from calve.tables.engine_choice import Choice, Engine, choose_engine, has_clashing_names
from calve.tables.nearest import meant
from calve.tables.snapshots import parse_moment, snapshot_as_of, told_moment
from calve.tables.views import TableView, view_reference, view_table

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from calve.model import TableName
    from calve.tables.catalog import LakeCatalog

_WHAT: Final = "the statement"
# A DuckDB that was given streams holds on to them, and is not for the next statement.
_EACH_TIME: Final = Idle(0)
_FLOATING: Final = ("FLOAT", "DOUBLE")
# Types that Arrow or the formats of answers do not have, and what is shown instead.
_EXPORTED: Final = re.compile(
    r"(?P<kept>\"(?:[^\"]|\"\")*\")|(?P<huge>\bU?HUGEINT\b)"
    r"|(?P<text>\bTIME WITH TIME ZONE\b|\bINTERVAL\b|\bBIT\b|\bBIGNUM\b|\bJSON\b|\bVARIANT\b"
    r"|\bGEOMETRY\b|\bENUM\((?:[^()']|'(?:[^']|'')*')*\))"
)


def run_sql(
    catalog: LakeCatalog,
    text: str,
    *,
    limits: Limits = NO_LIMITS,
    spark: Callable[[], SparkSession] | None = None,
) -> Rows:
    """Run one SELECT over the lake's tables.

    Each table is looked up once, so all of the statement sees one snapshot of it. `AT (VERSION =>
    …)`, `TIMESTAMP`, `TAG` and `BRANCH` name another.
    """
    statement = parse_statement(text)
    if statement.lists_tables:
        return _table_names(catalog)
    sources = _resolve(catalog, statement)
    with_own = statement.names_own_columns
    query = statement.sql(
        lambda table: sources[table].sql(
            with_own=with_own, guarding_null=statement.takes_null_for_a_value
        ),
        lambda table: sources[table].own_columns() if with_own else [],
    )
    return Rows(
        lambda: _answer(query, list(sources.values()), limits, spark),
        shown=_shown(sources),
    )


def _shown(sources: dict[TableAt, Source]) -> Shown:
    times = tuple(
        f"{at.name} {told_moment(parse_moment(at.value or ''), source.view.snapshot_id)}"
        for at, source in sources.items()
        if at.unit == "timestamp"
    )
    if len(sources) != 1:
        return Shown(times=times)
    (only,) = sources.values()
    return Shown(only.view.snapshot_id, only.view.snapshot_at, times=times)


@dataclass(frozen=True, slots=True)
class Source:
    """A table of a statement: what of it, who reads it, and its name for DuckDB if not DuckDB."""

    view: TableView
    choice: Choice
    stream_name: str

    def sql(self, *, with_own: bool, guarding_null: bool) -> str:
        names = self.view.columns if with_own else self.view.shown_columns
        kinds = {column.name: column.type for column in condition_columns(self.view.schema)}
        listed = ", ".join(
            _guarded(name) if guarding_null or _is_floating(kinds.get(name, "")) else quoted(name)
            for name in names
        )
        place = quoted(self.stream_name)
        if self.view.snapshot is not None and self.choice.engine is Engine.DUCKDB:
            place = iceberg_source(self.view)
        return f"SELECT {listed} FROM {place}"  # noqa: S608

    def own_columns(self) -> list[str]:
        shown = set(self.view.shown_columns)
        return [name for name in self.view.columns if name not in shown]

    def is_stream(self) -> bool:
        return self.view.snapshot is None or self.choice.engine is not Engine.DUCKDB


def _guarded(name: str) -> str:
    """The column, in a form from which DuckDB makes no filter of its own.

    Its filters skip files by bounds, which say nothing of NaN; and with `k IS DISTINCT FROM 1 OR
    k = 2` they skip files in which k is nothing but null.
    """
    column = quoted(name)
    return f"CASE WHEN {column} IS NULL THEN NULL ELSE {column} END AS {column}"


def _is_floating(kind: str) -> bool:
    return any(word in kind for word in _FLOATING)


def _resolve(catalog: LakeCatalog, statement: Statement) -> dict[TableAt, Source]:
    loaded: dict[TableName, Table] = {}
    sources: dict[TableAt, Source] = {}
    for number, wanted in enumerate(statement.tables):
        if wanted.name not in loaded:
            loaded[wanted.name] = _load(catalog, wanted.name)
        view = _view(loaded[wanted.name], wanted)
        if has_clashing_names(view.schema):
            raise InvalidRequest(
                f"the table {wanted.name} has columns whose names differ in case only",
                hint="SQL cannot tell them apart; rename one, or use `calve table query`",
            )
        sources[wanted] = Source(view, choose_engine(view), f"stream_{number}")
    return sources


def _load(catalog: LakeCatalog, name: TableName) -> Table:
    try:
        return catalog.load_table(name)
    except NotFound as error:
        known = [str(each) for each in catalog.list_tables()]
        raise NotFound(
            f"there is no table {str(name)!r}{meant(str(name), known)}",
            hint="`SHOW TABLES` lists them",
        ) from error


def _view(table: Table, wanted: TableAt) -> TableView:
    value = wanted.value or ""
    match wanted.unit:
        case "version":
            if not re.fullmatch(r"\d{1,19}", value):
                raise InvalidRequest(f"{value!r} is no snapshot's id", hint="ids are whole numbers")
            return view_table(table, int(value))
        case "timestamp":
            return view_table(table, snapshot_as_of(table, parse_moment(value)).id)
        case "branch":
            return view_reference(table, branch=value)
        case "tag":
            return view_reference(table, tag=value)
    return view_table(table)


def _table_names(catalog: LakeCatalog) -> Rows:
    names = pa.table({"name": pa.array([str(n) for n in catalog.list_tables()], pa.string())})
    return Rows(names.to_reader)


def _answer(
    query: str,
    sources: list[Source],
    limits: Limits,
    spark: Callable[[], SparkSession] | None,
) -> pa.RecordBatchReader:
    by_duckdb = [source for source in sources if not source.is_stream()]
    streams = [_Stream(source, spark) for source in sources if source.is_stream()]
    used = (_EACH_TIME if streams else IDLE).take(
        [source.choice.access for source in by_duckdb if source.choice.access],
        paths={path for source in by_duckdb for path in source.choice.elsewhere},
        limits=limits,
        reads_arrow=bool(streams),
    )
    connection = used.connection
    for stream in streams:
        connection.register(stream.name, stream)
    budget = Budget(limits, what=_WHAT)
    with _own_words(streams), budget.working(connection):
        reader = connection.execute(query).to_arrow_reader(BATCH_ROWS)
        if any(_is_foreign(field.type) for field in reader.schema):
            reader = connection.execute(_exported(connection, query)).to_arrow_reader(BATCH_ROWS)
    answer = bounded(reader, _answer_schema(reader.schema), budget, used)
    return pa.RecordBatchReader.from_batches(answer.schema, _told(answer, streams))


def _told(answer: pa.RecordBatchReader, streams: list[_Stream]) -> Iterator[pa.RecordBatch]:
    with _own_words(streams):
        yield from answer


@contextmanager
def _own_words(streams: list[_Stream]) -> Iterator[None]:
    """Raise what went wrong in a stream, of which DuckDB only repeats some words."""
    try:
        yield
    except (CalveError, OSError, pa.ArrowException) as error:
        first = next((stream.error for stream in streams if stream.error), None)
        if first is None or first is error:
            raise
        raise first from error


class _Stream:
    """A table that DuckDB does not read itself, as a new Arrow stream for each time it is asked."""

    def __init__(self, source: Source, spark: Callable[[], SparkSession] | None) -> None:
        self._source = source
        self._spark = spark
        self._schema = result_schema(source.view.schema)
        self.name = source.stream_name
        self.error: CalveError | None = None
        if source.view.snapshot is not None and source.choice.engine is Engine.SPARK:
            require_spark(source.choice, spark)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self._schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        view, choice = self._source.view, self._source.choice
        if view.snapshot is None:
            return
        if choice.engine is Engine.SPARK:
            batches = spark_batches(view, None, choice, self._spark)
        else:
            # Loading it waits until a table needs it.
            from calve.tables.arrow_scan import arrow_batches

            batches = arrow_batches(view, None)
        try:
            for batch in batches:
                yield conform(batch, self._schema)
        except CalveError as error:
            self.error = error
            raise


def _exported(connection: duckdb.DuckDBPyConnection, query: str) -> str:
    """The query with casts around it, for types that only DuckDB has."""
    described = connection.execute(f"DESCRIBE {query}").fetchall()
    columns = [f"c{number}" for number in range(len(described))]
    listed = ", ".join(
        f"CAST({column} AS {_EXPORTED.sub(_stand_in, kind)}) AS {quoted(name)}"
        for column, (name, kind, *_) in zip(columns, described, strict=True)
    )
    return f"SELECT {listed} FROM ({query}) AS answer({', '.join(columns)})"  # noqa: S608


def _stand_in(found: re.Match[str]) -> str:
    if found["kept"]:
        return found["kept"]
    return "DECIMAL(38,0)" if found["huge"] else "VARCHAR"


def _is_foreign(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.extension_name not in {"arrow.uuid", "arrow.bool8"}
    if pa.types.is_interval(kind) or pa.types.is_dictionary(kind) or pa.types.is_union(kind):
        return True
    return any(_is_foreign(kind.field(n).type) for n in range(kind.num_fields))


def _answer_schema(schema: pa.Schema) -> pa.Schema:
    seen: dict[str, int] = {}
    fields = []
    for field in schema:
        count = seen[field.name] = seen.get(field.name, -1) + 1
        name = field.name if count == 0 else f"{field.name}_{count}"
        fields.append(pa.field(name, _plain_booleans(field.type)))
    return pa.schema(fields)


def _plain_booleans(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.bool8":
        return pa.bool_()
    if pa.types.is_list(kind):
        return pa.list_(_plain_booleans(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_plain_booleans(kind.key_type), _plain_booleans(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _plain_booleans(f.type)) for f in kind])
    return kind
