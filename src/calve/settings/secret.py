"""Values that must never be shown, and the one way to mask what might hold them.

A secret's `repr` and `str` are masked; only `reveal()` gives the text, so a secret can reach a log
or an error only where somebody wrote `reveal()`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import quote, unquote

MASK: Final = "******"

# Masking shorter texts would only make what is shown unreadable.
_MASKED_LENGTH_MIN: Final = 4

SECRET_WORDS: Final = re.compile(
    r"(?i)pass(?:word|wd|phrase)|(?:^|[-_.])(?:pass|pwd)$|secret|token|credential|authorization|cookie"
    r"|(?:api|private|account|sse)[-_.]?key|connection[-_.]?string"
)
_NOT_SECRET: Final = re.compile(r"(?i)-?(?:uri|url|provider|enabled|type|expires-at-ms)$")
# Up to the last @ of the word: a password may hold a slash or an @ that nobody encoded.
_URL_PASSWORD: Final = re.compile(r"(?P<head>[a-zA-Z][\w+.-]*://[^/\s:@]*):(?P<secret>[^\s?]+)@")
# The same where the whole text is one URL: then it may also hold a space or a question mark.
_WHOLE_URL: Final = re.compile(r"(?P<head>[a-zA-Z][\w+.-]*://[^/\s:@]*):(?P<secret>.+)@", re.DOTALL)
# The same where somebody forgot the scheme, or what follows it.
_BARE_ADDRESS: Final = re.compile(r"(?P<head>[^:@]*):(?P<secret>.+)@", re.DOTALL)
_SCHEME: Final = re.compile(r"[a-zA-Z][\w+.-]*://")
# Where a library ends a password that nobody encoded, and takes the rest for a host or a path.
_TORN_AT: Final = re.compile(r"[@/?#:\s]")
_QUERY_SECRET: Final = re.compile(
    rf"(?P<head>[?&][\w.-]*(?:{SECRET_WORDS.pattern.removeprefix('(?i)')})[\w.-]*=)(?P<secret>[^&\s\"']+)",
    re.IGNORECASE,
)


def looks_secret(key: str) -> bool:
    """Whether a property of this name is likely to hold a secret."""
    return bool(SECRET_WORDS.search(key)) and not _NOT_SECRET.search(key)


def mask_url(text: str) -> str:
    """The text with the password of every URL in it masked."""
    return _QUERY_SECRET.sub(rf"\g<head>{MASK}", _URL_PASSWORD.sub(rf"\g<head>:{MASK}@", text))


def mask_address(text: str) -> str:
    """A text that is one address, or was meant to be, with its password masked."""
    return mask_url(_form_of(text).sub(rf"\g<head>:{MASK}@", text, count=1))


def mask_texts(text: str, hidden: Iterable[str]) -> str:
    """The text with every hidden text masked, and with the password of every URL in it."""
    return mask_url(mask_hidden(text, hidden))


def mask_hidden(text: str, hidden: Iterable[str]) -> str:
    """The text with these masked, also where they were encoded for JSON or for a URL."""
    for secret in hidden:
        for form in _forms(secret):
            text = text.replace(form, MASK)
    return text


def _forms(secret: str) -> list[str]:
    """How a secret may be written, longest first, so that no form leaves a part of another."""
    if len(secret) < _MASKED_LENGTH_MIN:
        return []
    # Only what is masked pays for loading it.
    import json

    plain = {secret, unquote(secret)}
    forms = plain | {quote(each, safe="") for each in plain}
    forms |= {
        json.dumps(each, ensure_ascii=ascii_)[1:-1] for each in plain for ascii_ in (True, False)
    }
    return sorted(forms, key=len, reverse=True)


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
        return hidden_in(self._text)

    def __str__(self) -> str:
        return mask_address(self._text)


def _form_of(address: str) -> re.Pattern[str]:
    return _WHOLE_URL if _SCHEME.match(address) else _BARE_ADDRESS


def hidden_in(address: str) -> tuple[str, ...]:
    """The secrets of an address, and the pieces that a library may tear a password into."""
    found = (*_form_of(address).finditer(address), *_QUERY_SECRET.finditer(address))
    secrets = [each["secret"] for each in found]
    pieces = [piece for secret in secrets for piece in _TORN_AT.split(secret)]
    return tuple(dict.fromkeys(text for text in (*secrets, *pieces) if text))


class Properties(Mapping[str, str]):
    """An unchangeable mapping that is passed on to a library; its secret values are masked."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, str] | None = None) -> None:
        self._items = dict(items or {})

    def masked(self) -> dict[str, str]:
        return {key: MASK if looks_secret(key) else mask_url(value) for key, value in self.items()}

    def hidden_texts(self) -> tuple[str, ...]:
        whole = (value for key, value in self.items() if looks_secret(key) and value)
        inside = (hidden_in(value) for key, value in self.items() if "://" in value)
        return (*whole, *(text for texts in inside for text in texts))

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
