"""Secrets planted in every setting that may hold one, and looked for in all that a run leaves.

A service with its pipeline works on PostgreSQL and S3 with them, behind tokens and TLS, Spark's page
and event log are on, commands talk a lot and fail; then everything printed, logged, stored and shown
is searched.
"""

from __future__ import annotations

import base64
import json
import signal
import ssl
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import psutil
import pyarrow.fs
import pytest

from tests.commands import Run, run_command
from tests.servers.postgres import Postgres
from tests.servers.process import free_port
from tests.servers.s3 import S3
from tests.servers.tls import Authority
from tests.services import up

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("spark")]

ROLE_PASSWORD: Final = "canary/role@19 a"
CANARIES: Final = {
    "a property of the catalog": "canary-catalog-token",
    "a credential of the catalog": "client:canary-client",
    "a header of the catalog": "Bearer canary-header",
    "a property of the store": "canary-store-key",
    "a proxy of the store": "canary-proxy",
    "a property of Spark": "canary-spark",
    "a key of Hadoop": "canary-hadoop",
    "the pipeline's token": "calve_canary-pipeline",
}
_CLOSED: Final = "127.0.0.1:9"


class Scan:
    """What was seen, and where; `leaks` names the secrets in it, in any form they are written."""

    def __init__(self, secrets: dict[str, str]) -> None:
        self._forms = {
            name: {form for each in _pieces(text) for form in _forms(each)}
            for name, text in secrets.items()
        }
        self.places = 0
        self.leaks: set[tuple[str, str]] = set()

    def plant(self, name: str, secret: str, *more: bytes) -> None:
        """Look for this one from now on, and for other forms of it."""
        self._forms[name] = {*_forms(secret), *more}

    def see(self, place: str, content: str | bytes) -> None:
        self.places += 1
        raw = content.encode() if isinstance(content, str) else content
        for name, forms in self._forms.items():
            if any(form in raw for form in forms):
                self.leaks.add((place, name))

    def see_files(self, place: str, directory: Path) -> None:
        for path in directory.rglob("*"):
            with suppress(FileNotFoundError):  # what is at work takes files away
                if path.is_file() and not path.is_symlink():
                    self.see(f"{place}: {path.relative_to(directory)}", path.read_bytes())


def _pieces(secret: str) -> list[str]:
    """The whole, and what a library may tear off it."""
    return [secret, secret.rpartition("@")[2]] if "@" in secret else [secret]


def _forms(secret: str) -> Iterator[bytes]:
    yield secret.encode()
    yield quote(secret, safe="").encode()
    yield json.dumps(secret)[1:-1].encode()
    yield base64.b64encode(secret.encode()).rstrip(b"=")
    yield secret.encode("utf-16-le")


@pytest.fixture
def login(postgres_server: Postgres) -> Iterator[tuple[Postgres, str]]:
    """A database, and how a role with the planted password is written into an address."""
    database = postgres_server.create_database()
    role = f"canary_of_{database.database}"
    postgres_server.query(f"CREATE ROLE {role} LOGIN PASSWORD '{ROLE_PASSWORD}'")
    database.query(f"GRANT ALL ON SCHEMA public TO {role}")
    database.query(f'GRANT CREATE ON DATABASE "{database.database}" TO {role}')
    yield database, f"{role}:{quote(ROLE_PASSWORD, safe='')}"
    database.drop_database()
    postgres_server.query(f"DROP ROLE {role}")


class Door(NamedTuple):
    """HTTP over TLS, with a token."""

    url: str
    token: str
    trusting: ssl.SSLContext

    def ask(self, path: str, rows: object = None) -> bytes:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        content = None if rows is None else json.dumps(rows).encode()
        return text_at(Request(self.url + path, content, headers), self.trusting)


def plant_key(scan: Scan, key: Path) -> None:
    """A line of its PEM, and the bytes that the line stands for."""
    line = key.read_text().splitlines()[1]
    scan.plant(f"the key {key.name}", line, base64.b64decode(line))


def make_token(scan: Scan, name: str, scope: str, run: Callable[[list[str]], Run]) -> str:
    """A token, whose secret is shown this once and looked for from then on."""
    done = run(["calve", "token", "create", name, "--scope", scope, "-v", "--data", "lake"])
    secret = done.out.strip()
    assert done.code == 0, done
    scan.plant(f"the token {name}", secret)
    scan.see(f"what making {name} says", done.err)
    return secret


