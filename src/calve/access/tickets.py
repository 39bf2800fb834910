"""Signed tickets: the right to read one range of a log, for some minutes, without a token.

Whoever runs the pipeline signs them for its executors, which never see its token. The key is in
the state, which the services that check them have in common. A ticket names the token in whose
name it was signed, and ends with it; without one it is the lake's own pipeline that signed.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Final

import msgspec

from calve.access.token import digest_of, id_of
from calve.errors import Unauthenticated

if TYPE_CHECKING:
    from calve.clock import Clock
    from calve.protocol import LogRange
    from calve.settings import Secret

KEY_NAME: Final = "tickets"
SECONDS: Final = 300


class TicketSigner:
    """Signs in the name of one token."""

    def __init__(self, key: bytes, clock: Clock, token: Secret | None = None) -> None:
        self._key = key
        self._clock = clock
        self._token_id = None if token is None else id_of(digest_of(token.reveal()))

    def signed(self, wanted: LogRange) -> LogRange:
        expires_at = int(self._clock.now().timestamp()) + SECONDS
        plain = msgspec.structs.replace(
            wanted, token=self._token_id, expires_at=expires_at, mac=None
        )
        return msgspec.structs.replace(plain, mac=_mac(self._key, plain))


def require_signed(ticket: LogRange, key: bytes, clock: Clock) -> None:
    """Unauthenticated if it was changed, was signed with another key, or is over."""
    plain = msgspec.structs.replace(ticket, mac=None)
    if ticket.mac is None or ticket.expires_at is None:
        raise _refused("it is not signed")
    if not hmac.compare_digest(_mac(key, plain).encode(), ticket.mac.encode(errors="replace")):
        raise _refused("its signature is another one")
    if clock.now().timestamp() >= ticket.expires_at:
        raise _refused("its time is over")


def _mac(key: bytes, plain: LogRange) -> str:
    return hmac.new(key, msgspec.json.encode(plain), hashlib.sha256).hexdigest()


def _refused(reason: str) -> Unauthenticated:
    return Unauthenticated(f"the ticket does not count: {reason}", hint="ask for the range again")
