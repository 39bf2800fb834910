"""Progress of long work, on standard error, if somebody is looking."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

_REDRAW_SECONDS: Final = 0.2


@contextmanager
def counted_rows() -> Iterator[Callable[[int], None] | None]:
    """Shows the number of rows so far, which it is called with; None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    begun = drawn = time.monotonic()

    def show(rows: int) -> None:
        nonlocal drawn
        now = time.monotonic()
        if now - drawn >= _REDRAW_SECONDS:
            drawn = now
            click.echo(
                f"\r{rows:,} rows, {rows / (now - begun):,.0f} a second ", err=True, nl=False
            )

    try:
        yield show
    finally:
        if drawn != begun:
            click.echo("\r" + " " * 60 + "\r", err=True, nl=False)
