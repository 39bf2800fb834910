"""Ordinary mistakes end with an error of Calve: what is wrong, in which setting, and what to do."""

from __future__ import annotations

import gzip
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform

from calve.errors import (
    CalveError,
    Corruption,
    Denied,
    InvalidRequest,
    InvalidSettings,
    MissingPart,
    Unavailable,
    UnknownOutcome,
)
from calve.lake import Lake
from calve.settings import Settings, complete, load_settings
from calve.spark.jars import JarCache, needed_jars
from calve.tables.translate import require_creatable, translating
from tests.contract.backends import postgres_uri
from tests.servers.fixtures import ServeFront
from tests.servers.front import Answer, Gate, Headers, Request
from tests.servers.gates import TOKEN_PATH, Bearer
from tests.servers.postgres import Postgres
from tests.servers.rest import Rest

USERS = pa.schema([("id", pa.int64())])
MakeSettings = Callable[..., Settings]


def refusal(kind: type[CalveError], work: Callable[[], object]) -> CalveError:
    with pytest.raises(kind) as refused:
        work()
    assert type(refused.value) is kind
    assert refused.value.hint
    return refused.value


class Always(Gate):
    """Answers requests to some paths with 200 and a body."""

    def __init__(self, body: str, *, when: Callable[[Request], bool] = lambda _: True) -> None:
        self._answer = Answer(200, Headers([("Content-Type", "text/html")]), body.encode())
        self._when = when

    def enter(self, request: Request) -> Request | Answer:
        return self._answer if self._when(request) else request


def rest(make_settings: MakeSettings, uri: str, **flags: object) -> Settings:
    return make_settings(catalog__type="rest", catalog__uri=uri, retry__max_attempts=1, **flags)


@pytest.mark.parametrize("body", ["<html>canary</html>", '{"defaults": "canary"}', "[1]", ""])
def test_a_server_that_is_no_rest_catalog(
    serve_front: ServeFront, make_settings: MakeSettings, body: str
) -> None:
    front = serve_front(gates=[Always(body)])
    error = refusal(InvalidSettings, lambda: Lake(rest(make_settings, front.url)))
    assert "catalog.uri is not an Iceberg REST catalog" in str(error)
    assert "canary" not in str(error)


@pytest.mark.parametrize("body", ["<html>canary</html>", '{"access_token": ["canary"]}'])
def test_a_token_server_that_is_none(
    serve_front: ServeFront, make_settings: MakeSettings, body: str
) -> None:
    front = serve_front(gates=[Always(body)])
    settings = rest(make_settings, front.url, catalog__properties__credential="calve:secret-canary")
    error = refusal(InvalidSettings, lambda: Lake(settings))
    assert "oauth2-server-uri" in str(error)
    assert "canary" not in str(error)
    # Nor where the whole story is printed.
    assert error.__suppress_context__
    assert error.__cause__ is None


def test_a_rest_catalog_whose_answers_cannot_be_read(
    rest_server: Rest, serve_front: ServeFront, make_settings: MakeSettings
) -> None:
    tables = Always("<html>canary</html>", when=lambda request: "/namespaces" in request.path)
    front = serve_front(rest_server.port, gates=[tables])
    with Lake(rest(make_settings, front.url)) as lake:
        error = refusal(Unavailable, lake.catalog.list_tables)
        assert "is not an Iceberg REST catalog's" in str(error)
        assert "canary" not in str(error)


def test_a_server_that_answers_everything_alike(
    serve_front: ServeFront, make_settings: MakeSettings
) -> None:
    front = serve_front(gates=[Always('{"canary": 1}')])
    # The specification lets a server's configuration be empty; the next answer tells.
    with Lake(rest(make_settings, front.url)) as lake:
        error = refusal(Unavailable, lake.catalog.list_tables)
    assert "is not an Iceberg REST catalog's" in str(error)
    assert "canary" not in str(error)


