"""SQL over the lake's tables: one SELECT, read-only, bounded, each table at one point in time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import duckdb
import pyarrow as pa

from calve.access import Caller
from calve.errors import CalveError, InvalidRequest, NotFound
from calve.query.by_spark import require_spark, spark_batches
from calve.query.engine import IDLE, NO_LIMITS, Idle, Limits, quoted
from calve.query.parameters import Parameters, checked_parameters
from calve.query.rows import AsOf, Rows, Shown
from calve.query.scan import BATCH_ROWS
from calve.query.sought import Sought
from calve.query.source import Source, TableSource
from calve.query.statement import Statement, TableAt, parse_statement
from calve.query.stream import Budget, Stop, bounded, conform
from calve.query.tail_rows import StreamedRows
from calve.tables.answer_types import result_schema
from calve.tables.engine_choice import Engine, choose_engine, has_clashing_names
from calve.tables.lookup import partitioned_by, ranges_with
from calve.tables.nearest import meant
from calve.tables.snapshots import parse_moment, snapshot_as_of, told_moment
from calve.tables.views import TableView, view_reference, view_table

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from calve.model import TableName
    from calve.query.tail import Tail, Tails
    from calve.tables.catalog import LakeCatalog

_WHAT: Final = "the statement"
# A DuckDB that was given streams holds on to them, and is not for the next statement.
_EACH_TIME: Final = Idle(0)
# Types that Arrow or the formats of answers do not have, and what is shown instead.
_EXPORTED: Final = re.compile(
    r"(?P<kept>\"(?:[^\"]|\"\")*\")|(?P<huge>\bU?HUGEINT\b)"
    r"|(?P<text>\bTIME WITH TIME ZONE\b|\bINTERVAL\b|\bBIT\b|\bBIGNUM\b|\bJSON\b|\bVARIANT\b"
    r"|\bGEOMETRY\b|\bENUM\((?:[^()']|'(?:[^']|'')*')*\))"
)


HOST: Final = Caller.of_host()


def run_sql(  # noqa: PLR0913
    catalog: LakeCatalog,
    text: str,
    *,
    parameters: Parameters | None = None,
    limits: Limits = NO_LIMITS,
    spark: Callable[[], SparkSession] | None = None,
    tails: Tails | None = None,
    tenant: str | None = None,
    caller: Caller = HOST,
    stop: Stop | None = None,
) -> Rows:
    """Run one SELECT over the lake's tables.

    Each table is looked up once, so all of the statement sees one snapshot of it. `AT (VERSION =>
    …)`, `TIMESTAMP`, `TAG` and `BRANCH` name another. With `tails`, a topic's table has the rows
    that are durable in its log too, except where AT names a state of the table. `parameters` are
    the values of `?`, `$1` or `$name`. For a `tenant`, and for a `caller`, there are no tables but
    its own. `stop` ends it from another thread.
    """
    values = None if parameters is None else checked_parameters(parameters)
    statement = parse_statement(
        text,
        has_values=values is not None,
        is_bounded=limits.memory_bytes_max is not None,
        name_of=caller.table_name,
    )
    known = _Known(catalog, tails, tenant, caller)
    if statement.lists_tables:
        return _table_names(known)
    sources = _resolve(known, statement)
    with_own = statement.names_own_columns
    query = statement.sql(
        lambda table: sources[table].sql(
            with_own=with_own, guarding_null=statement.takes_null_for_a_value
        ),
        lambda table: sources[table].own_columns() if with_own else [],
    )
    return Rows(
        lambda: _answer(_Asked(query, values, limits, stop), list(sources.values()), spark),
        shown=_shown(sources),
    )


def _shown(sources: dict[TableAt, Source]) -> Shown:
    views = {at: source.table.view for at, source in sources.items() if source.table}
    times = tuple(
        f"{at.name} {told_moment(parse_moment(at.value or ''), view.snapshot_id)}"
        for at, view in views.items()
        if at.unit == "timestamp"
    )
    as_of = tuple(_as_of(str(at.name), source) for at, source in sources.items())
    if len(sources) != 1 or not views:
        return Shown(times=times, as_of=as_of)
    (only,) = views.values()
    return Shown(only.snapshot_id, only.snapshot_at, times=times, as_of=as_of)


def _as_of(name: str, source: Source) -> AsOf:
    spans = source.tail.spans if source.tail else {}
    return AsOf(
        name,
        source.table.view.snapshot_id if source.table else None,
        {partition: span.committed for partition, span in spans.items()},
        {partition: span.durable for partition, span in spans.items()},
    )


class _Asked(NamedTuple):
    """What DuckDB is asked, with which values, and what bounds it."""

    query: str
    values: Parameters | None
    limits: Limits
    stop: Stop | None


class _Known:
    """What there is for whoever asks."""

    def __init__(
        self, catalog: LakeCatalog, tails: Tails | None, tenant: str | None, caller: Caller
    ) -> None:
        self._catalog = catalog
        self._tails = tails
        self._tenant = tenant
        self._caller = caller

    def names(self) -> list[TableName]:
        topics = self._tails.topics() if self._tails else ()
        return sorted(filter(self._has, {*self._catalog.list_tables(), *topics}))

    def joined(self, names: list[TableName]) -> dict[TableName, tuple[Table | None, Tail | None]]:
        if self._tails is None:
            return {}
        return self._tails.joined(filter(self._has, names), self._catalog.find_table)

    def table(self, name: TableName) -> Table | None:
        return self._catalog.find_table(name) if self._has(name) else None

    def source(self, number: int, view: TableView, sought: Sought) -> TableSource:
        choice = choose_engine(view)
        ranges = None
        # Where the time is named, bounds choose the files, and filters of all others would be read
        # for nothing.
        if choice.engine is Engine.DUCKDB and not sought.named & partitioned_by(view):
            ranges = ranges_with(view, sought.texts, self._catalog.filters)
        return TableSource(number, view, choice, ranges)

    def _has(self, name: TableName) -> bool:
        return self._tenant in {None, name.tenant} and self._caller.sees(name)


def _resolve(known: _Known, statement: Statement) -> dict[TableAt, Source]:
    found = known.joined([wanted.name for wanted in statement.tables if wanted.unit is None])
    sources: dict[TableAt, Source] = {}
    for number, wanted in enumerate(statement.tables):
        if wanted.name not in found:
            found[wanted.name] = known.table(wanted.name), None
        table, tail = found[wanted.name]
        if table is None and (tail is None or wanted.unit is not None):
            raise _no_table(known, wanted.name)
        view = None if table is None else _view(table, wanted)
        made = None if view is None else known.source(number, view, statement.sought[wanted])
        source = Source(number, made, tail if wanted.unit is None else None)
        if has_clashing_names(source.schema):
            raise InvalidRequest(
                f"the table {wanted.name} has columns whose names differ in case only",
                hint="SQL cannot tell them apart; rename one, or use `calve table query`",
            )
        sources[wanted] = source
    return sources


def _no_table(known: _Known, name: TableName) -> NotFound:
    near = meant(str(name), [str(each) for each in known.names()])
    return NotFound(f"there is no table {str(name)!r}{near}", hint="`SHOW TABLES` lists them")


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


def _table_names(known: _Known) -> Rows:
    listed = [str(each) for each in known.names()]
    return Rows(pa.table({"name": pa.array(listed, pa.string())}).to_reader)


def _answer(
    asked: _Asked, sources: list[Source], spark: Callable[[], SparkSession] | None
) -> pa.RecordBatchReader:
    tables = [source.table for source in sources if source.table]
    by_duckdb = [table for table in tables if not table.is_stream()]
    streams = [_Stream(table, spark) for table in tables if table.is_stream()]
    tails = {
        source.tail_name: rows for source in sources if (rows := source.tail_rows()) is not None
    }
    streamed: list[_Stream | StreamedRows] = [*streams]
    streamed += [rows for rows in tails.values() if isinstance(rows, StreamedRows)]
    used = (_EACH_TIME if streamed else IDLE).take(
        [table.choice.access for table in by_duckdb if table.choice.access],
        paths={path for table in by_duckdb for path in table.choice.elsewhere},
        limits=asked.limits,
        reads_arrow=bool(streams),
    )
    for name, rows in [*((stream.name, stream) for stream in streams), *tails.items()]:
        used.name(name, rows)
    budget = Budget(asked.limits, what=_WHAT, stop=asked.stop)
    try:
        with _own_words(streamed), budget.working(used.connection):
            reader = _executed(used.connection, asked.query, asked.values)
    except BaseException:
        used.discard()
        raise
    answer = bounded(reader, _answer_schema(reader.schema), budget, used)
    return pa.RecordBatchReader.from_batches(answer.schema, _told(answer, streamed))


def _executed(
    connection: duckdb.DuckDBPyConnection, query: str, values: Parameters | None
) -> pa.RecordBatchReader:
    reader = _run(connection, query, values).to_arrow_reader(BATCH_ROWS)
    if any(_is_foreign(field.type) for field in reader.schema):
        exported = _exported(query, _run(connection, f"DESCRIBE {query}", values).fetchall())
        reader = _run(connection, exported, values).to_arrow_reader(BATCH_ROWS)
    return reader


def _run(
    connection: duckdb.DuckDBPyConnection, query: str, values: Parameters | None
) -> duckdb.DuckDBPyConnection:
    # With values, even none, DuckDB loads pandas to see whether one is of its types.
    return connection.execute(query) if values is None else connection.execute(query, values)


def _told(
    answer: pa.RecordBatchReader, streams: Sequence[_Stream | StreamedRows]
) -> Iterator[pa.RecordBatch]:
    with _own_words(streams):
        yield from answer


@contextmanager
def _own_words(streams: Sequence[_Stream | StreamedRows]) -> Iterator[None]:
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

    def __init__(self, source: TableSource, spark: Callable[[], SparkSession] | None) -> None:
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
            batches = spark_batches(view, choice, self._spark)
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


def _exported(query: str, described: Sequence[Sequence[Any]]) -> str:
    """The query with casts around it, for types that only DuckDB has."""
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
