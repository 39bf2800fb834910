"""What each setting allows, but all of them together do not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from calve.errors import InvalidRequest, InvalidSettings
from calve.model import TableName
from calve.paths import local_directory
from calve.settings.bearer import require_token
from calve.settings.secret import Properties, Secret, mask_address

_STORAGE_SCHEMES: Final = ("file", "s3", "memory")
_NOT_IN_PATHS: Final = frozenset("?#%")
_TIMEOUT: Final = re.compile(r"rest\.client\..*-timeout-ms")
_TENANT: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_LIMITS: Final = (
    "rows_per_second_max",
    "bytes_per_second_max",
    "log_bytes_max",
    "queries_max",
    "subscriptions_max",
)
# As Spark's driver reads it.
_MASTER: Final = re.compile(
    r"local(\[(0*[1-9]\d*|\*)(\s*,\s*\d+)?\])?|local-cluster\[(\s*\d+\s*,){2}\s*\d+\s*\]"
    r"|(spark|k8s)://\S+|yarn",
    re.ASCII,
)
# As the standard library numbers them; loading it would cost every command.
_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def contradictions(values: Mapping[str, object]) -> Iterator[str]:
    yield from _store_problems(values["storage.dsn"])
    yield from _login_problems(values)
    yield from _catalog_problems(values)
    try:
        component_levels(str(values["log.levels"]))
    except InvalidSettings as error:
        yield f"{error.message}; {error.hint}"
    yield from _tenant_problems(values["tenants.limits"])
    yield from _audit_problems(values["audit.topic"])
    yield from _token_problems(values["pipeline.token"])
    yield from _master_problems(str(values["spark.master"]))
    pool = "catalog.pool"
    least, most = values[f"{pool}.min_connections"], values[f"{pool}.max_connections"]
    assert isinstance(least, int)
    assert isinstance(most, int)
    if least > most:
        yield f"{pool}.min_connections: {least} is more than {pool}.max_connections, {most}"


def _login_problems(values: Mapping[str, object]) -> Iterator[str]:
    pair = ("storage.access_key_id", "storage.secret_access_key")
    for one, other in (pair, pair[::-1]):
        if values[one] is not None and values[other] is None:
            yield f"{one}: needs {other} beside it; set both, or neither"


def _catalog_problems(values: Mapping[str, object]) -> Iterator[str]:
    if values["catalog.type"] == "rest" and values["catalog.uri"] is None:
        yield "catalog.uri: a REST catalog needs the address of its server: https://host/path"
    properties = values["catalog.properties"]
    assert isinstance(properties, Properties)
    for name, value in properties.items():
        if _TIMEOUT.fullmatch(name) and not (value.isdecimal() and int(value) > 0):
            yield f"catalog.properties.{name}: must be a whole number of ms, not {value!r}"


def _tenant_problems(limits: object) -> Iterator[str]:
    assert isinstance(limits, Properties)
    for name, value in limits.items():
        tenant, _, key = name.partition(".")
        if not _TENANT.fullmatch(tenant) or key not in _LIMITS:
            yield (
                f"tenants.limits.{name}: is not a tenant and one of {', '.join(_LIMITS)}; "
                "write [tenants.limits.acme] and its keys"
            )
        elif not (value.isascii() and value.isdecimal()):
            yield f"tenants.limits.{name}: must be a whole number of 0 or more, not {value!r}"


def _audit_problems(topic: object) -> Iterator[str]:
    if topic is None:
        return
    try:
        TableName.parse_new(str(topic))
    except InvalidRequest as error:
        yield f"audit.topic: {error.message}; {error.hint}"


def _token_problems(token: object) -> Iterator[str]:
    if not isinstance(token, Secret):
        return
    try:
        require_token(token.reveal(), "pipeline.token")
    except InvalidRequest as error:
        yield f"{error.message}; {error.hint}"


def _master_problems(master: str) -> Iterator[str]:
    """What Spark would answer with a stack trace, once its JVM has started."""
    if not _MASTER.fullmatch(master):
        yield (
            f"spark.master: {master!r} is no place where Spark runs; "
            "write local[*], local[4], spark://host:port, k8s://https://host:port or yarn"
        )


def _store_problems(dsn: object) -> Iterator[str]:
    if dsn is None:
        return
    scheme, found, _ = str(dsn).partition("://")
    directory = local_directory(str(dsn))
    told = mask_address(str(dsn))
    if not found or scheme not in _STORAGE_SCHEMES or (directory and not directory.is_absolute()):
        yield (
            f"storage.dsn: {told!r} is not a store; "
            "write file:///directory, s3://bucket/prefix/ or memory://"
        )
    if scheme == "s3" and not urlsplit(str(dsn)).netloc:
        yield f"storage.dsn: {told!r} names no bucket; write s3://bucket/prefix/"
    if directory and set(str(directory)) & _NOT_IN_PATHS:
        yield (
            f"storage.dsn: {told!r} has one of {' '.join(sorted(_NOT_IN_PATHS))} in it, "
            "which Iceberg's libraries read as parts of a URL; choose another directory"
        )


def component_levels(text: str) -> dict[str, int]:
    """Read `calve.pipeline=debug,pyiceberg=info`."""
    levels = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, level = (piece.strip() for piece in part.partition("="))
        number = _LEVELS.get(level.lower())
        if not name or number is None:
            raise InvalidSettings(
                f"log.levels: {part!r} is not a component and a level",
                hint="write calve.tables=debug,pyiceberg=info; the levels are "
                "debug, info, warning and error",
            )
        levels[name] = number
    return levels
