"""`calve config`: write, show and check the configuration."""

from __future__ import annotations

import os
from pathlib import Path

import click

from calve.cli.options import Call, common_options
from calve.cli.output import print_json, print_table, say
from calve.errors import Conflict, Denied, InvalidRequest, NotFound
from calve.settings.load import CONFIG_NAMES
from calve.settings.render import rows, template


@click.group()
def config() -> None:
    """Write, show and check the configuration."""


@config.command()
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@common_options
def init(call: Call, *, force: bool) -> None:
    """Write calve.toml with every key, its default and its meaning.

    \b
    Example: calve config init
    """
    path = call.config or Path(CONFIG_NAMES[0])
    if path.suffix in {".yaml", ".yml"}:
        raise InvalidRequest(f"{path} would be TOML", hint="name a file that ends in .toml")
    others = [name for name in CONFIG_NAMES if path.with_name(name).exists() and name != path.name]
    if others and call.config is None:
        raise Conflict(f"{others[0]} is here already", hint="edit it, or remove it first")
    try:
        # Its owner's alone: passwords and keys are what somebody writes into it.
        with open(path, "w" if force else "x", encoding="utf-8", opener=_private) as file:
            file.write(template())
    except FileExistsError as error:
        raise Conflict(f"{path} exists", hint="edit it, or replace it with --force") from error
    except FileNotFoundError as error:
        raise NotFound(f"there is no directory {path.parent}", hint="make it first") from error
    except OSError as error:
        raise Denied(f"{path} cannot be written: {error.strerror}") from error
    say(f"wrote {path}")
    if call.as_json:
        print_json({"file": str(path)})


@config.command()
@common_options
def show(call: Call) -> None:
    """Print every setting with its value and where it came from; secrets are masked.

    \b
    Example: calve config show
    """
    listed = rows(call.load())
    if call.as_json:
        print_json({key: {"value": value, "origin": origin} for key, value, origin in listed})
    else:
        print_table(("KEY", "VALUE", "ORIGIN"), [(k, _plain(v), o) for k, v, o in listed])


@config.command()
@common_options
def check(call: Call) -> None:
    """Say whether the settings are valid, without opening anything.

    Also whether `calve up` would open its doors with them to other machines.

    \b
    Example: calve config check --config calve.toml
    """
    loaded = call.load()
    # Other commands about the configuration need not wait for it.
    from calve.ingest.exposure import insecure_words, require_guards

    if lacking := require_guards(loaded.settings):
        say(insecure_words(loaded.settings, lacking))
    where = str(loaded.file) if loaded.file else "defaults, environment and flags"
    say(f"valid: {where}")
    if call.as_json:
        print_json({"valid": True, "file": loaded.file and str(loaded.file)})


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _plain(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value in ("", {}) else value
