"""The columns that a condition may name, and how a name finds its column.

Names are found as DuckDB finds them, without regard to the case of ASCII letters. Where a table has
two columns that differ only so, DuckDB could not tell them apart and the name is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp
from sqlglot.errors import SqlglotError

from calve.errors import InvalidRequest

_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


@dataclass(frozen=True, slots=True)
class Column:
    """A column's name, as it is, and its type in DuckDB's words, such as `STRUCT(a INTEGER)`."""

    name: str
    type: str


class Scope:
    """The columns of one table, looked up by the names that a condition writes."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)
        self._by_name = {column.name: column for column in columns}

    def resolve(self, written: Sequence[str]) -> exp.Expr:
        """The tree for `column.field.field`, with the names as the table has them."""
        name = _match(written[0], list(self._by_name), "column")
        node: exp.Expr = exp.Column(this=exp.to_identifier(name, quoted=True))
        kind = self._by_name[name].type
        fields = _fields(kind) if len(written) > 1 else {}
        for part in written[1:]:
            field = _match(part, list(fields), f"field of {name!r}")
            node = exp.Dot(this=node, expression=exp.to_identifier(field, quoted=True))
            fields = _struct_fields(fields[field])
        return node

    def pick(self, names: Sequence[str]) -> tuple[Column, ...]:
        """The named columns, in the table's order."""
        wanted = set(names)
        return tuple(column for column in self.columns if column.name in wanted)


def _match(written: str, names: Sequence[str], what: str) -> str:
    alike = [name for name in names if _folded(name) == _folded(written)]
    if len(alike) == 1:
        return alike[0]
    if alike:
        raise InvalidRequest(
            f"{written!r} could be {' or '.join(map(repr, sorted(alike)))}",
            hint="DuckDB tells names by more than the case of their letters; rename one of them",
        )
    raise InvalidRequest(f"there is no {what} {written!r}", hint=_nearest(written, names))


def _nearest(written: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(written, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    shown = ", ".join(map(repr, names[:10])) or "none"
    more = ", …" if len(names) > 10 else ""
    return f"there are: {shown}{more}; text is written in 'single quotes'"


def _folded(name: str) -> str:
    return name.translate(_LOWER)


def _fields(type_text: str) -> Mapping[str, exp.Expr]:
    try:
        return _struct_fields(exp.DataType.build(type_text, dialect="duckdb"))
    except SqlglotError as error:
        raise InvalidRequest(f"{type_text!r} is not a type of DuckDB") from error


def _struct_fields(kind: exp.Expr | None) -> Mapping[str, exp.Expr]:
    if not isinstance(kind, exp.DataType) or not kind.is_type(exp.DataType.Type.STRUCT):
        return {}
    return {field.name: field.args["kind"] for field in kind.expressions}
