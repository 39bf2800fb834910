"""Where rows come from, for messages: a file and its lines, or a caller's rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

import pyarrow as pa

from calve.errors import InvalidRequest

_SHOWN_CHARACTERS: Final = 60
# Of texts with half of a character in them, which Python makes of bytes that are no UTF-8.
NO_UNICODE: Final = (
    "not valid Unicode",
    "decode the text from the encoding that it was written in",
)


class Unfit(Exception):
    """A value, or a whole type, that the table's column cannot hold. Becomes an InvalidRequest."""

    def __init__(self, problem: str, hint: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Origin:
    label: str = ""
    unit: str = "row"
    # How many came before those that are numbered from 1.
    before: int = 0

    def error(
        self,
        problem: str,
        *,
        hint: str | None = None,
        column: str | None = None,
        place: int | None = None,
        value: str | None = None,
    ) -> InvalidRequest:
        """The problem with all that is known about its place."""
        where = [self.label] if self.label else []
        place = None if place is None else place + self.before
        where += [f"{self.unit} {place:,}"] if place is not None else []
        where += [f"column {column!r}"] if column is not None else []
        facts = {
            "file": self.label,
            self.unit: "" if place is None else str(place),
            "column": column or "",
            "value": value or "",
        }
        return InvalidRequest(
            f"{', '.join(where)}: {problem}" if where else problem,
            hint=hint,
            context={name: fact for name, fact in facts.items() if fact},
        )


def shown(value: object) -> str:
    """A value as a message shows it: short, and without anything a terminal would obey."""
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def first_unfit(length: int, attempt: Callable[[int], object]) -> tuple[int, Unfit]:
    """The row at which a column stops to fit, found by trying ever shorter beginnings of it.

    `attempt(n)` converts the first n rows and raises Unfit when one of them does not fit.
    """
    fits, fails = 0, length
    problem = Unfit("does not fit")
    while fails - fits > 1:
        middle = (fits + fails) // 2
        try:
            attempt(middle)
            fits = middle
        except Unfit as error:
            fails, problem = middle, error
    try:
        attempt(fails)
    except Unfit as error:
        problem = error
    return fails - 1, problem


def require_values(array: pa.Array, field: pa.Field, origin: Origin, places: Sequence[int]) -> None:
    """Refuse a missing value in a required column."""
    if field.nullable or not array.null_count:
        return
    first = array.is_null().index(pa.scalar(True)).as_py()  # noqa: FBT003
    raise origin.error(
        "a required value is missing",
        column=field.name,
        place=places[first],
        hint='fill it in; a text that is empty on purpose is written "" in CSV',
    )
