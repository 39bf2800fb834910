"""One SELECT as DuckDB's own parser reads it, checked, with the lake's tables put in.

The tree is DuckDB's, so there is no second parser to disagree with it. Table names are the only way
to data: every one is a table of the lake or a WITH of the statement, and what else could lead
somewhere, functions that read files or tell of the process, is refused. DuckDB is confined as well.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import duckdb

from calve.errors import InvalidRequest
from calve.model import TableName
from calve.query.engine import connect_confined, literal
from calve.query.sizes import bound_sizes
from calve.query.sought import sought_texts
from calve.query.translate import message_of
from calve.query.tree import Node, walk
from calve.tables.columns import OWN_PREFIX

TEXT_BYTES_MAX: Final = 256 * 1024
_DEPTH_MAX: Final = 400
_REFERENCE: Final = "calve_reference"
_TABLE_FUNCTIONS: Final = frozenset(
    {"generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"}
)
# They tell of the process, its settings or its files, run text, or leave something behind.
_REFUSED: Final = re.compile(
    r"getenv|getvariable|current_setting|current_query|set_config|write_log|nextval|currval|setseed"
    r"|json_(de)?serialize_(sql|plan)|json_execute_.*|sql_auto_complete|query(_table)?|txid_current"
    r"|(read|parquet|iceberg|duckdb|pragma|pg|sniff|which|icu|sqlite|st_read|has)_.*|glob|checkpoint"
    r"|in_search_path|current_(schemas?|database|catalog|connection_id)|test_.*|summary"
)
# An AT clause, and everything else that could look like one: texts, names, comments.
_SKIPPED: Final = (
    r"[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/"
    r"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$"
)
_AT: Final = re.compile(
    rf"(?:{_SKIPPED})|(?P<default>\bdefault(?=\.))|(?P<at>\bAT\s*\(\s*(?P<unit>VERSION|TIMESTAMP|TAG|BRANCH)\s*=>\s*"
    r"(?P<value>[^()]*?'(?:[^']|'')*'|[^()']*?)\s*\))"
    r"(?P<alias>\s+(?:AS\s+)?(?:\"(?:[^\"]|\"\")+\"|[a-z_]\w*)\b)?",
    re.IGNORECASE | re.DOTALL,
)
_FIRST_WORD: Final = re.compile(r"\A(?:\s|--[^\n]*\n|/\*.*?\*/)*(\w+)", re.DOTALL)
_EXPLAIN: Final = re.compile(
    r"\A(?:\s|--[^\n]*\n|/\*.*?\*/)*(EXPLAIN(?:\s+ANALYZE)?)\b", re.IGNORECASE | re.DOTALL
)
_PIVOT: Final = re.compile(r"\bpivot\b", re.IGNORECASE)
_CHANGES: Final = frozenset(
    {"alter", "copy", "create", "delete", "drop", "insert", "merge", "truncate", "update"}
)
_lock: Final = threading.Lock()
_ONLY_SELECT: Final = (
    "write one SELECT; WITH, VALUES, EXPLAIN, DESCRIBE, SUMMARIZE and SHOW TABLES work too"
)


@dataclass(frozen=True, slots=True)
class TableAt:
    """A table as a statement names it: now, or at a `version`, `timestamp`, `tag` or `branch`."""

    name: TableName
    unit: str | None = None
    value: str | None = None


class Statement:
    """A checked SELECT. `tables` are those of the lake that it reads, `sought` what of them."""

    def __init__(
        self,
        tree: Node,
        explain: str = "",
        *,
        has_values: bool = False,
        name_of: Callable[[str], TableName] = TableName.parse,
    ) -> None:
        """With `explain`, only its plan is wanted; `has_values` for its parameters.

        `name_of` says what a name means to whoever asks.
        """
        self._name_of = name_of
        self._tree = tree
        self._explain = explain
        self._has_values = has_values
        self.lists_tables = _lists_tables(tree)
        self._found: list[tuple[Node, TableAt]] = []
        if not self.lists_tables:
            self._visit(tree, frozenset(), 0)
        self.tables = list(dict.fromkeys(table for _, table in self._found))
        self.names_own_columns = any(
            name.lower().startswith(OWN_PREFIX)
            for node in walk(tree)
            if node.get("class") == "COLUMN_REF"
            for name in node["column_names"]
        )
        self._name_columns()
        self.sought = sought_texts(tree, self._found)
        self.takes_null_for_a_value = any(_compares_with_null(node) for node in walk(tree))

    def sql(self, source: Callable[[TableAt], str], own: Callable[[TableAt], list[str]]) -> str:
        """The statement for DuckDB; each table is read from what `source` says. Only once.

        `own` are the columns of a table that `*` does not show.
        """
        made: dict[TableAt, str] = {table: source(table) for table in self.tables}
        hidden: dict[int, list[str]] = {}
        for node, table in self._found:
            node_alias = node["alias"] or table.name.name
            taken = _from_clause(made[table])
            kept = {key: node[key] for key in ("sample", "column_name_alias")}
            node.clear()
            node.update({**taken, **kept, "alias": node_alias})
            hidden[id(node)] = own(table)
        if self.names_own_columns:
            _hide_own_columns(self._tree, hidden)
        return f"{self._explain} {_deserialized(self._tree)}".lstrip()

    def _name_columns(self) -> None:
        """Name columns that read tables by what was written: DuckDB would tell where those lie."""
        lake = {id(node) for node, _ in self._found}
        for select in walk(self._tree):
            if lake and select.get("type") == "SELECT_NODE":
                for column in select["select_list"]:
                    if not column["alias"] and any(id(each) in lake for each in walk(column)):
                        column["alias"] = _written(column)

    def _visit(self, node: Any, ctes: frozenset[str], depth: int) -> None:
        if depth > _DEPTH_MAX:
            raise InvalidRequest("the statement is nested too deeply", hint="write it flatter")
        if isinstance(node, list):
            for each in node:
                self._visit(each, ctes, depth + 1)
            return
        if not isinstance(node, dict):
            return
        if "cte_map" in node:
            ctes = self._visit_ctes(node["cte_map"]["map"], ctes, depth)
        self._check(node, ctes)
        for key, value in node.items():
            if key not in {"cte_map", "at_clause"}:
                self._visit(value, ctes, depth + 1)

    def _visit_ctes(self, ctes: list[Node], known: frozenset[str], depth: int) -> frozenset[str]:
        """Each sees those before it, and itself only if it is recursive."""
        for cte in ctes:
            name = cte["key"].lower()
            query = cte["value"]["query"]
            is_recursive = query.get("node", query).get("type") == "RECURSIVE_CTE_NODE"
            self._visit(query, known | {name} if is_recursive else known, depth + 1)
            known |= {name}
        return known

    def _check(self, node: Node, ctes: frozenset[str]) -> None:
        kind = node.get("type")
        if node.get("class") in {"FUNCTION", "WINDOW"} and "function_name" in node:
            _check_function(node["function_name"])
        match kind:
            case "BASE_TABLE":
                self._check_table(node, ctes)
            case "TABLE_FUNCTION":
                _check_table_function(node["function"]["function_name"])
            case "SHOW_REF" if node.get("query") is None:
                raise InvalidRequest("only SHOW TABLES can be shown", hint=_ONLY_SELECT)
            case "VALUE_PARAMETER" if not self._has_values:
                raise InvalidRequest(
                    "the statement has a parameter, and there is no value for it",
                    hint="give it with --param, in a program as `parameters`, or write the value",
                )

    def _check_table(self, node: Node, ctes: frozenset[str]) -> None:
        parts = [node["catalog_name"], node["schema_name"], node["table_name"]]
        written = [part for part in parts if part]
        if len(written) == 1 and written[0].lower() in ctes and node.get("at_clause") is None:
            return
        self._found.append((node, _table_at(written, node.get("at_clause"), self._name_of)))


def parse_statement(
    text: str,
    *,
    has_values: bool = False,
    is_bounded: bool = False,
    name_of: Callable[[str], TableName] = TableName.parse,
) -> Statement:
    """Read one SELECT; InvalidRequest for whatever is not one.

    One that `is_bounded` makes no lists and texts that are larger than some bound.
    """
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            "the statement is not valid Unicode",
            hint="write it in UTF-8; the terminal or the script may use another encoding",
        ) from error
    if size > TEXT_BYTES_MAX:
        raise InvalidRequest(f"the statement is longer than {TEXT_BYTES_MAX:,} bytes")
    if not text.strip():
        raise InvalidRequest("the statement is empty", hint=_ONLY_SELECT)
    if "\0" in text:
        raise InvalidRequest("the statement has a NUL character in it")
    found = _EXPLAIN.match(text)
    explain = " ".join(found[1].upper().split()) if found else ""
    tree = _serialized(_AT.sub(_rewritten, text[found.end() :] if found else text))
    if len(tree["statements"]) != 1:
        raise InvalidRequest("there is not exactly one statement", hint="send them one by one")
    try:
        if is_bounded:
            bound_sizes(tree, _serialized, _written)
        return Statement(tree, explain, has_values=has_values, name_of=name_of)
    except RecursionError as error:
        raise InvalidRequest("the statement is nested too deeply") from error


def _serialized(text: str) -> Node:
    # As a literal: for a parameter DuckDB loads pandas, to see whether it is one of its values.
    ask = (
        f"SELECT json_serialize_sql({literal(text)}, skip_null := false, skip_empty := false, "
        "skip_default := false)"
    )
    try:
        found = _parser().execute(ask).fetchone()
    except duckdb.Error as error:
        raise _unreadable(message_of(error)) from None
    assert found is not None
    tree: Node = json.loads(found[0])
    if not tree["error"]:
        return tree
    if tree["error_type"] == "not implemented":
        raise _no_select(text)
    raise _unreadable(tree["error_message"])


def _no_select(text: str) -> InvalidRequest:
    """What somebody may have wanted, and how to get it."""
    found = _FIRST_WORD.match(text)
    word = found[1].lower() if found else ""
    if word in _CHANGES:
        return InvalidRequest(
            "a question in SQL changes nothing",
            hint="`calve table --help` lists the commands that do: insert, update, delete, upsert "
            "and others",
        )
    if _PIVOT.search(text):
        return InvalidRequest(
            "PIVOT cannot be run here",
            hint="write a column for each value: sum(x) FILTER (WHERE kind = 'a') AS a, …",
        )
    return InvalidRequest("only a SELECT can be run here", hint=_ONLY_SELECT)


def _unreadable(message: str) -> InvalidRequest:
    if "expression depth" in message:
        return InvalidRequest("the statement is nested too deeply", hint="write it flatter")
    return InvalidRequest(f"the statement cannot be read: {message}", hint=_ONLY_SELECT)


def _deserialized(tree: Node) -> str:
    ask = f"SELECT json_deserialize_sql({literal(json.dumps(tree))}::JSON)"
    found = _parser().execute(ask).fetchone()
    assert found is not None
    return str(found[0])


def _written(expression: Node) -> str:
    """An expression as text."""
    tree = _serialized("SELECT 1")
    tree["statements"][0]["node"]["select_list"] = [expression]
    return _deserialized(tree).removeprefix("SELECT ")


def _parser() -> duckdb.DuckDBPyConnection:
    """A DuckDB that only reads text; one for each process, as a fork must not use its parent's."""
    with _lock:
        return _parser_of(os.getpid()).cursor()


