"""A token: what somebody shows to say who they are, and what it lets them do.

Its secret is 256 random bits, shown once. What is kept is the secret's SHA-256, which is no way
back: a secret of that size cannot be guessed, so nothing slower is needed. The id is the digest's
beginning, so that a secret leads to its record without a search, and says nothing of the secret.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from calve.errors import InvalidRequest
from calve.model import DEFAULT_DATASET, TableName

Scope: TypeAlias = Literal["produce", "subscribe", "query", "admin", "pipeline"]
# What a door asks for: a scope, any token, or none at all.
Need: TypeAlias = Literal["produce", "subscribe", "query", "admin", "pipeline", "any", "open"]
ANY: Final = "any"
OPEN: Final = "open"
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
EVERY_TENANT: Final = "*"

_PREFIX: Final = "calve_"
_SECRET_BYTES: Final = 32
_ID_DIGITS: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._@-]{0,98}[A-Za-z0-9])?", re.ASCII)
_PATTERN_PART: Final = re.compile(r"[a-z0-9_*]{1,63}", re.ASCII)
_PATTERNS_MAX: Final = 100


class NewToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token as somebody wishes for it.

    `topics` are patterns such as `orders_*` or `acme.sales.*`; none: all of the tenant's. A short
    name means one of the tenant's `dataset`.
    """

    name: str
    tenant: str
    scopes: tuple[Scope, ...]
    topics: tuple[str, ...] = ()
    dataset: str = DEFAULT_DATASET
    expires_at: datetime | None = None

    @property
    def audit_subject(self) -> str:
        return self.name


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it is kept: without its secret."""

    id: str
    name: str
    tenant: str
    scopes: tuple[Scope, ...]
    topics: tuple[str, ...] = ()
    dataset: str = DEFAULT_DATASET
    created_at: datetime
    expires_at: datetime | None = None
    digest: str

    def is_over(self, now: datetime) -> bool:
        return self.expires_at is not None and now >= self.expires_at


def new_secret() -> str:
    return _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def id_of(digest: str) -> str:
    return digest[:_ID_DIGITS]


def made(wanted: NewToken, secret: str, now: datetime) -> Token:
    """The token that a secret stands for; InvalidRequest says what is wrong with the wish."""
    _require_valid(wanted, now)
    digest = digest_of(secret)
    return Token(
        id=id_of(digest),
        name=wanted.name,
        tenant=wanted.tenant,
        scopes=tuple(each for each in SCOPES if each in wanted.scopes),
        topics=tuple(dict.fromkeys(wanted.topics)),
        dataset=wanted.dataset,
        created_at=now,
        expires_at=wanted.expires_at,
        digest=digest,
    )


def _require_valid(wanted: NewToken, now: datetime) -> None:
    if not _NAME.fullmatch(wanted.name):
        raise InvalidRequest(
            f"{wanted.name[:100]!r} is no name for a token",
            hint="use 1 to 100 letters, digits, blanks and . _ @ -; it begins and ends with a "
            "letter or a digit",
        )
    if not wanted.scopes or not set(wanted.scopes) <= set(SCOPES):
        raise InvalidRequest(
            "a token has at least one scope, of those that there are",
            hint=f"the scopes are {', '.join(SCOPES)}",
        )
    tenant = "any" if wanted.tenant == EVERY_TENANT else wanted.tenant
    TableName(tenant, wanted.dataset, "name")
    if wanted.expires_at is not None and wanted.expires_at.tzinfo is None:
        raise InvalidRequest("the expiry has no time zone", hint="write 2030-01-31T12:00:00Z")
    if wanted.expires_at is not None and wanted.expires_at <= now:
        raise InvalidRequest("the expiry is over already", hint="give a time to come")
    if len(wanted.topics) > _PATTERNS_MAX:
        raise InvalidRequest(f"a token has at most {_PATTERNS_MAX} patterns of topics")
    for pattern in wanted.topics:
        _require_pattern(pattern)
        _require_reach(pattern, wanted.tenant)


def _require_reach(pattern: str, tenant: str) -> None:
    """Refuse what can never be: whoever made it would look for the mistake elsewhere."""
    whose, full, _ = pattern.partition(".")
    if full and tenant != EVERY_TENANT and not fnmatchcase(tenant, whose):
        raise InvalidRequest(
            f"the pattern {pattern!r} has topics of another tenant, and the token is of {tenant}",
            hint=f"write {tenant}.dataset.name or a short name, or make a token of that tenant",
        )


def _require_pattern(pattern: str) -> None:
    parts = pattern.split(".")
    if len(parts) not in {1, 3} or not all(_PATTERN_PART.fullmatch(part) for part in parts):
        raise InvalidRequest(
            f"{pattern[:200]!r} is no pattern of topics",
            hint="write a short name or tenant.dataset.name, with * for any text in a part",
        )
