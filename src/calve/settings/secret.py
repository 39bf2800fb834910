"""Values that must never be shown, and the one way to mask what might hold them.

A secret's `repr` and `str` are masked; only `reveal()` gives the text, so a secret can reach a log
or an error only where somebody wrote `reveal()`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

MASK: Final = "******"

_SECRET_WORDS: Final = re.compile(
    r"(?i)pass(?:word|wd|phrase)|secret|token|credential|authorization|(?:api|private)[-_.]?key"
)
_NOT_SECRET: Final = re.compile(r"(?i)-?(?:uri|url|provider|enabled|type|expires-at-ms)$")
_URL_PASSWORD: Final = re.compile(r"(?P<head>[a-zA-Z][\w+.-]*://[^/\s:@]*):[^/\s@]+@")


def looks_secret(key: str) -> bool:
    """Whether a property of this name is likely to hold a secret."""
    return bool(_SECRET_WORDS.search(key)) and not _NOT_SECRET.search(key)


def mask_url(text: str) -> str:
    """The text with the password of every URL in it masked."""
    return _URL_PASSWORD.sub(rf"\g<head>:{MASK}@", text)


class Secret:
    """A text that is shown as a mask."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def hidden_texts(self) -> tuple[str, ...]:
        """The pieces of text that nobody may see."""
        return (self._text,)

    def __str__(self) -> str:
        return MASK

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._text == self._text

    def __hash__(self) -> int:
        return hash((type(self), self._text))


class SecretUrl(Secret):
    """A URL that may carry a password; all but the password is shown."""

    __slots__ = ()

    def hidden_texts(self) -> tuple[str, ...]:
        masked = _URL_PASSWORD.search(self._text)
        if masked is None:
            return ()
        return (self._text[len(masked["head"]) + masked.start() + 1 : masked.end() - 1],)

    def __str__(self) -> str:
        return mask_url(self._text)


class Properties(Mapping[str, str]):
    """An unchangeable mapping that is passed on to a library; its secret values are masked."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, str] | None = None) -> None:
        self._items = dict(items or {})

    def masked(self) -> dict[str, str]:
        return {key: MASK if looks_secret(key) else mask_url(value) for key, value in self.items()}

    def hidden_texts(self) -> tuple[str, ...]:
        return tuple(value for key, value in self.items() if looks_secret(key) and value)

    def __getitem__(self, key: str) -> str:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return f"Properties({self.masked()!r})"
