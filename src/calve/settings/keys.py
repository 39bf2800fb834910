"""Every setting by its full name, read off the tree; and the nearest to a wrong name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, get_args

import msgspec

from calve.errors import mask_with
from calve.settings.secret import Properties, Secret, hidden_in, mask_hidden
from calve.settings.tree import Section, Settings


class Key(NamedTuple):
    """One setting: `wal.sync_mode`."""

    name: str
    kind: object
    default: object

    def holds(self, kind: type) -> bool:
        """Whether the value is of this class, or None."""
        return any(
            isinstance(member, type) and issubclass(member, kind)
            for member in (self.kind, *get_args(self.kind))
        )

    @property
    def is_open(self) -> bool:
        """Whether the setting takes names of its own below it."""
        return self.holds(Properties)

    @property
    def is_secret(self) -> bool:
        return self.holds(Secret)

    @property
    def is_address(self) -> bool:
        """Whether it is a plain text into which somebody may write a password all the same."""
        return self.name in {"storage.dsn", "storage.endpoint", "pipeline.logs"}


def _leaves(section: type[Section], prefix: str) -> Iterator[Key]:
    for field in msgspec.structs.fields(section):
        name = prefix + field.name
        if isinstance(field.type, type) and issubclass(field.type, Section):
            yield from _leaves(field.type, f"{name}.")
        elif field.default_factory is not msgspec.NODEFAULT:
            yield Key(name, field.type, field.default_factory())
        else:
            yield Key(name, field.type, field.default)


KEYS: Final = {key.name: key for key in _leaves(Settings, "")}
SECTIONS: Final = frozenset(
    name[:end] for name in KEYS for end, letter in enumerate(name) if letter == "."
)


def find_key(name: str) -> Key | None:
    """The setting of this name, or the open one that it lies below."""
    if key := KEYS.get(name):
        return key
    above = (KEYS.get(name[:end]) for end, letter in enumerate(name) if letter == ".")
    return next((key for key in above if key and key.is_open), None)


def nearest_key(name: str) -> str | None:
    """The valid name that somebody who wrote `name` most likely meant."""
    # Only a wrong key pays for loading the matcher.
    from difflib import get_close_matches

    known = [*KEYS, *SECTIONS]
    if close := get_close_matches(name, known, n=1, cutoff=0.75):
        return close[0]
    last = name.rpartition(".")[2]
    by_last = {key.rpartition(".")[2]: key for key in reversed(known)}
    if close := get_close_matches(last, by_last, n=1, cutoff=0.75):
        return by_last[close[0]]
    return None


def value_of(settings: Settings, name: str) -> object:
    """The value of a setting by its full name."""
    value: object = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def hide_secrets(settings: Settings) -> None:
    """Have no error of this process tell a secret of these settings; for Calve's own processes."""
    hidden = hidden_texts(settings)
    # Not whatever looks like one: hints show how an address with a password is written.
    mask_with((lambda text: mask_hidden(text, hidden)) if hidden else None)


def hidden_texts(settings: Settings) -> list[str]:
    """Every piece of text in the settings that nobody may see."""
    return [text for key in KEYS.values() for text in _hidden_of(key, value_of(settings, key.name))]


def _hidden_of(key: Key, value: object) -> tuple[str, ...]:
    if isinstance(value, Secret | Properties):
        return value.hidden_texts()
    if not key.is_address or not isinstance(value, str):
        return ()
    return tuple(text for address in value.split(",") for text in hidden_in(address))
