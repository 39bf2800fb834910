"""The test servers as fixtures: each is started when first asked for, once per test run.

What this machine lacks (Java, a package, the network) skips the test; in CI it fails it.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Protocol

import pytest

from tests.servers import etcd, front, glue, postgres, rest, s3, sessions, tcp
from tests.servers.etcd import Etcd
from tests.servers.front import Front, Gate
from tests.servers.glue import Glue
from tests.servers.needs import needed
from tests.servers.postgres import Postgres
from tests.servers.rest import Rest
from tests.servers.s3 import S3
from tests.servers.sessions import TemporaryS3
from tests.servers.tcp import TcpFront
from tests.servers.tls import Authority


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3]:
    with needed(s3.serve()) as server:
        yield server


@pytest.fixture(scope="session")
def rest_server() -> Iterator[Rest]:
    """A REST catalog whose warehouse is a local directory."""
    with needed(rest.serve()) as server:
        yield server


@pytest.fixture(scope="session")
def rest_server_on_s3(s3_server: S3) -> Iterator[Rest]:
    with needed(rest.serve(s3_server)) as server:
        yield server


@pytest.fixture(scope="session")
def glue_server() -> Iterator[Glue]:
    with needed(glue.serve()) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    with needed(postgres.serve()) as server:
        yield server


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[Etcd]:
    with needed(etcd.serve()) as server:
        yield server


@pytest.fixture(scope="module")
def postgres_database(postgres_server: Postgres) -> Iterator[Postgres]:
    """A database of this test module alone."""
    database = postgres_server.create_database()
    yield database
    database.drop_database()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


class ServeFront(Protocol):
    def __call__(
        self,
        upstream_port: int | None = None,
        *,
        gates: Sequence[Gate] = (),
        tls: ssl.SSLContext | None = None,
    ) -> Front: ...


class ServeTcpFront(Protocol):
    def __call__(self, upstream_port: int) -> TcpFront: ...


class ServeTemporaryS3(Protocol):
    def __call__(self, *, lifetime_seconds: float) -> TemporaryS3: ...


@pytest.fixture
def serve_front() -> Iterator[ServeFront]:
    """Puts HTTP proxies in front of servers; they go with the test."""
    with ExitStack() as stack:

        def serve(
            upstream_port: int | None = None,
            *,
            gates: Sequence[Gate] = (),
            tls: ssl.SSLContext | None = None,
        ) -> Front:
            return stack.enter_context(front.serve(upstream_port, gates=gates, tls=tls))

        yield serve


@pytest.fixture
def serve_tcp_front() -> Iterator[ServeTcpFront]:
    with ExitStack() as stack:
        yield lambda upstream_port: stack.enter_context(tcp.serve(upstream_port))


@pytest.fixture
def serve_temporary_s3(s3_server: S3) -> Iterator[ServeTemporaryS3]:
    with ExitStack() as stack:

        def serve(*, lifetime_seconds: float) -> TemporaryS3:
            served = sessions.serve(s3_server, lifetime_seconds=lifetime_seconds)
            return stack.enter_context(served)

        yield serve
