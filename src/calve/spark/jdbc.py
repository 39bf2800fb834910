"""The catalog's database as Java takes it: a JDBC address and its properties, from `catalog.uri`.

The URL is read by the rules of SQLAlchemy and libpq, so that Python and Spark always mean the same
database. What JDBC cannot do is refused here, before anything is started.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote, unquote

from calve.errors import InvalidRequest
from calve.settings import SecretUrl

SQLITE: Final = "sqlite"
POSTGRESQL: Final = "postgresql"

_URL: Final = re.compile(
    r"""
    (?P<kind>\w+)(?:\+\w+)?://
    (?:(?P<user>[^:/]*)(?::(?P<password>[^@]*))?@)?
    (?:\[(?P<ipv6>[^/?]+)\]|(?P<host>[^/:?]+))?
    (?::(?P<port>[^/?]*))?
    (?:/(?P<database>[^?]*))?
    (?:\?(?P<query>.*))?
    """,
    re.VERBOSE,
)
_HINT: Final = "write sqlite:////absolute/path/catalog.db or postgresql://user@host/database"
_PORT: Final = 5432
_PORT_MAX: Final = 65535
# What Python and Java call differently, or alike; of both, only what means the same.
_OPTIONS: Final = {
    "channel_binding": "channelBinding",
    "options": "options",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "sslmode": "sslmode",
    "sslpassword": "sslpassword",
    "sslrootcert": "sslrootcert",
}
# Calve sets these itself, for Python too.
_OVERRIDDEN: Final = frozenset({"application_name", "connect_timeout"})


@dataclass(frozen=True, slots=True)
class Jdbc:
    """A JDBC address without a login in it, and the driver's properties, which may hold one."""

    uri: str
    properties: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Parts:
    """A database URL, taken apart and decoded."""

    shown: SecretUrl
    kind: str
    host: str
    port: str
    database: str
    user: str
    password: str
    query: dict[str, str]

    def refused(self, why: str, hint: str = _HINT) -> InvalidRequest:
        return InvalidRequest(f"catalog.uri: {self.shown} {why}", hint=hint)


def database_kind(uri: SecretUrl) -> str:
    """`sqlite` or `postgresql`."""
    return _parts(uri).kind


def jdbc(uri: SecretUrl) -> Jdbc:
    """The same database for Java."""
    parts = _parts(uri)
    return _sqlite(parts) if parts.kind == SQLITE else _postgresql(parts)


def _parts(uri: SecretUrl) -> _Parts:
    found = _URL.fullmatch(uri.reveal())
    if found is None:
        raise InvalidRequest(f"catalog.uri: {uri} is not a database URL", hint=_HINT)
    text = {name: unquote(value or "") for name, value in found.groupdict().items()}
    kind = POSTGRESQL if text["kind"] == "postgres" else text["kind"]
    if kind not in {SQLITE, POSTGRESQL}:
        raise InvalidRequest(
            f"catalog.uri: {uri} is a database of the unknown kind {kind}", hint=_HINT
        )
    # In libpq, an option wins over the part of the URL that says the same.
    query = dict(parse_qsl(found["query"] or "", keep_blank_values=True))
    return _Parts(
        shown=uri,
        kind=kind,
        host=query.pop("host", text["ipv6"] or text["host"]),
        port=query.pop("port", text["port"]),
        database=query.pop("dbname", text["database"]),
        user=query.pop("user", text["user"]),
        password=query.pop("password", text["password"]),
        query=query,
    )


def _sqlite(parts: _Parts) -> Jdbc:
    if parts.host or parts.port or parts.user:
        raise parts.refused("names a host, which SQLite does not have")
    if parts.database in {"", ":memory:"}:
        raise parts.refused(
            "is in the memory of this Python process, where Spark cannot see it",
            "write sqlite:////absolute/path/catalog.db to work with Spark",
        )
    if parts.query or "?" in parts.database:
        raise parts.refused(
            "has options, which Spark cannot take for SQLite", "leave out the ? and what follows it"
        )
    # Java's working directory may be another one than Python's by now.
    return Jdbc(f"jdbc:sqlite:{os.path.abspath(parts.database)}", {})


def _postgresql(parts: _Parts) -> Jdbc:
    database = parts.database or parts.user
    if not database:
        raise parts.refused("names no database")
    login = {"user": parts.user, "password": parts.password}
    return Jdbc(
        f"jdbc:postgresql://{_host(parts)}:{_port(parts)}/{quote(database, safe='')}",
        {**_options(parts), **{name: value for name, value in login.items() if value}},
    )


def _host(parts: _Parts) -> str:
    host = parts.host
    if not host or host.startswith(("/", "@")):
        raise parts.refused(
            "names no host but a Unix socket, to which Java cannot connect",
            "let PostgreSQL listen on TCP and name the host: postgresql://user@localhost/database",
        )
    if "@" in host:
        raise parts.refused("has more than one @", "write an @ in the password as %40")
    if "," in host:
        raise parts.refused(
            "names several hosts, which Spark cannot take", "name one host, or a proxy before them"
        )
    return f"[{host}]" if ":" in host else host


def _port(parts: _Parts) -> int:
    if not parts.port:
        return _PORT
    if not parts.port.isdecimal() or not 1 <= int(parts.port) <= _PORT_MAX:
        raise parts.refused(
            f"has the port {parts.port}", f"a port is a number from 1 to {_PORT_MAX}"
        )
    return int(parts.port)


def _options(parts: _Parts) -> dict[str, str]:
    for name in parts.query:
        if name not in _OPTIONS and name not in _OVERRIDDEN:
            raise parts.refused(
                f"has the option {name}, which Spark cannot take",
                f"leave it out; Spark can take {', '.join(_OPTIONS)}",
            )
    return {_OPTIONS[name]: value for name, value in parts.query.items() if name in _OPTIONS}
