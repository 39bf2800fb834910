"""Tokens and keys as records.

A token is kept under its id; what is in its record is the business of whoever gives access.
"""

from __future__ import annotations

import secrets
from typing import Final

from calve.state.records import KEYS, TOKENS, Records, content, text
from calve.state.transactions import Transactions

_TOKENS: Final = "tokens"
_KEY_BYTES: Final = 32


class RecordedAccess(Transactions):
    """The part of a `State` that is about who may use it."""

    def create_token(self, token_id: str, content: bytes) -> bool:
        return self._change(
            [_TOKENS], lambda found: _create(found, token_id, content), is_repeatable=False
        )

    def token(self, token_id: str) -> bytes | None:
        row = self._read(lambda found: found.find(TOKENS, (token_id,)))
        return None if row is None else content(row[0])

    def tokens(self) -> dict[str, bytes]:
        rows = self._read(lambda found: found.scan(TOKENS))
        return {text(row[0]): content(row[1]) for row in rows}

    def delete_token(self, token_id: str) -> bool:
        return self._change([_TOKENS], lambda found: _delete(found, token_id))

    def signing_key(self, name: str) -> bytes:
        return self._change([f"key {name}"], lambda found: _key(found, name))


def _create(records: Records, token_id: str, made: bytes) -> bool:
    if records.find(TOKENS, (token_id,)) is not None:
        return False
    records.put(TOKENS, (token_id,), made)
    return True


def _delete(records: Records, token_id: str) -> bool:
    if records.find(TOKENS, (token_id,)) is None:
        return False
    records.drop(TOKENS, (token_id,))
    return True


def _key(records: Records, name: str) -> bytes:
    row = records.find(KEYS, (name,))
    if row is not None:
        return content(row[0])
    made = secrets.token_bytes(_KEY_BYTES)
    records.put(KEYS, (name,), made)
    return made
