"""Every error says what to do, has an exit code and a status, and survives the way between processes."""

from __future__ import annotations

import inspect
import pickle

import pytest

from calve import errors
from calve.errors import CalveError
from calve.protocol.problem import decoded, error_of, problem_of

KINDS = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, CalveError)
]
CODES = {"CalveError": 1, "InvalidRequest": 3, "InvalidSettings": 3, "MissingPart": 3, "TooLarge": 3, "NotFound": 4,
         "Conflict": 5, "SchemaConflict": 5, "Unavailable": 6, "Overloaded": 6, "UnknownOutcome": 1, "Fenced": 5, "Corruption": 7,
         "Denied": 8, "Unauthenticated": 8}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_pickling_with_all_it_carries(kind: type[CalveError]) -> None:
    error = kind("it broke", hint="mend it", context={"table": "users"})
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.message, again.hint, dict(again.context)) == (
        "it broke",
        "mend it",
        {"table": "users"},
    )
    assert str(again) == "it broke\nhint: mend it"


def test_exit_codes_are_the_documented_ones() -> None:
    assert {kind.__name__: kind.exit_code for kind in KINDS} == CODES


def test_the_tree_in_the_docstring_is_the_tree_in_the_code() -> None:
    drawn = [
        line.split("── ")[1].split()[0]
        for line in (errors.__doc__ or "").splitlines()
        if "── " in line
    ]
    assert sorted(drawn) == sorted(set(CODES) - {"CalveError"})


def test_the_context_cannot_be_changed_afterwards() -> None:
    with pytest.raises(TypeError):
        CalveError("x", context={"a": "b"}).context["a"] = "c"  # type: ignore[index]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_comes_over_the_wire_as_the_same_error(kind: type[CalveError]) -> None:
    context = {"column": "id", "retry_after_ms": "250"}
    problem = decoded(problem_of(kind("wrong", hint="mend it", context=context)).encoded())
    assert problem is not None
    found = error_of(problem)
    assert type(found) is kind
    assert (found.message, found.hint, found.context) == ("wrong", "mend it", context)
