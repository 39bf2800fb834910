"""AWS Glue, and an S3 beside it, as moto imitates them.

Good for whether requests are right. Not for conflicts: moto ignores the version that a commit
requires, so two concurrent commits both succeed and one is lost.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from calve.errors import MissingPart
from tests.servers import process

if TYPE_CHECKING:
    from collections.abc import Iterator

REGION: Final = "us-east-1"
# moto's own account; it takes any key.
CATALOG_ID: Final = "123456789012"


@dataclass(frozen=True, slots=True)
class Glue:
    endpoint: str
    region: str = REGION
    access_key: str = "calve-glue"
    secret_key: str = "calve-glue-secret"
    catalog_id: str = CATALOG_ID

    @property
    def catalog_properties(self) -> dict[str, str]:
        """As PyIceberg names them."""
        return {
            "glue.endpoint": self.endpoint,
            "glue.region": self.region,
            "glue.access-key-id": self.access_key,
            "glue.secret-access-key": self.secret_key,
        }


@contextmanager
def serve() -> Iterator[Glue]:
    for module, package in (
        ("moto", "moto[server]"),
        ("flask", "moto[server]"),
        ("boto3", "boto3"),
    ):
        if importlib.util.find_spec(module) is None:
            raise MissingPart(f"{module} is not installed", hint=f"run `pip install '{package}'`")

    def launch(port: int) -> process.Launch:
        return process.Launch(
            [sys.executable, "-m", "moto.server", "-H", process.HOST, "-p", str(port)]
        )

    with process.start("glue", launch, ready=process.accepts_connections) as server:
        yield Glue(server.url)
