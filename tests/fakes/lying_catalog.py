"""A catalog whose answers to commits need not be what happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from calve.tables.catalog import LakeCatalog

Lie = Callable[[Callable[[], Any]], Any]


def fails_before(_: Callable[[], Any]) -> Any:
    raise CommitStateUnknownException("500, and nothing was done")


def applies_then_fails(commit: Callable[[], Any]) -> Any:
    commit()
    raise CommitStateUnknownException("504, after it was done")


def applies_then_refuses(commit: Callable[[], Any]) -> Any:
    commit()
    raise CommitFailedException("409, after it was done")


def refuses(_: Callable[[], Any]) -> Any:
    raise CommitFailedException("409")


def applies_then_dies(commit: Callable[[], Any]) -> Any:
    commit()
    raise RuntimeError("something else altogether")


def applies_then_is_interrupted(commit: Callable[[], Any]) -> Any:
    commit()
    raise KeyboardInterrupt


@contextmanager
def lying(catalog: LakeCatalog, *lies: Lie) -> Iterator[list[Lie]]:
    """The next commits get these answers, one each; the list holds those not yet told."""
    left = list(lies)
    honest = catalog.iceberg.commit_table

    def commit_table(*arguments: Any) -> Any:
        if left:
            return left.pop(0)(lambda: honest(*arguments))
        return honest(*arguments)

    catalog.iceberg.commit_table = commit_table  # type: ignore[method-assign, assignment]
    try:
        yield left
    finally:
        del catalog.iceberg.commit_table
