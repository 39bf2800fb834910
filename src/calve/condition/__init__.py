"""The one condition language: what may be written, and its texts for DuckDB and Spark.

DuckDB's scalar expressions over the columns of one table. `parse_condition` returns a condition
that is safe and typed, or refuses it: it names no other table, calls only functions that give the
same answer every time, and is boolean. The home of sqlglot.

A condition is true, false or null for a row. A row is shown, changed or deleted where the condition
IS TRUE; where it is null, as `price > 5` is for a row without price, the row is left alone. So
`E` and `NOT E` together need not cover a table, and `E IS NOT TRUE` is the rest that `E` leaves.

Times without a zone are UTC. Whoever evaluates a condition sets `SESSION` first.
"""

from calve.condition.binding import SESSION
from calve.condition.columns import Column
from calve.condition.expression import Condition, parse_condition
from calve.condition.facts import (
    AllOf,
    AnyOf,
    Anything,
    Compare,
    Fact,
    IsNotNull,
    IsNull,
    Nothing,
    OneOf,
    StartsWith,
    all_of,
    any_of,
)
from calve.condition.functions import FUNCTIONS
from calve.condition.scalar import Scalar, parse_scalar

__all__ = [
    "FUNCTIONS",
    "SESSION",
    "AllOf",
    "AnyOf",
    "Anything",
    "Column",
    "Compare",
    "Condition",
    "Fact",
    "IsNotNull",
    "IsNull",
    "Nothing",
    "OneOf",
    "Scalar",
    "StartsWith",
    "all_of",
    "any_of",
    "parse_condition",
    "parse_scalar",
]
