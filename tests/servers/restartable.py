"""A server of a state that keeps its data and its port when it is stopped and started."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Self

from tests.servers import etcd, postgres, process
from tests.servers.etcd import Etcd
from tests.servers.needs import needed
from tests.servers.postgres import Postgres


class Restartable:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.port = process.free_port()
        self._kept = process.new_directory(f"kept-{kind}")
        self._serve: Callable[..., AbstractContextManager[Postgres | Etcd]] = (
            postgres.serve if kind == "postgres" else etcd.serve
        )
        self._running = ExitStack()
        server = self.start()
        self.dsn = server.url.replace("+psycopg", "")

    def start(self) -> Postgres | Etcd:
        return self._running.enter_context(needed(self._serve(self._kept, port=self.port)))

    def stop(self) -> None:
        self._running.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._kept, ignore_errors=True)
