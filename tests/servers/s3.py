"""An S3 store: S3Proxy over a local directory, with two access keys and one bucket.

Conditional writes, multipart uploads and wrong keys behave as on S3, also between the two keys.
There is no bucket versioning, no policy and no session token: `sessions.py` adds the last.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.fs

from calve.spark.java import find_java
from tests.servers import process
from tests.servers.jars import class_path

if TYPE_CHECKING:
    from collections.abc import Iterator

REGION: Final = "us-east-1"
BUCKET: Final = "lake"


@dataclass(frozen=True, slots=True)
class Keys:
    access_key: str
    secret_key: str


# Two users with the same rights. Not secrets: the server listens on loopback and dies with the run.
ADMIN: Final = Keys("calve-admin", "calve-admin-secret")
WRITER: Final = Keys("calve-writer", "calve-writer-secret")

_LOGGING: Final = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %level %logger %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


@dataclass(frozen=True, slots=True)
class S3:
    """Where the store is and how to come in."""

    endpoint: str
    keys: Keys = ADMIN
    other_keys: Keys = WRITER
    region: str = REGION
    bucket: str = BUCKET

    @property
    def port(self) -> int:
        return int(self.endpoint.rpartition(":")[2])

    @property
    def file_io_properties(self) -> dict[str, str]:
        """As PyIceberg and Iceberg's S3FileIO name them."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.region": self.region,
            "client.region": self.region,
            "s3.access-key-id": self.keys.access_key,
            "s3.secret-access-key": self.keys.secret_key,
            "s3.path-style-access": "true",
        }

    def file_system(self, keys: Keys | None = None) -> pyarrow.fs.S3FileSystem:
        keys = keys or self.keys
        return pyarrow.fs.S3FileSystem(
            access_key=keys.access_key,
            secret_key=keys.secret_key,
            endpoint_override=self.endpoint,
            region=self.region,
            allow_bucket_creation=True,
        )

    def create_bucket(self, name: str) -> str:
        self.file_system().create_dir(name)
        return name


@contextmanager
def serve() -> Iterator[S3]:
    jars = class_path("s3proxy")
    java = find_java().executable
    directory = process.new_directory("s3")
    (directory / "logback.xml").write_text(_LOGGING)
    (directory / "data").mkdir()

    def launch(port: int) -> process.Launch:
        files = [_properties(directory, port, keys) for keys in (ADMIN, WRITER)]
        return process.Launch(
            [
                *(java, "-Xmx512m", "-Dlogback.configurationFile=logback.xml", "-cp", jars),
                "org.gaul.s3proxy.Main",
                *(part for file in files for part in ("--properties", file)),
            ]
        )

    with process.start(
        "s3", launch, ready=process.accepts_connections, directory=directory
    ) as server:
        store = S3(server.url)
        store.create_bucket(store.bucket)
        yield store


def _properties(directory: Path, port: int, keys: Keys) -> Path:
    """S3Proxy knows one key per file; files of one directory are two doors to one store."""
    path = directory / f"{keys.access_key}.properties"
    settings = {
        "s3proxy.endpoint": f"http://{process.HOST}:{port}",
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": keys.access_key,
        "s3proxy.credential": keys.secret_key,
        # A session token is one; without this it is refused instead of ignored.
        "s3proxy.ignore-unknown-headers": "true",
        "jclouds.provider": "filesystem-nio2",
        "jclouds.filesystem.basedir": str(directory / "data"),
        "jclouds.identity": keys.access_key,
        "jclouds.credential": keys.secret_key,
    }
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path
