"""A catalog whose answers to commits need not be what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
)
from requests.exceptions import ConnectionError as CutConnection
from requests.exceptions import ReadTimeout

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


LOST = (
    CommitStateUnknownException("504"),
    ServerError("500"),
    ServiceUnavailableError("503"),
    CutConnection("reset by peer"),
    ReadTimeout("no answer"),
)


class Unreliable:
    """Answers commits at random, and applies some when it pleases. The same for the same seed."""

    def __init__(self, catalog: LakeCatalog, random: Random) -> None:
        self._iceberg = catalog.iceberg
        self._honest_commit = catalog.iceberg.commit_table
        self._honest_load = catalog.iceberg.load_table
        self._random = random
        self._late: list[Callable[[], Any]] = []
        # What others do between a commit and the answer to it.
        self.meanwhile: Callable[[], None] = lambda: None
        self.told: Counter[str] = Counter()

    def commit_table(self, *arguments: Any) -> Any:
        self._apply_some_late()
        answer = self._random.choice(
            [
                self._honest,
                self._honest,
                self._fails_before,
                self._refuses,
                self._applies_then_is_lost,
                self._applies_then_refuses,
                self._applies_late,
                self._applies_late,
            ]
        )
        self.told[answer.__name__.strip("_")] += 1
        return answer(lambda: self._honest_commit(*arguments))

    def load_table(self, *arguments: Any) -> Any:
        self._apply_some_late()
        loaded = self._honest_load(*arguments)
        self._apply_some_late()
        return loaded

    def apply_late(self) -> None:
        """Apply what is still to come; most of it is refused, being out of date."""
        while self._late:
            commit = self._late.pop(self._random.randrange(len(self._late)))
            with suppress(CommitFailedException, ValueError):
                commit()
                self.told["came true late"] += 1

    def _apply_some_late(self) -> None:
        if self._late and self._random.random() < 0.3:
            self.apply_late()

    def _honest(self, commit: Callable[[], Any]) -> Any:
        return commit()

    def _fails_before(self, _: Callable[[], Any]) -> Any:
        raise self._random.choice(LOST)

    def _refuses(self, _: Callable[[], Any]) -> Any:
        raise CommitFailedException("409")

    def _applies_then_is_lost(self, commit: Callable[[], Any]) -> Any:
        commit()
        self.meanwhile()
        raise self._random.choice(LOST)

    def _applies_then_refuses(self, commit: Callable[[], Any]) -> Any:
        commit()
        self.meanwhile()
        raise CommitFailedException("409, after it was done")

    def _applies_late(self, commit: Callable[[], Any]) -> Any:
        self._late.append(commit)
        raise self._random.choice(LOST)


@contextmanager
def unreliable(catalog: LakeCatalog, random: Random) -> Iterator[Unreliable]:
    liar = Unreliable(catalog, random)
    catalog.iceberg.commit_table = liar.commit_table  # type: ignore[method-assign, assignment]
    catalog.iceberg.load_table = liar.load_table  # type: ignore[method-assign, assignment]
    try:
        yield liar
    finally:
        del catalog.iceberg.commit_table
        del catalog.iceberg.load_table
