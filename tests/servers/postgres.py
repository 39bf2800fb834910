"""A PostgreSQL server: the binaries of the `pgserver` package, on TCP, with passwords checked.

It does not keep its promises through a loss of power (`fsync=off`); nothing else is changed.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg

from calve.errors import MissingPart
from tests.servers import process

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


USER: Final = "calve"
PASSWORD: Final = "calve-password"
CONNECTIONS_MAX: Final = 200

_DEBIAN: Final = Path("/usr/lib/postgresql")
_NOBODY: Final = "nobody"
_NUMBERS: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Postgres:
    """One database of the server."""

    port: int
    database: str = "postgres"
    user: str = USER
    password: str = PASSWORD
    host: str = process.HOST

    @property
    def url(self) -> str:
        """As SQLAlchemy takes it."""
        return f"postgresql+psycopg://{self.user}:{self.password}@{self.host}:{self.port}/{self.database}"

    @property
    def jdbc_url(self) -> str:
        return f"jdbc:postgresql://{self.host}:{self.port}/{self.database}"

    def through(self, port: int) -> Postgres:
        """The same database behind a proxy on another port."""
        return replace(self, port=port)

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            host=self.host,
            port=self.port,
            dbname=self.database,
            user=self.user,
            password=self.password,
            connect_timeout=5,
            application_name="calve-tests",
        )

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[object, ...]]:
        with closing(self.connect()) as opened, opened.cursor() as cursor:
            opened.autocommit = True
            cursor.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else []

    def create_database(self) -> Postgres:
        name = f"lake_{next(_NUMBERS)}"
        self.query(f'CREATE DATABASE "{name}"')
        return replace(self, database=name)

    def drop_database(self) -> None:
        server = replace(self, database="postgres")
        server.query(f'DROP DATABASE IF EXISTS "{self.database}" WITH (FORCE)')

    def connections(self) -> list[dict[str, object]]:
        """What `pg_stat_activity` says of this database, without the one who asks."""
        columns = ("pid", "state", "application_name", "backend_start", "state_change", "query")
        rows = replace(self, database="postgres").query(
            f"SELECT {', '.join(columns)} FROM pg_stat_activity"
            " WHERE datname = %s AND pid <> pg_backend_pid() ORDER BY backend_start",
            [self.database],
        )
        return [dict(zip(columns, row, strict=True)) for row in rows]


@contextmanager
def serve(kept: Path | None = None, *, port: int | None = None) -> Iterator[Postgres]:
    """A server; in the directory `kept` is what an earlier one, on the same port, has left."""
    binaries = _binaries()
    account = _account()
    directory = process.new_directory("postgres")
    data = (kept or directory) / "data"
    if account:
        for each in {directory, kept or directory}:
            os.chown(each, account.pw_uid, account.pw_gid)
    if not data.exists():
        _initialise(binaries, data, account)

    def launch(free: int) -> process.Launch:
        settings = {
            "listen_addresses": process.HOST,
            "port": str(port or free),
            "unix_socket_directories": "",
            "max_connections": str(CONNECTIONS_MAX),
            "fsync": "off",
        }
        return process.Launch(
            [
                *(binaries / "postgres", "-D", data),
                *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
            ],
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            stop_signal=signal.SIGINT,  # SIGTERM would wait for every client to leave.
        )

    with process.start(
        "postgres", launch, ready=lambda free: _answers(port or free), directory=directory
    ) as server:
        yield Postgres(port or server.port)


def _binaries() -> Path:
    """Of the package, or of a PostgreSQL that the system has."""
    found = importlib.util.find_spec("pgserver")
    if found is not None and found.origin is not None:
        return Path(found.origin).parent / "pginstall" / "bin"
    on_path = shutil.which("initdb")
    installed = [Path(on_path)] if on_path else sorted(_DEBIAN.glob("*/bin/initdb"))
    if not installed:
        raise MissingPart(
            "PostgreSQL is not installed",
            hint="install `pgserver` (Python below 3.13) or your system's PostgreSQL server",
        )
    return installed[-1].resolve().parent


def _account() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to be run by root; it is run by nobody then."""
    return pwd.getpwnam(_NOBODY) if os.geteuid() == 0 else None


def _initialise(binaries: Path, data: Path, account: pwd.struct_passwd | None) -> None:
    password = data.with_name("password")
    password.write_text(PASSWORD)
    if account:
        os.chown(password, account.pw_uid, account.pw_gid)
    command: list[str | Path] = [
        *(binaries / "initdb", "-D", data, "-U", USER, "--no-sync", "--encoding=UTF8"),
        *("--locale=C", "--auth=scram-sha-256", f"--pwfile={password}"),
    ]
    try:
        run = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=data.parent,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
            check=False,
        )
    except PermissionError as error:
        raise MissingPart(
            f"{_NOBODY} cannot run {binaries}/initdb",
            hint="run the tests as a user, or from an environment that everybody can read",
        ) from error
    if run.returncode:
        raise process.ServerFailed(f"initdb failed:\n{run.stdout}{run.stderr}")


def _answers(port: int) -> bool:
    try:
        Postgres(port).connect().close()
    except psycopg.OperationalError:
        return False
    return True
