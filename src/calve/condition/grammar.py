"""Reads the text of a condition into sqlglot's tree, within bounds.

Functions stay calls by name: sqlglot's idea of what each one means is not used, so that nothing is
rewritten on the way back to DuckDB. What comes out is not yet checked.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import SqlglotError
from sqlglot.parsers.duckdb import DuckDBParser

from calve.errors import InvalidRequest

TEXT_BYTES_MAX: Final = 64 * 1024
NODES_MAX: Final = 10_000
DEPTH_MAX: Final = 48
BRACKETS_MAX: Final = 16

_SHOWN_MAX: Final = 80
_OPENING: Final = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE})
_CLOSING: Final = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE})
_IN_UTF8: Final = "write it in UTF-8; the terminal or the script may use another encoding"
_SIMPLER: Final = "write it flatter: IN (…) for many values, AND and OR without brackets"


class ConditionDialect(DuckDB):
    """DuckDB's expressions, with every function left as it was written."""

    # DuckDB counts list elements from 1; sqlglot would shift each index and back.
    INDEX_OFFSET = 0

    class Parser(DuckDBParser):
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        NO_PAREN_FUNCTIONS: ClassVar[dict[TokenType, Any]] = {}
        NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: DuckDBParser.NO_PAREN_FUNCTION_PARSERS[name] for name in ("CASE", "IF")
        }
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: DuckDBParser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST", "EXTRACT")
        }


def read_tree(text: str) -> exp.Expr:
    """The tree of exactly one expression."""
    _check_text(text)
    try:
        tokens = ConditionDialect().tokenize(text)
        _check_tokens(tokens)
        trees = ConditionDialect().parser().parse_into(exp.Condition, tokens, text)
    except RecursionError as error:
        raise _too_deep() from error
    except SqlglotError as error:
        if _has_open_quote(text):
            raise InvalidRequest(
                "a quote in the condition is not closed",
                hint="every quote needs its other one; one inside of a text is doubled: 'it''s'",
            ) from error
        raise InvalidRequest(
            f"the condition cannot be read{_place(error)}",
            hint="a condition is an expression such as: price > 5 AND name LIKE 'a%'",
        ) from error
    if len(trees) != 1 or trees[0] is None:
        raise InvalidRequest("a condition is one expression", hint="leave out the `;`")
    check_size(trees[0])
    return trees[0]


def shown(node: exp.Expr) -> str:
    """The piece of a condition for a message."""
    try:
        text = " ".join(node.sql(dialect=ConditionDialect, comments=False).split())
    except (RecursionError, SqlglotError, ValueError):
        text = type(node).__name__.lower()
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"


def check_size(tree: exp.Expr) -> None:
    """Refuse trees that are too big or too deep. A chain of ANDs or of ORs is not deep."""
    count = 0
    rest = [(tree, 1)]
    while rest:
        node, depth = rest.pop()
        count += 1
        if count > NODES_MAX:
            raise InvalidRequest(
                f"the condition has more than {NODES_MAX:,} parts",
                hint="put long lists of values into a table and use upsert, or split the work",
            )
        if depth > DEPTH_MAX:
            raise _too_deep()
        rest.extend((child, depth + _deeper(node, child)) for child in node.iter_expressions())


def _deeper(node: exp.Expr, child: exp.Expr) -> int:
    in_chain = isinstance(node, exp.And | exp.Or) and type(node) is type(child)
    return 0 if in_chain else 1


def _check_text(text: str) -> None:
    if not text.strip():
        raise InvalidRequest(
            "the condition is empty", hint="write `true` to mean every row, on purpose"
        )
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InvalidRequest("the condition is not valid Unicode", hint=_IN_UTF8) from error
    if size > TEXT_BYTES_MAX:
        raise InvalidRequest(
            f"the condition is {size:,} bytes long, more than {TEXT_BYTES_MAX:,}",
            hint="put long lists of values into a table and use upsert, or split the work",
        )
    if "\0" in text:
        raise InvalidRequest("the condition has a NUL character in it", hint="take it out")


def _check_tokens(tokens: list[Token]) -> None:
    depth = 0
    for token in tokens:
        if token.comments or token.token_type is TokenType.HINT:
            raise InvalidRequest(
                "the condition has a comment in it",
                hint="leave it out; for twice minus write - -1 or -(-1)",
            )
        if token.token_type is TokenType.SEMICOLON:
            raise InvalidRequest("a condition is one expression", hint="leave out the `;`")
        if token.text == "==":
            raise InvalidRequest("a condition does not know ==", hint="write = instead")
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if depth > BRACKETS_MAX:
            raise _too_deep()


def _has_open_quote(text: str) -> bool:
    """Of a text that cannot be read. A quote that is doubled closes and opens again."""
    opened = ""
    for character in text:
        if opened:
            opened = "" if character == opened else opened
        elif character in "'\"":
            opened = character
    return bool(opened)


def _too_deep() -> InvalidRequest:
    return InvalidRequest("the condition is nested too deeply", hint=_SIMPLER)


def _place(error: SqlglotError) -> str:
    cause = error.__cause__ if error.__cause__ is not None else error
    found = getattr(cause, "errors", None) or getattr(error, "errors", None) or [{}]
    piece = str(found[0].get("highlight") or "").strip()
    return f" at {piece[:_SHOWN_MAX]!r}" if piece else ""