def configuration(tmp_path: Path, store: S3, database: Postgres, user: str, page_port: int) -> Path:
    """All of them in a file, or in files that it names."""
    (tmp_path / "tls").mkdir()
    authority = Authority(tmp_path / "tls")
    cert, key = authority.server_files()
    address = f"postgresql://{user}@{database.host}:{database.port}/{database.database}"
    (tmp_path / "uri").write_text(address)
    (tmp_path / "key").write_text(store.keys.secret_key)
    (tmp_path / "events").mkdir()
    file = tmp_path / "calve.toml"
    file.write_text(f"""
[catalog]
uri_file = "uri"
[catalog.properties]
token = "{CANARIES["a property of the catalog"]}"
credential = "{CANARIES["a credential of the catalog"]}"
"header.Authorization" = "{CANARIES["a header of the catalog"]}"
[storage]
dsn = "s3://{store.bucket}/{database.database}/"
endpoint = "{store.endpoint}"
region = "{store.region}"
path_style = true
access_key_id = "{store.keys.access_key}"
secret_access_key_file = "key"
[storage.properties]
"adls.account-key" = "{CANARIES["a property of the store"]}"
"calve.proxy" = "http://me:{CANARIES["a proxy of the store"]}@proxy.example.com"
[state]
dsn = "{address}"
[spark.conf]
"spark.my.password" = "{CANARIES["a property of Spark"]}"
"spark.hadoop.fs.azure.account.key" = "{CANARIES["a key of Hadoop"]}"
"spark.ui.enabled" = "true"
"spark.ui.port" = "{page_port}"
"spark.eventLog.enabled" = "true"
"spark.eventLog.compress" = "false"
"spark.eventLog.dir" = "file://{tmp_path / "events"}"
[pipeline]
flush_interval_ms = 200
token = "{CANARIES["the pipeline's token"]}"
[auth]
required = true
[audit]
topic = "ops.security.audit"
[ingest]
tls_cert = "{cert}"
tls_key = "{key}"
tls_ca = "{authority.pem}"
""")
    return file


COMMANDS: Final = (
    ("topic", "flush", "events", "-v"),
    ("sql", "select count(*) + 40 as answer from events", "-v"),
    ("status", "--json"),
    ("config", "show"),
    ("config", "show", "--json"),
    ("config", "check", "-v"),
    ("table", "describe", "events", "--json"),
    ("table", "create", "by_hand", "--schema", "nowhere.json", "-v"),
    ("table", "query", "nothing", "-v"),
    ("token", "list", "--json"),
    ("topic", "delete", "events", "--yes", "-v", "--token-file", "token"),
    ("topic", "list", "-v", "--token-file", "torn"),
    ("doctor", "--json", "--bundle", "bundle.zip"),
)
PATHS: Final = (
    "/v1/status",
    "/v1/topics/events",
    "/v1/topics/nothing",
    "/v1/tokens",
    "/openapi.json",
)
PAGES: Final = ("/environment/", "/SQL/", "/executors/", "/jobs/")


