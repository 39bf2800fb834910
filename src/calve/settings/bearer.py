"""A token on its way to a service: `Authorization: Bearer …`."""

from __future__ import annotations

import re
from typing import Final

from calve.errors import InvalidRequest

# What the header may carry (RFC 6750); every token of Calve is of it.
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")


def require_token(text: str, place: str) -> str:
    """The text; InvalidRequest, without telling it, if no header can carry it as a token.

    Before anything is sent: gRPC calls it a failure of the connection, which trying again mends.
    """
    if not _TOKEN.fullmatch(text):
        raise InvalidRequest(
            f"{place} holds no token",
            hint="a token is one word, such as calve_…; `calve token create` prints it alone to "
            "standard output, and what else it says to standard error",
        )
    return text
