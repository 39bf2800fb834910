"""DuckDB's errors as the errors of Calve."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import duckdb

from calve.errors import CalveError, Corruption, Denied, InvalidRequest, Unavailable

_GONE: Final = re.compile(
    r"(?i)no such file|no files found|does not exist|HTTP 404|404 \(Not Found"
)
_NO_ACCESS: Final = re.compile(r"(?i)HTTP 40[013]|40[13] \(|permission denied|access.?denied")
_OURS: Final = re.compile(r"file system operations are disabled|configuration has been locked")
_CANDIDATES: Final = re.compile(r"(?m)^\s*(Candidate [^\n]*|Did you mean [^\n]*)")
_KIND: Final = re.compile(r"^[A-Z][A-Za-z ]{2,30} Error: ")
_TEXT_MAX: Final = 500
_INTERRUPTED: Final = "Query interrupted"
_REQUEST: Final = (
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ConstraintException,
    duckdb.ConversionException,
    duckdb.DataError,
    duckdb.InvalidInputException,
    duckdb.InvalidTypeException,
    duckdb.NotImplementedException,
    duckdb.OutOfRangeException,
    duckdb.ParserException,
    duckdb.SyntaxException,
    duckdb.TypeMismatchException,
)


@contextmanager
def interruptible(connection: duckdb.DuckDBPyConnection | None) -> Iterator[None]:
    """Have an interrupt end DuckDB's work, and be raised as one.

    DuckDB makes an error of it and works on, and whoever then lets go of it waits for the end.
    """
    try:
        yield
    except (KeyboardInterrupt, RuntimeError) as error:
        if isinstance(error, RuntimeError) and str(error) != _INTERRUPTED:
            raise
        if connection is not None:
            connection.interrupt()
        raise KeyboardInterrupt from None


@contextmanager
def translating_duckdb(what: str = "the query") -> Iterator[None]:
    """Raise what DuckDB says inside as an error of Calve."""
    try:
        yield
    except duckdb.Error as error:
        raise translated(error, what) from None


def translated(error: duckdb.Error, what: str) -> CalveError:
    text = str(error)
    if isinstance(error, duckdb.OutOfMemoryException):
        return InvalidRequest(
            f"{what} needs more memory than it may use",
            hint="ask for fewer rows or columns, or raise query.memory_bytes_max",
        )
    if _OURS.search(text):
        return Denied(f"{what} asks for something outside its tables", hint="name tables instead")
    if isinstance(error, duckdb.IOException | duckdb.HTTPException):
        return _of_store(text)
    if isinstance(error, _REQUEST):
        return InvalidRequest(
            f"{what} cannot be answered: {message_of(error)}",
            hint="`calve table describe` shows a table's columns and their types",
        )
    return Corruption(
        f"DuckDB could not answer {what}: {message_of(error)}",
        hint="this is a defect; `calve doctor --bundle` collects what is needed to report it",
    )


def message_of(error: duckdb.Error) -> str:
    """DuckDB's first line without its class, and the names it thinks were meant."""
    text = str(error)
    first = _KIND.sub("", text.partition("\n")[0]).strip()
    found = _CANDIDATES.search(text)
    meant = f" ({found.group(1).strip()})" if found and found.group(1) not in first else ""
    return (first + meant)[:_TEXT_MAX]


def _of_store(text: str) -> CalveError:
    line = _KIND.sub("", text.partition("\n")[0])[:_TEXT_MAX]
    if _NO_ACCESS.search(text):
        return Denied(f"a file of the table cannot be opened: {line}", hint="check the credentials")
    if _GONE.search(text):
        return Corruption(
            f"a file of the table is gone: {line}",
            hint="if the snapshot has just expired, ask again; else restore it from a copy",
        )
    return Unavailable(
        f"the store did not answer: {line}",
        hint="check that it can be reached, then try again; `calve doctor` looks at it",
    )