def test_no_secret_is_in_what_a_full_run_prints_logs_shows_and_stores(
    tmp_path: Path,
    s3_server: S3,
    login: tuple[Postgres, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    database, user = login
    page_port = free_port()
    file = configuration(tmp_path, s3_server, database, user, page_port)
    scan = Scan({"a role": ROLE_PASSWORD, "S3": s3_server.keys.secret_key, **CANARIES})
    plant_key(scan, tmp_path / "tls" / "server.key")
    data = tmp_path / "lake"

    def run(words: list[str]) -> Run:
        return run_command(words, monkeypatch, capsys)

    with up(data, "--config", str(file), "-v", only=None) as service:
        at = service.addresses()
        scan.see("addresses", json.dumps(at))
        scan.plant("the host's token", (data / "_calve" / "service.token").read_text().strip())
        (tmp_path / "token").write_text(make_token(scan, "reader", "query", run))
        (tmp_path / "torn").write_text(make_token(scan, "torn", "query", run) + "\nand words")
        trusting = ssl.create_default_context(cafile=tmp_path / "tls" / "ca.pem")
        producer = Door(at["http"], make_token(scan, "producer", "produce", run), trusting)
        sent = producer.ask("/v1/topics/events/rows", [{"id": 1}, {"id": 2}])
        assert json.loads(sent)["end"] == 2, sent
        monkeypatch.setenv("JAVA_HOME", "/nowhere")  # for the doctor: one Spark is enough
        see_commands(scan, data, run)
        see_spark(scan, page_port)
        operator = producer._replace(token=make_token(scan, "operator", "admin", run))
        for path in PATHS:
            for door in (producer, operator):
                scan.see(path, door.ask(path))
        for process in (psutil.Process(service.process.pid), *children(service.process.pid)):
            with suppress(psutil.NoSuchProcess):  # one that has just ended has no words any more
                scan.see(f"the words of process {process.name()}", " ".join(process.cmdline()))
        service.signal(signal.SIGTERM)
        code, words = service.ended()
    assert code == 0, words
    scan.see("the service's words", words)
    see_stored(scan, tmp_path, database, s3_server)
    assert scan.places > 50
    assert not sorted(scan.leaks)


def see_commands(scan: Scan, data: Path, run: Callable[[list[str]], Run]) -> None:
    for words in COMMANDS:
        done = run(["calve", *words, "--data", str(data)])
        scan.see(" ".join(words), done.out + done.err)
        assert words[0] != "sql" or "42" in done.out, done


def see_spark(scan: Scan, port: int) -> None:
    """Its page, and what programs are told."""
    for path in PAGES:
        scan.see(f"Spark's page {path}", text_of(port, path))
    application = json.loads(text_of(port, "/api/v1/applications"))[0]["id"]
    shown = text_of(port, f"/api/v1/applications/{application}/environment")
    assert b"spark.my.password" in shown
    scan.see("Spark's environment", shown)
    scan.see("Spark's SQL", text_of(port, f"/api/v1/applications/{application}/sql?details=true"))


def see_stored(scan: Scan, directory: Path, database: Postgres, store: S3) -> None:
    scan.see_files("the data directory", directory / "lake")
    assert any(path.is_file() for path in (directory / "events").rglob("*"))
    scan.see_files("Spark's event log", directory / "events")
    scan.see("the database", text_of_database(database))
    for name, content in files_of(store, f"{store.bucket}/{database.database}"):
        scan.see(f"the store: {name}", content)
    with zipfile.ZipFile(directory / "bundle.zip") as bundle:
        for name in bundle.namelist():
            scan.see(f"the bundle: {name}", bundle.read(name))


@pytest.mark.parametrize(
    ("setting", "secret", "text"),
    [
        ("catalog.uri", "canary pass", "postgresql://u:canary pass@h/d"),
        ("catalog.uri", "canary%zz", "postgresql://u:canary%zz@h/d"),
        ("catalog.uri", "canary@tail", f"postgresql://u:canary@tail@{_CLOSED}/d"),
        ("catalog.uri", "canary?tail", f"postgresql://u:canary?tail@{_CLOSED}/d"),
        ("catalog.uri", "canary", f"postgresql://u:canary@{_CLOSED}x/d"),
        ("state.dsn", "canary pass", "postgresql://u:canary pass@h/d"),
        ("state.dsn", "canary%zz", "postgresql://u:canary%zz@h/d"),
        ("state.dsn", "canary/tail", f"postgresql://u:canary/tail@{_CLOSED}/d"),
        ("state.dsn", "canary", f"etcd://u:canary@{_CLOSED}/d"),
        ("state.dsn", "canary?tail", f"etcd://u:canary?tail@{_CLOSED}/d"),
        ("state.dsn", "canary", "mysql://u:canary@h/d"),
    ],
)
def test_an_address_that_does_not_work_is_refused_without_its_password(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    setting: str,
    secret: str,
    text: str,
) -> None:
    (tmp_path / "address").write_text(text)
    section, key = setting.split(".")
    (tmp_path / "calve.toml").write_text(f'[{section}]\n{key}_file = "address"\n')
    monkeypatch.chdir(tmp_path)
    scan = Scan({"it": secret, "its end": secret.split("canary")[1] or secret})
    for words in (("config", "show"), ("topic", "create", "x", "-v"), ("table", "list", "-v")):
        once = ("--data", str(tmp_path / "lake"), "--set", "retry.max_attempts=1")
        scan.see(" ".join(words), str(run_command(["calve", *words, *once], monkeypatch, capsys)))
    assert not sorted(scan.leaks)


def children(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def text_of(port: int, path: str) -> bytes:
    return text_at(f"http://127.0.0.1:{port}{path}")


def text_at(url: str | Request, trusting: ssl.SSLContext | None = None) -> bytes:
    try:
        with urlopen(url, timeout=30, context=trusting) as answer:
            content: bytes = answer.read()
    except HTTPError as error:
        content = error.read()
    return content


def text_of_database(database: Postgres) -> str:
    """Every row of every table."""
    tables = database.query(
        "SELECT schemaname, tablename FROM pg_tables"
        " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
    )
    assert tables
    rows = [
        row
        for schema, table in tables
        for row in database.query(f'SELECT t::text FROM "{schema}"."{table}" t')
    ]
    return "\n".join(str(row) for row in rows)


def files_of(store: S3, directory: str) -> Iterator[tuple[str, bytes]]:
    files = store.file_system()
    selector = pyarrow.fs.FileSelector(directory, recursive=True)
    for info in files.get_file_info(selector):
        if info.is_file:
            with files.open_input_stream(info.path) as stream:
                yield info.base_name, stream.read()