def test_an_answer_to_a_commit_that_cannot_be_read_leaves_it_open(
    rest_server: Rest, serve_front: ServeFront, make_settings: MakeSettings
) -> None:
    class Garbled(Gate):
        def leave(self, request: Request, answer: Answer) -> Answer:
            is_commit = request.method == "POST" and request.path.endswith("/garbled")
            return Answer(200, body=b"<html>") if is_commit else answer

    front = serve_front(rest_server.port, gates=[Garbled()])
    with Lake(rest(make_settings, front.url)) as lake:
        table = lake.catalog.create_table("garbled", USERS)
        try:

            def append() -> None:
                with translating():
                    table.append(pa.table({"id": [1]}, schema=USERS))

            refusal(UnknownOutcome, append)
        finally:
            lake.catalog.drop_table("garbled")


def test_a_login_behind_a_rest_catalog_still_works(
    rest_server: Rest, serve_front: ServeFront, make_settings: MakeSettings
) -> None:
    bearer = Bearer()
    front = serve_front(rest_server.port, gates=[bearer])
    assert TOKEN_PATH.startswith("/v1")
    settings = rest(make_settings, front.url, catalog__properties__credential=bearer.credential)
    with Lake(settings) as lake:
        lake.catalog.list_tables()


def metadata_file(lake: Lake) -> Path:
    return Path(urlsplit(lake.catalog.create_table("users", USERS).metadata_location).path)


def test_metadata_that_is_missing_is_named(lake: Lake) -> None:
    file = metadata_file(lake)
    file.unlink()
    error = refusal(Corruption, lambda: lake.catalog.load_table("users"))
    assert str(file) in str(error)
    assert error.exit_code == 7


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"format-version": 2}', b"\xff\xfe\x00", b'{"format-version": 9}', b"[]"],
)
def test_metadata_that_is_damaged_is_named(lake: Lake, content: bytes) -> None:
    file = metadata_file(lake)
    file.write_bytes(content)
    error = refusal(Corruption, lambda: lake.catalog.load_table("users"))
    assert str(file) in str(error)


def cut(content: bytes) -> bytes:
    return content[:-12]


def flipped(content: bytes) -> bytes:
    return content[:15] + bytes(255 - byte for byte in content[15:])


@pytest.mark.parametrize("damage", [cut, flipped, gzip.decompress])
def test_compressed_metadata_that_is_damaged_is_named(
    lake: Lake, damage: Callable[[bytes], bytes]
) -> None:
    plain = metadata_file(lake)
    packed = plain.with_name("00001-packed.gz.metadata.json")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    lake.catalog.iceberg.register_table(("default", "default", "packed"), f"file://{packed}")
    assert lake.catalog.load_table("packed").schema().column_names == ["id"]
    packed.write_bytes(damage(packed.read_bytes()))
    error = refusal(Corruption, lambda: lake.catalog.load_table("packed"))
    assert str(packed) in str(error)


def creatable(schema: Any, **more: Any) -> None:
    given: dict[str, Any] = {
        "partition_spec": UNPARTITIONED_PARTITION_SPEC,
        "sort_order": UNSORTED_SORT_ORDER,
        "properties": {},
    }
    require_creatable(schema, **(given | more))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (pa.schema([("a", pa.null())]), "Null type"),
        (pa.schema([("a", pa.int64()), ("a", pa.int64())]), "multiple fields for name a"),
        (pa.schema([("a", pa.timestamp("ns"))]), "Column 'a' has an unsupported type"),
        (pa.schema([("a", pa.decimal256(60, 2))]), "Column 'a' has an unsupported type"),
        ({"a": "int"}, "not dict"),
        (None, "not NoneType"),
    ],
)
def test_a_schema_that_no_table_can_have(schema: object, said: str) -> None:
    assert said in str(refusal(InvalidRequest, lambda: creatable(schema)))


@pytest.mark.parametrize(
    "more",
    [
        {"properties": {"format-version": "x"}},
        {"properties": {"a": None}},
        {"partition_spec": PartitionSpec(PartitionField(9, 1000, IdentityTransform(), "x"))},
    ],
)
def test_other_wishes_for_a_table_that_cannot_be(more: dict[str, object]) -> None:
    refusal(InvalidRequest, lambda: creatable(USERS, **more))