@lru_cache(maxsize=1)
def _parser_of(_process: int) -> duckdb.DuckDBPyConnection:
    return connect_confined()


def _from_clause(source: str) -> Node:
    tree = _serialized(f"SELECT * FROM ({source}) AS t")  # noqa: S608
    taken: Node = tree["statements"][0]["node"]["from_table"]
    return taken


def _lists_tables(tree: Node) -> bool:
    source = tree["statements"][0]["node"].get("from_table") or {}
    name = str(source.get("table_name", "")).strip('"').lower()
    is_show = source.get("type") == "SHOW_REF" and source.get("query") is None
    return is_show and name in {"tables", "__show_tables_expanded"}


def _compares_with_null(node: Node) -> bool:
    """Whether it is IS [NOT] DISTINCT FROM, which IS [NOT] TRUE is too; but not to join columns."""
    if node.get("class") != "COMPARISON" or "DISTINCT_FROM" not in node["type"]:
        return False
    return any(node[side].get("class") != "COLUMN_REF" for side in ("left", "right"))


def _check_function(name: str) -> None:
    if _REFUSED.fullmatch(name.lower()):
        raise InvalidRequest(
            f"the function {name} cannot be used here",
            hint="a statement reads the lake's tables and nothing else",
        )


def _check_table_function(name: str) -> None:
    if name.lower() not in _TABLE_FUNCTIONS:
        raise InvalidRequest(
            f"the table function {name} cannot be used here",
            hint="name a table of the lake; `SHOW TABLES` lists them",
        )


