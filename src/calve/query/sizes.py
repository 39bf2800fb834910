"""Bounds on the lists and texts that one call of a function makes.

DuckDB neither counts them as memory of a query nor stops while it makes one, so they are bounded
beforehand: a call whose size is written out is refused, any other looks at its size first. This is
for the functions that make much of little; others can still make large values, step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from calve.errors import InvalidRequest
from calve.query.tree import Node, walk

Parse: TypeAlias = Callable[[str], Node]

LIST_MAX: Final = 100_000
TEXT_MAX: Final = 1_000_000
_PLACE: Final = "calve_place_"
_RANGES: Final = frozenset({"range", "generate_series"})
_REPEAT: Final = "repeat"
# Their second argument is the size.
_SIZED: Final = {
    "array_resize": LIST_MAX,
    "bitstring": TEXT_MAX,
    "list_resize": LIST_MAX,
    "lpad": TEXT_MAX,
    "rpad": TEXT_MAX,
    _REPEAT: TEXT_MAX,
}
_WHOLE: Final = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT"})
# Any type goes through a text: what is no number or no time is null, and not an error.
_NUMBER: Final = "TRY_CAST(CAST(v.{0} AS VARCHAR) AS DOUBLE)"
_SECONDS: Final = "epoch(TRY_CAST(CAST(v.{0} AS VARCHAR) AS {1}))"


def bound_sizes(tree: Node, parse: Parse, written: Callable[[Node], str]) -> None:
    """Have the calls in a statement look at their sizes; InvalidRequest for one that is too large.

    `parse` reads a SELECT, `written` tells an expression as text.
    """
    streamed = {id(each["function"]) for each in walk(tree) if each.get("type") == "TABLE_FUNCTION"}
    found = [
        node
        for node in walk(tree)
        if node.get("class") == "FUNCTION" and id(node) not in streamed and not _is_small(node)
    ]
    if found:
        _keep_names(tree, {id(node) for node in found}, written)
    for node in reversed(found):  # what is inside of others comes first
        _guard(node, parse)


def _is_small(node: Node) -> bool:
    """Whether its size is written out, and small, or it makes nothing large at all."""
    name, given = node["function_name"].lower(), node["children"]
    if not (name in _RANGES or (name in _SIZED and len(given) > 1)):
        return True
    size = _written_size(name, given)
    if size is not None and size > _limit(name):
        raise InvalidRequest(_too_large(name), hint="FROM range(…) makes any number of rows")
    return size is not None


def _limit(name: str) -> int:
    return LIST_MAX if name in _RANGES else _SIZED[name]


def _written_size(name: str, given: list[Node]) -> int | None:
    """None if it is not known before it is worked out."""
    if name not in _RANGES:
        # What is repeated may be long itself.
        length = _length(given[0]) if name == _REPEAT else 1
        count = _whole(given[1])
        return None if count is None or length is None else abs(count) * length
    match [_whole(each) for each in given]:
        case [int(end)]:
            return abs(end)
        case [int(start), int(end)]:
            return abs(end - start)
        case [int(start), int(end), int(step)] if step:
            return abs(end - start) // abs(step)
    return None


def _whole(node: Node) -> int | None:
    value = _constant(node)
    return int(value["value"]) if value and value["type"]["id"] in _WHOLE else None


def _length(node: Node) -> int | None:
    value = _constant(node)
    return len(value["value"]) if value and value["type"]["id"] == "VARCHAR" else None


def _constant(node: Node) -> Any:
    value = node.get("value") if node.get("class") == "CONSTANT" else None
    return None if not value or value["is_null"] else value


def _keep_names(tree: Node, guarded: set[int], written: Callable[[Node], str]) -> None:
    """Call columns what was written, as DuckDB would, and not what is made of it."""
    for select in walk(tree):
        if select.get("type") == "SELECT_NODE":
            for column in select["select_list"]:
                if not column["alias"] and any(id(each) in guarded for each in walk(column)):
                    column["alias"] = written(column)


def _guard(node: Node, parse: Parse) -> None:
    """Make a call that is done only if its size is small; its arguments are worked out once."""
    given = node["children"]
    made = parse(_guarded_text(node["function_name"].lower(), len(given)))
    expression = made["statements"][0]["node"]["select_list"][0]
    for each in list(walk(expression)):
        name = each.get("column_names", [""])[0]
        if name.startswith(_PLACE):
            alias = each["alias"]
            each.clear()
            each.update({**given[int(name.removeprefix(_PLACE))], "alias": alias})
    alias = node["alias"]
    node.clear()
    node.update({**expression, "alias": alias})


def _guarded_text(name: str, count: int) -> str:
    places = ", ".join(f"a{n} := {_PLACE}{n}" for n in range(count))
    arguments = ", ".join(f"v.a{n}" for n in range(count))
    return (
        f"SELECT list_transform([struct_pack({places})], lambda v: "
        f"CASE WHEN abs({_size(name, count)}) > {_limit(name)} THEN error('{_too_large(name)}') "
        f"ELSE {name}({arguments}) END)[1]"
    )


def _size(name: str, count: int) -> str:
    """How many values or characters, in SQL."""
    if name not in _RANGES:
        size = _NUMBER.format("a1")
        return f"{size} * strlen(CAST(v.a0 AS VARCHAR))" if name == _REPEAT else size
    if count == 1:
        return _NUMBER.format("a0")
    numbers = f"{_NUMBER.format('a1')} - {_NUMBER.format('a0')}"
    if count == 2:
        return numbers
    start, end = (_SECONDS.format(each, "TIMESTAMPTZ") for each in ("a0", "a1"))
    step = _SECONDS.format("a2", "INTERVAL")
    return f"coalesce(({numbers}) / {_NUMBER.format('a2')}, ({end} - {start}) / {step})"


def _too_large(name: str) -> str:
    return f"{name} would make more than {_limit(name):,} in one value"
