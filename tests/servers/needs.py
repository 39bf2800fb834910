"""What happens when this machine lacks something a test needs: it is skipped, in CI it fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import NoReturn, TypeVar

import pytest

from calve.errors import MissingPart, Unavailable

T = TypeVar("T")


def lacking(what: str) -> NoReturn:
    """CI has everything, so there a lack is a mistake that must not hide as a skipped test."""
    if os.environ.get("CI") == "true":
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


@contextmanager
def needed(server: AbstractContextManager[T]) -> Iterator[T]:
    with ExitStack() as stack:
        try:
            started = stack.enter_context(server)
        except (MissingPart, Unavailable) as error:
            lacking(str(error))
        yield started
