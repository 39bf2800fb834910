"""What is known of every row for which a condition is true, in terms of single columns.

The words in which a condition is told to those who skip files. A fact may be weaker than the
condition, never stronger. Comparisons are DuckDB's: NaN equals itself and is above all numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Operator: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">="]
Path: TypeAlias = tuple[str, ...]
# Dates, times and timestamps are counted: days, microseconds or nanoseconds since the epoch.
Value: TypeAlias = object


@dataclass(frozen=True, slots=True)
class Anything:
    pass


@dataclass(frozen=True, slots=True)
class Nothing:
    pass


@dataclass(frozen=True, slots=True)
class IsNull:
    path: Path


@dataclass(frozen=True, slots=True)
class IsNotNull:
    path: Path


@dataclass(frozen=True, slots=True)
class StartsWith:
    path: Path
    prefix: str


@dataclass(frozen=True, slots=True)
class Compare:
    """The column, cast to `type`, compared with a value of that type."""

    path: Path
    operator: Operator
    value: Value
    type: str


@dataclass(frozen=True, slots=True)
class OneOf:
    """The column, cast to `type`, equals one of the values of that type."""

    path: Path
    values: tuple[Value, ...]
    type: str


@dataclass(frozen=True, slots=True)
class AllOf:
    parts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    parts: tuple[Fact, ...]


Fact: TypeAlias = (
    Anything | Nothing | IsNull | IsNotNull | StartsWith | Compare | OneOf | AllOf | AnyOf
)

ANYTHING: Final = Anything()
NOTHING: Final = Nothing()


def all_of(parts: Iterable[Fact]) -> Fact:
    found = [part for part in parts if part != ANYTHING]
    if NOTHING in found:
        return NOTHING
    if len(found) <= 1:
        return found[0] if found else ANYTHING
    return AllOf(tuple(found))


def any_of(parts: Iterable[Fact]) -> Fact:
    found = [part for part in parts if part != NOTHING]
    if ANYTHING in found:
        return ANYTHING
    if len(found) <= 1:
        return found[0] if found else NOTHING
    return AnyOf(tuple(found))
