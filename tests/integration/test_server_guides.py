"""The guides to catalogs and stores, followed word by word against real servers.

Only addresses, keys and places differ from what a page shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.contract.backends import postgres_uri
from tests.pages import DOCS, NEVER_RUN, follow
from tests.servers import glue, rest
from tests.servers.fixtures import ServeFront
from tests.servers.gates import Bearer, Prefix
from tests.servers.glue import Glue
from tests.servers.needs import needed
from tests.servers.postgres import Postgres
from tests.servers.s3 import S3

pytestmark = pytest.mark.usefixtures("no_aws_login", "spark_running")


def guide(name: str, directory: Path, replaced: dict[str, str]) -> None:
    follow(DOCS / "guides" / name, directory, NEVER_RUN, replaced)


def test_postgresql(reader: Path, postgres_server: Postgres) -> None:
    database = postgres_server.create_database()
    shown = "postgresql://calve:hunter2@db.example.com:5432/lake"
    places = {"file:///srv/lake": f"file://{reader}/files"}
    guide("catalog-postgresql.md", reader, {shown: postgres_uri(database), **places})
    database.drop_database()


def test_rest(reader: Path, serve_front: ServeFront) -> None:
    with needed(rest.serve()) as server:
        gates = [Bearer(client_secret="hunter2"), Prefix("p1", warehouse="main")]
        front = serve_front(server.port, gates=gates)
        guide("catalog-rest.md", reader, {"https://catalog.example.com": front.url})


def test_s3(reader: Path, s3_server: S3) -> None:
    replaced = {
        "s3://shop-lake/tables": f"s3://{s3_server.bucket}/{uuid4().hex}",
        "https://s3.example.com": s3_server.endpoint,
        "hunter2": s3_server.keys.secret_key,
        '"ada"': f'"{s3_server.keys.access_key}"',
    }
    guide("store-s3.md", reader, replaced)


@pytest.fixture
def glue_alone() -> Iterator[Glue]:
    """Empty, since the pages list all tables."""
    with needed(glue.serve()) as server:
        yield server


@pytest.mark.parametrize(
    ("page", "place"),
    [("catalog-glue.md", "s3://shop-lake/tables"), ("spark-glue-s3.md", "s3://shop-lake/calve")],
)
def test_glue(page: str, place: str, reader: Path, glue_alone: Glue, s3_server: S3) -> None:
    login = {
        "endpoint": f'"{s3_server.endpoint}"',
        "path_style": "true",
        "access_key_id": f'"{s3_server.keys.access_key}"',
        "secret_access_key": f'"{s3_server.keys.secret_key}"',
    }
    lines = "".join(f"\n{key} = {value}" for key, value in login.items())
    replaced = {
        place: f"s3://{s3_server.bucket}/{uuid4().hex}",
        'type = "glue"\n\n': f'type = "glue"\nuri = "{glue_alone.endpoint}"\n\n',
        '\nregion = "eu-central-1"': f'\nregion = "{s3_server.region}"{lines}',
    }
    guide(page, reader, replaced)
