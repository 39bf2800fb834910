"""Works out what is known of the rows for which a condition is true.

For each part of the tree: which facts hold where it is true, and which where it is false. Where it
is null neither is asked, which is what makes three-valued logic come out right: NOT swaps the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Final

from sqlglot import exp

from calve.condition.binding import NotConstant, common_type, constants, types_of
from calve.condition.columns import Column
from calve.condition.facts import (
    ANYTHING,
    NOTHING,
    Compare,
    Fact,
    IsNotNull,
    IsNull,
    OneOf,
    Operator,
    Path,
    StartsWith,
    Value,
    all_of,
    any_of,
)
from calve.condition.text import duckdb_text

# Each costs DuckDB about a millisecond; what comes after is taken for anything.
_COMPARISONS_MAX: Final = 500
_OPERATORS: Final[dict[type[exp.Expr], Operator]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_NEGATED: Final[dict[Operator, Operator]] = {
    "=": "<>",
    "<>": "=",
    "<": ">=",
    ">=": "<",
    ">": "<=",
    "<=": ">",
}
_FLIPPED: Final[dict[Operator, Operator]] = {
    "=": "=",
    "<>": "<>",
    "<": ">",
    ">": "<",
    "<=": ">=",
    ">=": "<=",
}


def outline(tree: exp.Expr, columns: Sequence[Column]) -> Fact:
    """The facts that hold in every row for which the tree is true."""
    return _Outline(columns).facts(tree, wanted=True)


def path_of(node: exp.Expr) -> Path | None:
    """`column.field` as names; None for anything else."""
    if isinstance(node, exp.Column):
        return (node.name,)
    if isinstance(node, exp.Dot):
        path = path_of(node.this)
        return None if path is None else (*path, node.expression.name)
    return None


def is_constant(node: exp.Expr) -> bool:
    return node.find(exp.Column) is None


def chain(node: exp.Expr) -> Iterator[exp.Expr]:
    """The links of a chain of ANDs or of ORs, which may be longer than Python's stack."""
    rest = [node]
    while rest:
        link = rest.pop()
        if type(link) is type(node):
            rest.extend((link.args["expression"], link.this))
        else:
            yield link


