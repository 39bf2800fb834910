"""Data to standard output, words to standard error."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec


def print_json(value: object) -> None:
    encoded = msgspec.json.encode(value, enc_hook=str)
    click.echo(msgspec.json.format(encoded, indent=2).decode())


def print_json_line(value: object) -> None:
    """One object of a stream of them."""
    click.echo(msgspec.json.encode(value, enc_hook=str).decode())


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as they need to be, the last one free to run on."""
    cells = [list(columns), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    for row in cells:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(line.rstrip())


def say(text: str) -> None:
    """Words for the person at the terminal."""
    click.echo(text, err=True)


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _text(cell: object) -> str:
    return "-" if cell is None else str(cell)
