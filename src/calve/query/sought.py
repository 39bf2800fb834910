"""Which texts a statement looks for in which columns of its tables.

Only what surely holds for every row of a table that the answer is made of: `column = 'text'` and
`column IN ('a', 'b')`, joined by AND, in the WHERE of the SELECT that reads the table.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

from calve.query.tree import Node, walk

_T = TypeVar("_T", bound=Hashable)
# Others, such as ASOF, look at more rows of a table than those that come out.
_JOINS: Final = frozenset({"REGULAR", "CROSS"})


class Sought(NamedTuple):
    """By column, in lower case, the texts of which a row has to have one.

    `named` are all names of columns that chose rows, here or elsewhere in the statement's tables.
    """

    texts: Mapping[str, frozenset[str]]
    named: frozenset[str]


NOTHING: Final = Sought({}, frozenset())


def sought_texts(tree: Node, found: Iterable[tuple[Node, _T]]) -> dict[_T, Sought]:
    """By table; one that is read twice has what holds both times."""
    by_node = {
        id(table): facts
        for select in walk(tree)
        if select.get("type") == "SELECT_NODE" and select.get("where_clause")
        for table, facts in _facts(select)
    }
    sought: dict[_T, Sought] = {}
    for node, table in found:
        facts = by_node.get(id(node), NOTHING)
        sought[table] = _both(sought[table], facts) if table in sought else facts
    return sought


def _both(one: Sought, other: Sought) -> Sought:
    names = one.texts.keys() & other.texts.keys()
    texts = {name: one.texts[name] | other.texts[name] for name in names}
    return Sought(texts, one.named | other.named)


def _facts(select: Node) -> Iterator[tuple[Node, Sought]]:
    tables = list(_tables(select["from_table"]))
    tests = list(_tests(select["where_clause"]))
    named = frozenset(
        name.lower()
        for node in walk(select["where_clause"])
        if node.get("class") == "COLUMN_REF"
        for name in node["column_names"]
    )
    for table in tables:
        # Under other names, or by chance, a column is not what it seems.
        if table.get("column_name_alias") or table.get("sample"):
            continue
        alias = (table.get("alias") or table["table_name"]).lower()
        texts: dict[str, frozenset[str]] = {}
        for (*qualified, name), values in tests:
            if qualified == [alias] or (not qualified and len(tables) == 1):
                texts[name] = texts.get(name, values) & values
        yield table, Sought(texts, named)


def _tables(node: Node) -> Iterator[Node]:
    """Of a FROM; what else stands there comes along as something that nothing is known of."""
    if node.get("type") == "JOIN" and node.get("ref_type") in _JOINS:
        yield from _tables(node["left"])
        yield from _tables(node["right"])
    elif node.get("type") == "BASE_TABLE":
        yield node
    else:
        yield {"sample": True}


def _tests(node: Node) -> Iterator[tuple[list[str], frozenset[str]]]:
    """Columns and the texts of which they have to have one."""
    match node.get("type"):
        case "CONJUNCTION_AND":
            for child in node["children"]:
                yield from _tests(child)
        case "COMPARE_EQUAL":
            yield from _test(node["left"], [node["right"]])
            yield from _test(node["right"], [node["left"]])
        case "COMPARE_IN":
            yield from _test(node["children"][0], node["children"][1:])


def _test(column: Node, values: list[Node]) -> Iterator[tuple[list[str], frozenset[str]]]:
    if column.get("class") != "COLUMN_REF":
        return
    constants = [each.get("value") for each in values if each.get("class") == "CONSTANT"]
    texts = [
        each["value"]
        for each in constants
        if each and each["type"]["id"] == "VARCHAR" and not each["is_null"]
    ]
    if len(texts) == len(values):
        yield [name.lower() for name in column["column_names"]], frozenset(texts)
