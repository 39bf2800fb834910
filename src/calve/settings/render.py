"""Settings as text for people: a file to start from, and every value with secrets masked."""

from __future__ import annotations

from pathlib import Path

import msgspec

from calve.settings.keys import KEYS, Key, value_of
from calve.settings.load import LoadedSettings
from calve.settings.reference import MEANINGS
from calve.settings.secret import Properties, Secret, mask_address


def shown(value: object) -> object:
    """A value as it may be shown: plain, with secrets masked."""
    if isinstance(value, Secret | Path):
        return str(value)
    return value.masked() if isinstance(value, Properties) else value


def rows(loaded: LoadedSettings) -> list[tuple[str, object, str]]:
    """Every setting: its full name, its value as it may be shown, and where it came from."""
    listed: list[tuple[str, object, str]] = []
    for name, key in KEYS.items():
        value = value_of(loaded.settings, name)
        if isinstance(value, Properties) and value:
            listed.extend(
                (f"{name}.{part}", text, loaded.origins[f"{name}.{part}"])
                for part, text in value.masked().items()
            )
        else:
            value = mask_address(value) if key.is_address and isinstance(value, str) else value
            listed.append((name, shown(value), loaded.origins[name]))
    return listed


def template() -> str:
    """A `calve.toml` in which every key stands as a comment with its default and its meaning."""
    lines = [
        "# Calve's configuration. Every key is optional; the values shown are the defaults.",
        "# The environment (CALVE_WAL__SYNC_MODE) and flags (--set wal.sync_mode=…) win over it.",
    ]
    section = None
    for key in KEYS.values():
        above, _, last = key.name.rpartition(".")
        if above != section:
            section = above
            lines += ["", *([f"[{above}]"] if above else [])]
        lines += [f"# {MEANINGS[key.name]}", f"# {_assignment(key, last)}"]
    return "\n".join(lines) + "\n"


def _assignment(key: Key, last: str) -> str:
    if key.is_open:
        return f'{last} = {{ "name" = "value" }}'
    if key.default is None:
        return f'{last} = "…"'
    default = shown(key.default)
    return f"{last} = {msgspec.json.encode(default).decode()}"
