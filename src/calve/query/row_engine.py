"""DuckDB over rows that are in memory: which of them a condition chooses, what they become.

Rows are told apart by their number, so the order in which DuckDB answers does not matter. Nothing
outside of what is handed over can be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Self

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from calve.condition import SESSION, Condition, Scalar
from calve.errors import InvalidRequest
from calve.query.engine import ARROW_FILTERS
from calve.query.translate import interruptible

_UUID: Final = "unhex(replace(CAST({0} AS VARCHAR), '-', ''))"


class RowEngine:
    """A DuckDB without tables. For several threads; a context manager."""

    def __init__(self) -> None:
        self._connection = duckdb.connect(
            config={
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "enable_external_access": False,
                "disabled_optimizers": ARROW_FILTERS,
            }
        )

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def matching(self, rows: pa.Table, condition: Condition) -> pa.Array:
        """The numbers of the rows for which the condition is true, in their order."""
        return self._chosen(rows.select(condition.columns), condition.duckdb_filter())

    def values(self, rows: pa.Table, scalars: Mapping[str, tuple[Scalar, pa.DataType]]) -> pa.Table:
        """What the expressions give for each row, by name and in the rows' order."""
        used = {name for scalar, _ in scalars.values() for name in scalar.columns}
        listed = ", ".join(
            f"{_shaped(scalar)} AS {_quoted(f'v{place}')}"
            for place, (scalar, _) in enumerate(scalars.values())
        )
        given = rows.select([name for name in rows.column_names if name in used])
        number = _quoted(_free_name(given))
        found = self._asked(given, f"SELECT {listed} FROM given ORDER BY {number}")  # noqa: S608
        columns = [
            _converted(found.column(place), kind)
            for place, (_, kind) in enumerate(scalars.values())
        ]
        return pa.table(columns, names=list(scalars))

    def matches(
        self, rows: pa.Table, source: pa.Table, keys: Sequence[str]
    ) -> tuple[pa.Array, pa.Array]:
        """For each row that has the keys of a source row: its number, and the source row's."""
        on = " AND ".join(f"given.{_quoted(key)} = source.{_quoted(key)}" for key in keys)
        number = _quoted(_free_name(rows.select(keys)))
        sql = (
            f"SELECT given.{number} AS g, source.{number} AS s "  # noqa: S608
            f"FROM given JOIN source ON {on} ORDER BY 1"
        )
        found = self._asked(rows.select(keys), sql, source=_numbered(source.select(keys)))
        return found.column(0).combine_chunks(), found.column(1).combine_chunks()

    def different(self, old: pa.Table, new: pa.Table) -> pa.Array:
        """The numbers of the rows in which two tables of the same columns differ."""
        if not old.num_columns:
            return pa.array([], pa.int64())
        names = [f"c{place}" for place in range(old.num_columns)]
        pairs = pa.table(
            [*old.columns, *new.columns],
            names=[*(f"old_{name}" for name in names), *(f"new_{name}" for name in names)],
        )
        where = " OR ".join(f"(old_{name} IS DISTINCT FROM new_{name})" for name in names)
        return self._chosen(pairs, where)

    def doubled(
        self, rows: pa.Table, keys: Sequence[str], *, shown: int
    ) -> list[tuple[object, ...]]:
        """Some of the keys that several rows have, and how many have them."""
        listed = ", ".join(map(_quoted, keys))
        sql = (
            f"SELECT {listed}, count(*) FROM given GROUP BY {listed} "  # noqa: S608
            f"HAVING count(*) > 1 ORDER BY ALL LIMIT {shown}"
        )
        found = self._asked(rows.select(keys), sql)
        return list(zip(*(column.to_pylist() for column in found.columns), strict=True))

    def _chosen(self, rows: pa.Table, where: str) -> pa.Array:
        number = _quoted(_free_name(rows))
        sql = f"SELECT {number} FROM given WHERE {where}"  # noqa: S608
        numbers = self._asked(rows, sql).column(0).combine_chunks()
        return numbers.take(pc.sort_indices(numbers))

    def _asked(self, rows: pa.Table, sql: str, **others: pa.Table) -> pa.Table:
        with self._over(rows, **others) as cursor, interruptible(cursor):
            found: pa.Table = cursor.execute(sql).to_arrow_table()
            return found

    @contextmanager
    def _over(self, rows: pa.Table, **others: pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._connection.cursor() as cursor:
            cursor.execute(SESSION)
            cursor.register("given", _numbered(rows))
            for name, table in others.items():
                cursor.register(name, table)
            try:
                yield cursor
            except duckdb.Error as error:
                raise InvalidRequest(
                    f"a row cannot be worked out: {_first_line(error)}",
                    hint="use TRY_CAST, or leave such rows out by a condition",
                ) from error


def _numbered(rows: pa.Table) -> pa.Table:
    return rows.append_column(_free_name(rows), pa.arange(0, rows.num_rows))


def _free_name(rows: pa.Table) -> str:
    """A name for the rows' numbers, which no column has."""
    name = "#"
    while name in rows.column_names:
        name += "#"
    return name


def _shaped(scalar: Scalar) -> str:
    # DuckDB hands a UUID over as text.
    return _UUID.format(scalar.duckdb_sql()) if scalar.type == "UUID" else scalar.duckdb_sql()


def _converted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if isinstance(kind, pa.BaseExtensionType):
        stored = column.cast(kind.storage_type)
        chunks = [pa.ExtensionArray.from_storage(kind, chunk) for chunk in stored.chunks]
        return pa.chunked_array(chunks, kind)
    try:
        return column if column.type == kind else column.cast(kind)
    except pa.ArrowInvalid as error:
        raise InvalidRequest(f"a value does not fit its column: {error}") from error


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _first_line(error: duckdb.Error) -> str:
    line = str(error).partition("\n")[0]
    return line.partition(": ")[2] or line