def _table_at(written: list[str], at: Node | None, name_of: Callable[[str], TableName]) -> TableAt:
    if len(written) == 2:
        raise InvalidRequest(
            f"{'.'.join(written)!r} is not a table name",
            hint="write tenant.dataset.name, or a short name for default.default.name",
        )
    # SQL does not tell upper from lower case in names; the lake's names are lower.
    name = name_of(".".join(part.lower() for part in written))
    if at is None:
        return TableAt(name)
    unit, value = _at_value(at["unit"].lower(), at["expr"])
    return TableAt(name, unit, value)


def _at_value(unit: str, expression: Node) -> tuple[str, str]:
    node = expression
    if node.get("class") == "FUNCTION" and node.get("function_name") == _REFERENCE:
        named, node = node["children"][:2]
        unit = named["value"]["value"]
    if node.get("class") == "CAST":
        node = node["child"]
    constant = node.get("value") if node.get("class") == "CONSTANT" else None
    # A decimal comes as its digits, and a number beyond 64 bits as two.
    if not constant or constant["is_null"] or constant["type"]["id"] in {"DECIMAL", "HUGEINT"}:
        raise InvalidRequest(
            "AT takes a plain value",
            hint="write AT (VERSION => 123), AT (TIMESTAMP => '2024-01-01') or AT (TAG => 'x')",
        )
    return unit, str(constant["value"])


