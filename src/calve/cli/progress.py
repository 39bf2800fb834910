"""Progress of long work, on standard error, if somebody is looking."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import click

_REDRAW_SECONDS: Final = 0.2
_BAR_STEPS: Final = 200

Tell: TypeAlias = Callable[[int], None]


class Told(NamedTuple):
    """What wants to be told how many rows, and how many bytes of their file, have been read."""

    rows: Tell | None = None
    bytes: Tell | None = None


@contextmanager
def reading_rows(source: str) -> Iterator[Told]:
    """Shows how much of a file has been read; of what has no size, the number of rows so far."""
    path = Path(source)
    if not sys.stderr.isatty():
        yield Told()
    elif path.is_file() and (size := path.stat().st_size):
        with _bar(size) as told:
            yield told
    else:
        with counted_rows() as show:
            yield Told(rows=show)


@contextmanager
def _bar(size: int) -> Iterator[Told]:
    rows = read = shown = 0
    made: Any = click.progressbar(
        length=size,
        file=sys.stderr,
        item_show_func=lambda _: f"{rows:,} rows",
        update_min_steps=max(1, size // _BAR_STEPS),
    )
    with made as bar:

        def show(reached: int) -> None:
            nonlocal shown
            bar.update(max(0, reached - shown))
            shown = max(reached, shown)

        def tell_rows(count: int) -> None:
            nonlocal rows
            rows = count
            tell_bytes(read)

        def tell_bytes(count: int) -> None:
            nonlocal read
            read = max(read, count)
            # Files are read ahead of their rows, and are in only when all is committed.
            show(min(read, size - 1) if rows else 0)

        yield Told(tell_rows, tell_bytes)
        show(size)
        bar.render_progress()


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
