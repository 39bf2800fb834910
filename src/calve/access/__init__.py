"""Who somebody is and what they may do: tokens, callers, and who looks at them at every door."""

from calve.access.caller import Caller
from calve.access.doorkeeper import Doorkeeper
from calve.access.token import ANY, EVERY_TENANT, OPEN, SCOPES, Need, NewToken, Scope, Token
from calve.access.tokens import Tokens

__all__ = [
    "ANY",
    "EVERY_TENANT",
    "OPEN",
    "SCOPES",
    "Caller",
    "Doorkeeper",
    "Need",
    "NewToken",
    "Scope",
    "Token",
    "Tokens",
]
