"""Data to standard output, words to standard error."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from calve.errors import masked
from calve.grid import Grid


def print_json(value: object) -> None:
    click.echo(shown_json(value))


def shown_json(value: object) -> str:
    """For people: with a line for each value."""
    encoded = msgspec.json.encode(value, enc_hook=str)
    return msgspec.json.format(encoded, indent=2).decode()


def print_json_line(value: object) -> None:
    """One object of a stream of them."""
    click.echo(msgspec.json.encode(value, enc_hook=str).decode())


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as they need to be, the last one free to run on."""
    print_grid(Grid(columns, rows))


def print_grid(grid: Grid) -> None:
    for line in grid.lines():
        click.echo(line)


def say(text: str) -> None:
    """Words for the person at the terminal."""
    click.echo(masked(text), err=True)


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