class _Outline:
    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._left = _COMPARISONS_MAX

    def facts(self, node: exp.Expr, *, wanted: bool) -> Fact:
        """What holds where the node is true, or where it is false."""
        match node:
            case exp.And() | exp.Or():
                join = all_of if isinstance(node, exp.And) == wanted else any_of
                return join(self.facts(link, wanted=wanted) for link in chain(node))
            case exp.Not():
                return self.facts(node.this, wanted=not wanted)
            case exp.Boolean() | exp.Null() | exp.Column() | exp.Dot():
                return self._plain(node, wanted=wanted)
        seen = self._SEEN.get(type(node), _Outline._comparison)
        return seen(self, node, wanted=wanted)

    def _plain(self, node: exp.Expr, *, wanted: bool) -> Fact:
        if isinstance(node, exp.Null):
            return NOTHING
        if isinstance(node, exp.Boolean):
            return ANYTHING if node.this == wanted else NOTHING
        path = path_of(node)
        return ANYTHING if path is None else Compare(path, "=", wanted, "BOOLEAN")

    def _comparison(self, node: exp.Expr, *, wanted: bool) -> Fact:
        operator = _OPERATORS.get(type(node))
        if operator is None:
            return ANYTHING
        left, right = node.this, node.args["expression"]
        if is_constant(left):
            left, right, operator = right, left, _FLIPPED[operator]
        if not wanted:
            operator = _NEGATED[operator]
        return self._compare(left, operator, right, others=[])

    def _compare(
        self, left: exp.Expr, operator: Operator, right: exp.Expr, *, others: Sequence[exp.Expr]
    ) -> Fact:
        """`left operator right`, in a type that the others have a say in."""
        path = path_of(left)
        if path is None or not is_constant(right):
            return all_of(IsNotNull(p) for p in map(path_of, (left, right)) if p)
        found = self._values(left, [right], others)
        if found is None:
            return IsNotNull(path)
        kind, (value,) = found
        return NOTHING if value is None else Compare(path, operator, value, kind)

    def _values(
        self, left: exp.Expr, right: Sequence[exp.Expr], others: Sequence[exp.Expr]
    ) -> tuple[str, list[Value | None]] | None:
        """The constants on the right, in the type in which DuckDB compares them with the left."""
        self._left -= 1
        if self._left < 0:
            return None
        texts = [duckdb_text(node) for node in (left, *right, *others)]
        kind = common_type(texts, self._columns)
        (left_kind,) = types_of(texts[:1], self._columns)
        # Text against another type is converted in ways that the common type does not tell.
        if kind is None or (kind == "VARCHAR") != (left_kind == "VARCHAR"):
            return None
        if any(self._is_computed_text(node) for node in (*right, *others)) and kind != "VARCHAR":
            return None
        try:
            return kind, constants(texts[1 : 1 + len(right)], kind)
        except NotConstant:
            return None

    def _is_computed_text(self, node: exp.Expr) -> bool:
        if isinstance(node, exp.Literal | exp.Null):
            return False
        return types_of([duckdb_text(node)], self._columns) == ["VARCHAR"]

    def _is(self, node: exp.Expr, *, wanted: bool) -> Fact:
        path = path_of(node.this)
        if isinstance(node.expression, exp.Null):
            if path is None:
                return ANYTHING
            return IsNull(path) if wanted else IsNotNull(path)
        if isinstance(node.expression, exp.Boolean) and wanted:
            return self.facts(node.this, wanted=bool(node.expression.this))
        return ANYTHING

    def _null_safe(self, node: exp.Expr, *, wanted: bool) -> Fact:
        wanted = isinstance(node, exp.NullSafeEQ) == wanted
        left, right = node.this, node.args["expression"]
        if is_constant(left):
            left, right = right, left
        path = path_of(left)
        if path is None or not is_constant(right):
            return ANYTHING
        found = self._values(left, [right], [])
        if found is None:
            return ANYTHING
        kind, (value,) = found
        if value is None:
            return IsNull(path) if wanted else IsNotNull(path)
        if wanted:
            return Compare(path, "=", value, kind)
        return any_of([Compare(path, "<>", value, kind), IsNull(path)])

    def _between(self, node: exp.Expr, *, wanted: bool) -> Fact:
        low, high = node.args["low"], node.args["high"]
        if is_constant(node.this):
            return ANYTHING
        if wanted:
            return all_of(
                (
                    self._compare(node.this, ">=", low, others=[high]),
                    self._compare(node.this, "<=", high, others=[low]),
                )
            )
        return any_of(
            (
                self._compare(node.this, "<", low, others=[high]),
                self._compare(node.this, ">", high, others=[low]),
            )
        )

    def _in(self, node: exp.Expr, *, wanted: bool) -> Fact:
        path = path_of(node.this)
        if path is None:
            return ANYTHING
        values = node.expressions
        found = self._values(node.this, values, []) if all(map(is_constant, values)) else None
        if found is None:
            return IsNotNull(path)
        kind, known = found
        if wanted:
            some = tuple(value for value in known if value is not None)
            return OneOf(path, some, kind) if some else NOTHING
        if None in known:
            return NOTHING
        return all_of(Compare(path, "<>", value, kind) for value in known)

    def _text(self, node: exp.Expr, *, wanted: bool) -> Fact:
        prefix: tuple[exp.Expr, str] | None = None
        if isinstance(node, exp.Anonymous):
            prefix = self._called_prefix(node)
        elif isinstance(node, exp.Like):
            prefix = self._like_prefix(node)
        else:
            inner = node.this if isinstance(node, exp.Escape) else node
            prefix = (inner.this, "")
        path = path_of(prefix[0]) if prefix else None
        if prefix is None or path is None:
            return ANYTHING
        return StartsWith(path, prefix[1]) if wanted and prefix[1] else IsNotNull(path)

    def _called_prefix(self, node: exp.Anonymous) -> tuple[exp.Expr, str] | None:
        arguments = node.expressions
        if node.name.lower() not in {"starts_with", "prefix"} or len(arguments) != 2:
            return None
        text = arguments[1]
        known = isinstance(text, exp.Literal) and text.is_string
        return (arguments[0], text.name if known else "")

    def _like_prefix(self, node: exp.Like) -> tuple[exp.Expr, str]:
        pattern = node.expression
        if not isinstance(pattern, exp.Literal) or not pattern.is_string:
            return node.this, ""
        text = pattern.name
        wild = [text.index(sign) for sign in "%_" if sign in text]
        return node.this, text[: min(wild, default=len(text))]

    _SEEN: ClassVar[dict[type[exp.Expr], Callable[..., Fact]]] = {
        exp.Is: _is,
        exp.NullSafeEQ: _null_safe,
        exp.NullSafeNEQ: _null_safe,
        exp.Between: _between,
        exp.In: _in,
        exp.Like: _text,
        exp.ILike: _text,
        exp.Escape: _text,
        exp.Anonymous: _text,
    }
