"""A service over real sockets, in this process: an intake, its HTTP server and clients of it."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from calve.ingest import Intake
from calve.ingest.http import HttpServer
from calve.model import TableName
from calve.settings import Settings
from calve.wal import Kind

NDJSON = "application/x-ndjson"


@dataclass
class Serving:
    intake: Intake
    server: HttpServer
    client: httpx.Client

    @property
    def url(self) -> str:
        return self.server.url

    def send(
        self,
        topic: str,
        body: bytes,
        content_type: str = NDJSON,
        *,
        query: str = "",
        headers: Mapping[str, str | bytes] | None = None,
    ) -> httpx.Response:
        all_headers = {"Content-Type": content_type, **(headers or {})}
        return self.client.post(
            f"/v1/topics/{topic}/rows{query}",
            content=body,
            headers=as_bytes(all_headers),
        )

    def rows(self, topic: str) -> list[dict[str, Any]]:
        """What the log holds."""
        name = TableName.parse(topic)
        return [
            row
            for entry in self.intake.read(name, self.intake.offsets(name).first)
            if entry.kind == Kind.ROWS and entry.batch is not None
            for row in entry.batch.to_pylist()
        ]

    def connect(self, timeout_seconds: float = 20) -> socket.socket:
        """A bare connection, to say what no client would."""
        place = urlsplit(self.url)
        return socket.create_connection((place.hostname, place.port), timeout_seconds)


def as_bytes(headers: Mapping[str, str | bytes]) -> dict[bytes, bytes]:
    """Headers of any bytes, which HTTP allows."""
    return {
        name.encode(): value if isinstance(value, bytes) else value.encode()
        for name, value in headers.items()
    }


@contextmanager
def serving(settings: Settings) -> Iterator[Serving]:
    with (
        Intake(settings) as intake,
        HttpServer(intake) as server,
        httpx.Client(base_url=server.url, timeout=30) as client,
    ):
        yield Serving(intake, server, client)


def answer_of(connection: socket.socket) -> tuple[int, bytes]:
    """Status and body of everything that comes until the other side closes."""
    content = b""
    while piece := connection.recv(65536):
        content += piece
    head, _, body = content.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, body
