"""Who asks: the tenant, the scopes and the topics of one token, or the host itself.

A name that is out of reach is answered like one that does not exist, in the same words, so that
nothing tells which it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from calve.access.token import ANY, EVERY_TENANT, OPEN, SCOPES
from calve.errors import Denied
from calve.model import DEFAULT_DATASET, DEFAULT_TENANT, TableName
from calve.topics.registry import no_topic

if TYPE_CHECKING:
    from calve.access.token import Need, Scope, Token
    from calve.topics.topic import Topic

_HOST: Final = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Made by the doorkeeper. `token_id` is None for whoever needs no token.

    `is_host` is whoever can read the lake's own files anyway.
    """

    tenant: str
    scopes: frozenset[Scope]
    topics: tuple[str, ...] = ()
    dataset: str = DEFAULT_DATASET
    token_id: str | None = None
    name: str = _HOST
    address: str = ""
    is_host: bool = False

    @classmethod
    def of_host(cls, address: str = "", *, token_id: str | None = None) -> Caller:
        """Everything is allowed: the lake in one's own process, or a service without tokens."""
        return cls(
            tenant=EVERY_TENANT,
            scopes=frozenset(SCOPES),
            token_id=token_id,
            address=address,
            is_host=True,
        )

    @classmethod
    def of_pipeline(cls, address: str) -> Caller:
        """The lake's own pipeline, which has signed what it gave to its executors."""
        return cls(
            tenant=EVERY_TENANT, scopes=frozenset({"pipeline"}), name="pipeline", address=address
        )

    @classmethod
    def of_token(cls, token: Token, address: str) -> Caller:
        return cls(
            tenant=token.tenant,
            scopes=frozenset(token.scopes),
            topics=token.topics,
            dataset=token.dataset,
            token_id=token.id,
            name=token.name,
            address=address,
        )

    @property
    def only_tenant(self) -> str | None:
        """The one whose names there are; None for whoever sees all of them."""
        return None if self.tenant == EVERY_TENANT else self.tenant

    def share(self, address: str) -> str:
        """Whose share of memory and of turns it takes: its tenant's, or that of an address."""
        return address if self.only_tenant is None else f"tenant {self.tenant}"

    @property
    def sees_everything(self) -> bool:
        return self.tenant == EVERY_TENANT and not self.topics

    def table_name(self, text: str) -> TableName:
        """What a name means to the caller: a short one is in its tenant and dataset."""
        if "." in text:
            return TableName.parse(text)
        return TableName(self.only_tenant or DEFAULT_TENANT, self.dataset, text)

    def allows(self, need: Need) -> bool:
        return need in {ANY, OPEN} or need in self.scopes

    def sees(self, name: TableName) -> bool:
        """Whether it is in reach; the dead letters of a topic are with it."""
        if self.tenant not in {EVERY_TENANT, name.tenant}:
            return False
        return not self.topics or any(
            pattern.fullmatch(_full(name.topic)) for pattern in _patterns(self)
        )

    def require(self, need: Need, name: TableName | None = None) -> None:
        """Denied without the scope; NotFound for a topic that is out of reach."""
        if not self.allows(need):
            raise Denied(
                f"the token {self.name!r} has not the scope {need}, but {_listed(self.scopes)}",
                hint=f"ask for a token with the scope {need}",
                context={"scope": need},
            )
        if name is not None:
            self.require_seen(name)

    def require_seen(self, name: TableName) -> None:
        if not self.sees(name):
            raise no_topic(name)

    def topic(self, text: str) -> TableName:
        """The topic that a text names, which is in reach."""
        name = self.table_name(text)
        self.require_seen(name)
        return name

    def require_every_tenant(self, what: str) -> None:
        """For what concerns all of a lake."""
        if not self.sees_everything:
            raise Denied(
                f"{what} concerns every tenant, and the token {self.name!r} is for {self.tenant}",
                hint="name a topic, or use an operator's token, which is made on the host",
            )

    def among(self, topics: list[Topic]) -> list[Topic]:
        return [each for each in topics if self.sees(each.name)]


@lru_cache(maxsize=1024)
def _compiled(pattern: str, tenant: str, dataset: str) -> re.Pattern[str]:
    """A pattern of one part is about short names, and means what these mean."""
    prefix = rf"{re.escape(tenant)}\.{re.escape(dataset)}\." if "." not in pattern else ""
    return re.compile(prefix + re.escape(pattern).replace(r"\*", "[a-z0-9_]*"))


def _patterns(caller: Caller) -> list[re.Pattern[str]]:
    tenant = caller.only_tenant or DEFAULT_TENANT
    return [_compiled(each, tenant, caller.dataset) for each in caller.topics]


def _full(name: TableName) -> str:
    return f"{name.tenant}.{name.dataset}.{name.name}"


def _listed(scopes: frozenset[Scope]) -> str:
    return ", ".join(each for each in SCOPES if each in scopes)