def _rewritten(found: re.Match[str]) -> str:
    """An AT as DuckDB's grammar has it: a version or a timestamp, behind the table's alias."""
    if found["default"]:
        # A word of SQL, and the name of a tenant.
        return '"default"'
    if found["at"] is None:
        return found[0]
    clause, alias = found["at"], found["alias"] or ""
    if found["unit"].upper() in {"TAG", "BRANCH"}:
        value = found["value"]
        clause = f"AT (VERSION => {_REFERENCE}({literal(found['unit'].lower())}, {value}))"
    word = alias.split()[-1].lower() if alias else ""
    is_alias = bool(alias) and (alias.lower().split()[0] == "as" or word not in _words())
    return f"{alias} {clause}" if is_alias else f"{clause}{alias}"


@lru_cache(maxsize=1)
def _words() -> frozenset[str]:
    """The words that no table can be called without quotes."""
    found = (
        _parser()
        .execute(
            "SELECT keyword_name FROM duckdb_keywords() "
            "WHERE keyword_category IN ('reserved', 'type_function')"
        )
        .fetchall()
    )
    return frozenset(word for (word,) in found)


def _hide_own_columns(tree: Node, hidden: dict[int, list[str]]) -> None:
    """Make each `*` leave out Calve's own columns, which are there because one was named."""
    for node in walk(tree):
        if node.get("type") != "SELECT_NODE":
            continue
        below = dict(_tables_below(node["from_table"], hidden))
        for star in node["select_list"]:
            if star.get("class") == "STAR" and not star["columns"]:
                relation = star["relation_name"].lower()
                every = [name for names in below.values() for name in names]
                names = below.get(relation, []) if relation else every
                star["exclude_list"] = list(dict.fromkeys([*star["exclude_list"], *names]))


def _tables_below(node: Node, hidden: dict[int, list[str]]) -> Iterator[tuple[str, list[str]]]:
    """The lake's tables of a FROM, by alias, with the columns to hide; not those in subqueries."""
    if id(node) in hidden:
        yield node["alias"].lower(), hidden[id(node)]
    elif node.get("type") == "JOIN":
        yield from _tables_below(node["left"], hidden)
        yield from _tables_below(node["right"], hidden)
