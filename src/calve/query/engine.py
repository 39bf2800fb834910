"""DuckDBs that read Iceberg, download nothing, and open only what they are told to.

Each read gets a DuckDB of its own, in memory, that may open the directories of its tables and
nothing else, and whose settings nobody can change any more. Making one takes some 15 ms, so a few
that are done are kept for the next read of the same tables.
"""

from __future__ import annotations

import importlib.resources
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import duckdb

from calve.condition import SESSION
from calve.errors import Corruption, MissingPart
from calve.tables.stores.access import Access, S3Keys

_EXTENSIONS: Final = ("avro", "iceberg")
_FOR_S3: Final = "httpfs"
_HTTP_TIMEOUT_SECONDS: Final = 30
_CONFIG: Final[dict[str, str | bool | int | float | list[str]]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    # Extensions come as Python packages, by the same way and with the same hashes as DuckDB itself.
    # Checking their signatures once more took 0.35 s for each DuckDB.
    "allow_unsigned_extensions": True,
}
_OUTPUT: Final = (
    # Somebody's stored secrets are not the lake's.
    "SET allow_persistent_secrets = false;"
    # What is kept for the next read is the memory of nobody's query.
    " SET enable_external_file_cache = false;"
    " SET arrow_lossless_conversion = true; SET python_enable_replacements = false;"
    # With its own megabyte, one thread does most of the work while the others wait for a fetch.
    " SET streaming_buffer_size = '8MiB';"
    # Or it would write beside the user's own files, in the directory a program was started in.
    " SET temp_directory = ''"
)


# By these DuckDB has Arrow choose among Arrow rows. To Arrow NaN is above and equals nothing, some
# comparisons do not exist, and times with a zone need a library that nobody else does.
ARROW_FILTERS: Final = "filter_pushdown,join_filter_pushdown"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one query; None is no bound."""

    time_ms_max: int | None = None
    memory_bytes_max: int | None = None
    rows_max: int | None = None


NO_LIMITS: Final = Limits()


def connect() -> duckdb.DuckDBPyConnection:
    """A new in-memory DuckDB that can `iceberg_scan` and fetches nothing by itself."""
    connection = duckdb.connect(config=_CONFIG)
    for name in _EXTENSIONS:
        _load(connection, name)
    connection.execute(SESSION)
    return connection


def connect_confined(
    accesses: Iterable[Access] = (),
    *,
    paths: Iterable[str] = (),
    limits: Limits = NO_LIMITS,
    reads_arrow: bool = False,
) -> duckdb.DuckDBPyConnection:
    """A DuckDB that can open these tables and single paths, and nothing else.

    One that `reads_arrow` decides itself which of the Arrow rows that it is handed are meant.
    """
    reached = list(accesses)
    connection = connect()
    connection.execute(_OUTPUT)
    if reads_arrow:
        connection.execute(f"SET disabled_optimizers = '{ARROW_FILTERS}'")
    keys = [(access, access.s3) for access in reached if access.s3 is not None]
    if keys:
        _load(connection, _FOR_S3)
        connection.execute(f"SET http_timeout = {_HTTP_TIMEOUT_SECONDS}")
        for number, (access, held) in enumerate(keys):
            _create_secret(connection, f"table_{number}", access, held)
    if limits.memory_bytes_max is not None:
        connection.execute(f"SET memory_limit = '{limits.memory_bytes_max}B'")
    directories = sorted({place for access in reached for place in access.directories})
    connection.execute(f"SET allowed_directories = {_listed(directories)}")
    connection.execute(f"SET allowed_paths = {_listed(paths)}")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


class Idle:
    """DuckDBs that have answered and wait for another read of the same tables, by one reader."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._held: OrderedDict[int, tuple[object, duckdb.DuckDBPyConnection]] = OrderedDict()

    def take(
        self,
        accesses: Iterable[Access],
        *,
        paths: Iterable[str] = (),
        limits: Limits = NO_LIMITS,
        reads_arrow: bool = False,
    ) -> Confined:
        reached, single = tuple(accesses), frozenset(paths)
        key = (os.getpid(), reached, single, limits, reads_arrow)
        with self._lock:
            found = next((n for n, (held, _) in self._held.items() if held == key), None)
            if found is not None:
                return Confined(self, key, self._held.pop(found)[1])
        made = connect_confined(reached, paths=single, limits=limits, reads_arrow=reads_arrow)
        return Confined(self, key, made)

    def give(self, key: object, connection: duckdb.DuckDBPyConnection) -> None:
        with self._lock:
            self._held[id(connection)] = (key, connection)
            oldest = self._held.popitem(last=False)[1][1] if len(self._held) > self._most else None
        if oldest is not None:
            oldest.close()


class Confined:
    """A DuckDB in use. `release` it after a full answer; what broke off is not used again."""

    def __init__(self, idle: Idle, key: object, connection: duckdb.DuckDBPyConnection) -> None:
        self._idle = idle
        self._key = key
        self._named: list[str] = []
        self.connection = connection

    def name(self, name: str, rows: object) -> None:
        """Have DuckDB know Arrow rows by a name, until it is released."""
        self.connection.register(name, rows)
        self._named.append(name)

    def discard(self) -> None:
        """Let go of its memory and threads."""
        self.connection.close()

    def release(self) -> None:
        for name in self._named:
            self.connection.unregister(name)
        self._idle.give(self._key, self.connection)


_IDLE_MAX: Final = 8
IDLE: Final = Idle(_IDLE_MAX)


def quoted(name: str) -> str:
    """A name as DuckDB reads it back."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _listed(texts: Iterable[str]) -> str:
    return "[" + ", ".join(literal(text) for text in texts) + "]"


def _create_secret(
    connection: duckdb.DuckDBPyConnection, name: str, access: Access, keys: S3Keys
) -> None:
    given = {
        "KEY_ID": keys.key_id,
        "SECRET": keys.secret,
        "SESSION_TOKEN": keys.token,
        "REGION": keys.region,
        "URL_STYLE": "path" if keys.is_path_style else "vhost",
        **_endpoint(keys.endpoint),
    }
    options = "".join(f", {key} {literal(value)}" for key, value in given.items() if value)
    scope = _listed(access.directories)
    connection.execute(f"CREATE SECRET {name} (TYPE s3, SCOPE {scope}{options})")


def _endpoint(endpoint: str | None) -> dict[str, str]:
    if not endpoint:
        return {}
    parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
    return {
        "ENDPOINT": parts.netloc + parts.path.rstrip("/"),
        "USE_SSL": str(parts.scheme == "https").lower(),
    }


def _load(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    try:
        home = importlib.resources.files(f"duckdb_extension_{name}")
    except ModuleNotFoundError as error:
        raise MissingPart(
            f"DuckDB's extension {name!r} is not installed", hint="reinstall Calve"
        ) from error
    file = home / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"
    try:
        connection.load_extension(str(file))
    except duckdb.Error as error:
        raise Corruption(
            f"DuckDB's extension {name!r} does not load: {str(error).splitlines()[0]}",
            hint="reinstall Calve; its packages duckdb and duckdb-extension-* must be one version",
        ) from error