def test_a_table_that_can_be_is_not_refused() -> None:
    properties = {"format-version": "3", "a": "b"}
    creatable(pa.schema([("a", pa.timestamp("ns")), ("b", pa.null())]), properties=properties)
    assert properties == {"format-version": "3", "a": "b"}


@pytest.fixture
def database(postgres_server: Postgres) -> Iterator[Postgres]:
    database = postgres_server.create_database()
    yield database
    database.drop_database()


@pytest.fixture
def role(postgres_server: Postgres, database: Postgres) -> Iterator[str]:
    name = f"role_of_{database.database}"
    postgres_server.query(f"CREATE ROLE {name} LOGIN PASSWORD 'role-canary'")
    database.query("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    yield name
    database.drop_database()
    postgres_server.query(f"DROP ROLE {name}")


def as_role(database: Postgres, role: str) -> str:
    host = f"{database.host}:{database.port}"
    return f"postgresql://{role}:role-canary@{host}/{database.database}"


def test_a_postgres_user_without_rights_is_denied_and_nothing_stays_open(
    make_settings: MakeSettings, database: Postgres, role: str
) -> None:
    before = set(threading.enumerate())
    settings = make_settings(catalog__uri=as_role(database, role))
    error = refusal(Denied, lambda: Lake(settings))
    assert "permission denied" in str(error)
    assert "canary" not in str(error)
    assert set(threading.enumerate()) <= before


def test_a_postgres_user_with_too_few_connections(
    make_settings: MakeSettings, postgres_server: Postgres, database: Postgres, role: str
) -> None:
    postgres_server.query(f"ALTER ROLE {role} CONNECTION LIMIT 1")
    settings = make_settings(catalog__uri=as_role(database, role), catalog__pool__min_connections=2)
    start = time.monotonic()
    error = refusal(Unavailable, lambda: Lake(settings))
    assert time.monotonic() - start < 3
    assert "catalog.pool.min_connections" in str(error)
    assert "canary" not in str(error)


def test_a_postgres_parameter_that_nobody_knows(
    make_settings: MakeSettings, database: Postgres
) -> None:
    settings = make_settings(catalog__uri=f"{postgres_uri(database)}?foo=bar")
    error = refusal(InvalidSettings, lambda: Lake(settings))
    assert "catalog.uri" in str(error)
    assert '"foo"' in str(error)
    assert database.password not in str(error)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql+psycopg2", "postgresql+psycopg"])
def test_postgres_by_its_other_names(
    make_settings: MakeSettings, database: Postgres, scheme: str
) -> None:
    uri = postgres_uri(database).replace("postgresql", scheme, 1)
    with Lake(make_settings(catalog__uri=uri)) as lake:
        assert lake.catalog.list_tables() == []


@pytest.fixture
def no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine that has no AWS login, with a profile that has none either."""
    for variable in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    (tmp_path / "config").write_text("[profile empty]\nregion = us-east-1\n")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"storage__profile": "empty"}, "profile empty"),
        ({"storage__role_arn": "arn:aws:iam::123456789012:role/lake"}, "role/lake"),
    ],
)
def test_a_login_that_has_no_credentials(
    make_settings: MakeSettings, no_login: Path, flags: dict[str, object], said: str
) -> None:
    with Lake(
        make_settings(storage__dsn="s3://lake/", storage__region="us-east-1", **flags)
    ) as lake:
        error = refusal(Denied, lambda: lake.catalog.create_table("users", USERS))
    assert "no AWS credentials" in str(error)
    assert said in str(error)


def test_a_lake_from_settings_made_by_hand(tmp_path: Path) -> None:
    with Lake(complete(Settings(data=tmp_path / "lake"))) as lake:
        lake.catalog.create_table("users", USERS)


def test_a_path_that_is_too_long_is_named(make_settings: MakeSettings, tmp_path: Path) -> None:
    settings = make_settings(data=str(tmp_path / ("x" * 300)))
    for create in (True, False):
        error = refusal(InvalidSettings, lambda create=create: Lake(settings, create=create))  # type: ignore[misc]
        assert "too long" in str(error)
        assert "--data" in str(error)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read and write everywhere, an ordinary user may not."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A directory that an ordinary user cannot look into."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    yield closed
    closed.chmod(0o700)


def test_what_an_ordinary_user_may_not_look_into_is_denied(
    closed: Path, make_settings: MakeSettings
) -> None:
    settings = make_settings(data=str(closed / "lake"))
    cache = JarCache(closed)
    works: dict[str, Callable[[], object]] = {
        "catalog.uri: ": lambda: Lake(settings, create=False),
        "storage.dsn: ": lambda: Lake(settings),
        "calve.toml cannot be looked for": lambda: load_settings(directory=closed, environ={}),
        "mine.toml cannot be looked for": lambda: load_settings(
            config=closed / "mine.toml", environ={}
        ),
        "cache: ": lambda: cache.verified_paths([JAR]),
        "jars cannot be written": lambda: cache.fetch(JAR, progress=print),
    }
    for said, work in works.items():
        with as_nobody():
            error = refusal(Denied, work)
        assert said in str(error)


def test_a_jar_that_cannot_be_read_is_denied() -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        cache = JarCache(Path(place))
        cache.directory.mkdir()
        cache.path(JAR).touch(mode=0o000)
        for work in (lambda: cache.verified_paths([JAR]), lambda: cache.missing([JAR])):
            with as_nobody():
                error = refusal(Denied, work)
            assert f"cache: {cache.path(JAR)} cannot be read" in str(error)


JAR = needed_jars(frozenset())[0]


def test_a_cache_that_is_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "cache"
    file.touch()
    fetch = lambda: JarCache(file).fetch(JAR, progress=print)  # noqa: E731
    assert "cache: " in str(refusal(InvalidSettings, fetch))
    (tmp_path / "jars").touch()
    assert "cache: " in str(
        refusal(InvalidSettings, lambda: JarCache(tmp_path).fetch(JAR, progress=print))
    )
    refusal(MissingPart, lambda: JarCache(file).verified_paths([JAR]))


def test_a_cache_where_nothing_can_be_made_is_named() -> None:
    for place in ("/proc/calve", "/sys/calve"):
        cache = JarCache(Path(place))
        error = refusal(Denied, lambda cache=cache: cache.fetch(JAR, progress=print))  # type: ignore[misc]
        assert f"cache: {place}" in str(error)


HANGING = """
import sys
from pathlib import Path
from types import SimpleNamespace
from calve.spark import jars
jars.find_java = lambda: SimpleNamespace(executable=sys.argv[2])
jar = jars.needed_jars(frozenset())[0]
jars.JarCache(Path(sys.argv[1])).fetch(jar, progress=lambda _: None)
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_download_ends_with_the_process_and_what_it_left_is_swept(
    tmp_path: Path, how: signal.Signals
) -> None:
    java = tmp_path / "java"
    java.write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/new && mv {tmp_path}/new {tmp_path}/pid\nexec sleep 600\n"
    )
    java.chmod(0o700)
    with subprocess.Popen(
        [sys.executable, "-c", HANGING, tmp_path, java], stderr=subprocess.DEVNULL
    ) as fetching:
        pid = int(_eventually((tmp_path / "pid").read_text))
        fetching.send_signal(how)
        assert fetching.wait(30) != 0
    _eventually(lambda: not _runs(pid) or None)
    directory = JarCache(tmp_path).directory
    if how == signal.SIGINT:
        assert list(directory.iterdir()) == []
        return
    (left,) = directory.glob(".fetch-*")
    fetch_nothing(tmp_path)
    assert left.exists()
    long_ago = time.time() - 2 * 24 * 3600
    os.utime(left, (long_ago, long_ago))
    fetch_nothing(tmp_path)
    assert list(directory.iterdir()) == []


def fetch_nothing(cache: Path) -> None:
    false = cache / "false"
    false.write_text("#!/bin/sh\nexit 1\n")
    false.chmod(0o700)
    subprocess.run([sys.executable, "-c", HANGING, cache, false], check=False, capture_output=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _eventually(look: Callable[[], Any], seconds: float = 30) -> Any:
    end = time.monotonic() + seconds
    while True:
        try:
            if (found := look()) is not None:
                return found
        except OSError:
            pass
        assert time.monotonic() < end, "it never came to hold"
        threading.Event().wait(0.05)
