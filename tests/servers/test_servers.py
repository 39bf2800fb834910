"""The test servers do what the other tests rely on: start, work, misbehave on order, and stop."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
import psycopg
import pyarrow as pa
import pyarrow.fs
import pytest
from pyiceberg.catalog import load_catalog

from tests.servers import faults, gates, process, s3
from tests.servers.needs import lacking
from tests.servers.sessions import ROLE_ARN

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from tests.servers.fixtures import ServeFront, ServeTcpFront, ServeTemporaryS3
    from tests.servers.glue import Glue
    from tests.servers.postgres import Postgres
    from tests.servers.rest import Rest
    from tests.servers.s3 import S3
    from tests.servers.tls import Authority

ROOT: Final = Path(__file__).resolve().parents[2]
ROWS: Final = pa.table({"x": [1, 2, 3]})
SERVERS_THAT_RUN: Final = """
import time
from pathlib import Path

def test_hang(s3_server, postgres_server, glue_server, rest_server):
    Path({ready!r}).touch()
    time.sleep(600)
"""


def write_and_count(catalog: Catalog, namespace: str) -> int:
    catalog.create_namespace(namespace)
    table = catalog.create_table(f"{namespace}.t", ROWS.schema)
    table.append(ROWS)
    return len(catalog.load_table(f"{namespace}.t").scan().to_arrow())


def rest_catalog(uri: str, **properties: Any) -> Catalog:
    return load_catalog("rest", type="rest", uri=uri, **properties)


def status_of(url: str, headers: dict[str, str] | None = None) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {})) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


class TestS3:
    def test_what_is_put_is_got(self, s3_server: S3) -> None:
        files = s3_server.file_system()
        with files.open_output_stream(f"{s3_server.bucket}/a/b") as stream:
            stream.write(b"content")
        with s3_server.file_system(s3_server.other_keys).open_input_stream(
            f"{s3_server.bucket}/a/b"
        ) as read:
            assert read.readall() == b"content"

    def test_wrong_secret_is_refused(self, s3_server: S3) -> None:
        files = s3_server.file_system(s3.Keys(s3_server.keys.access_key, "wrong"))
        with pytest.raises(OSError, match=r"SignatureDoesNotMatch|SIGNATURE|ACCESS_DENIED"):
            files.get_file_info(pyarrow.fs.FileSelector(s3_server.bucket))

    def test_conditional_put_has_one_winner(self, s3_server: S3) -> None:
        boto3 = pytest.importorskip("boto3")
        clients = [
            boto3.client(
                "s3",
                endpoint_url=s3_server.endpoint,
                region_name=s3_server.region,
                aws_access_key_id=keys.access_key,
                aws_secret_access_key=keys.secret_key,
            )
            for keys in (s3_server.keys, s3_server.other_keys)
        ]
        for race in range(10):
            assert race_to_put(clients, s3_server.bucket, f"race/{race}", runners=8) == 1


def race_to_put(clients: list[Any], bucket: str, key: str, *, runners: int) -> int:
    barrier = threading.Barrier(runners)

    def put(runner: int) -> bool:
        client = clients[runner % len(clients)]
        barrier.wait(10)
        try:
            client.put_object(Bucket=bucket, Key=key, Body=str(runner).encode(), IfNoneMatch="*")
        except client.exceptions.ClientError as error:
            assert error.response["ResponseMetadata"]["HTTPStatusCode"] in {409, 412}  # noqa: PT017
            return False
        return True

    with ThreadPoolExecutor(runners) as pool:
        return sum(pool.map(put, range(runners)))


class TestRest:
    def test_local_warehouse(self, rest_server: Rest) -> None:
        assert write_and_count(rest_catalog(rest_server.uri), "local") == 3

    def test_s3_warehouse(self, rest_server_on_s3: Rest, s3_server: S3) -> None:
        catalog = rest_catalog(rest_server_on_s3.uri, **s3_server.file_io_properties)
        assert write_and_count(catalog, "on_s3") == 3

    @pytest.mark.parametrize("server", ["rest_server", "s3_server", "postgres_server"])
    def test_it_listens_on_loopback_only(self, server: str, request: pytest.FixtureRequest) -> None:
        port = request.getfixturevalue(server).port
        listening = [
            connection.laddr.ip
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
            and connection.laddr
            and connection.laddr.port == port
        ]
        assert listening
        assert {ip.removeprefix("::ffff:") for ip in listening} == {process.HOST}


class TestPostgres:
    def test_catalog_on_a_fresh_database(self, postgres_database: Postgres, tmp_path: Path) -> None:
        catalog = load_catalog(
            "pg", type="sql", uri=postgres_database.url, warehouse=tmp_path.as_uri()
        )
        assert write_and_count(catalog, "pg") == 3
        catalog.close()

    def test_connections_are_seen(self, postgres_database: Postgres) -> None:
        before = len(postgres_database.connections())
        with closing(postgres_database.connect()):
            assert len(postgres_database.connections()) == before + 1

    def test_wrong_password_is_refused(self, postgres_server: Postgres) -> None:
        with pytest.raises(psycopg.OperationalError, match="password"):
            replace(postgres_server, password="wrong").connect()

    def test_dropped_answer_of_a_commit_was_applied(
        self, postgres_database: Postgres, serve_tcp_front: ServeTcpFront
    ) -> None:
        proxy = serve_tcp_front(postgres_database.port)
        postgres_database.query("CREATE TABLE dropped (x int)")
        proxy.faults.inject(faults.drop_answer(), when=lambda data: b"COMMIT" in data)
        with closing(postgres_database.through(proxy.port).connect()) as opened:
            with opened.cursor() as cursor:
                cursor.execute("INSERT INTO dropped VALUES (1)")
            with pytest.raises(psycopg.OperationalError):
                opened.commit()
        assert postgres_database.query("SELECT x FROM dropped") == [(1,)]

    def test_reset_and_delay(
        self, postgres_database: Postgres, serve_tcp_front: ServeTcpFront
    ) -> None:
        proxy = serve_tcp_front(postgres_database.port)
        through = postgres_database.through(proxy.port)
        proxy.faults.inject(faults.delay(0.5), when=lambda data: b"SELECT 1" in data)
        started = time.monotonic()
        assert through.query("SELECT 1") == [(1,)]
        assert time.monotonic() - started >= 0.5
        proxy.faults.inject(faults.reset(), when=lambda data: b"SELECT 2" in data)
        with pytest.raises(psycopg.OperationalError):
            through.query("SELECT 2")
        assert proxy.faults.taken == 2


class TestGlue:
    def test_catalog(self, glue_server: Glue, tmp_path: Path) -> None:
        catalog = load_catalog(
            "glue", type="glue", warehouse=tmp_path.as_uri(), **glue_server.catalog_properties
        )
        assert write_and_count(catalog, "glue") == 3


class TestOAuth:
    def test_short_tokens_are_refreshed_or_refused(
        self, rest_server: Rest, serve_front: ServeFront
    ) -> None:
        bearer = gates.Bearer(lifetime_seconds=2)
        url = serve_front(rest_server.port, gates=[bearer]).url
        token = fetch_token(url, bearer)
        assert status_of(f"{url}/v1/namespaces", {"Authorization": f"Bearer {token}"}) == 200
        assert status_of(f"{url}/v1/namespaces") == 401
        time.sleep(2.1)  # The end of the token is what is shown.
        assert status_of(f"{url}/v1/namespaces", {"Authorization": f"Bearer {token}"}) == 401
        assert (bearer.issued, bearer.refused) == (1, 2)

    def test_catalog_comes_in_with_its_credential_only(
        self, rest_server: Rest, serve_front: ServeFront
    ) -> None:
        bearer = gates.Bearer()
        url = serve_front(rest_server.port, gates=[bearer]).url
        assert write_and_count(rest_catalog(url, credential=bearer.credential), "oauth") == 3
        assert bearer.issued >= 1
        with pytest.raises(Exception, match=r"unknown client|invalid_client"):
            rest_catalog(url, credential="calve:wrong")


def fetch_token(url: str, bearer: gates.Bearer) -> str:
    form = (
        f"grant_type=client_credentials&client_id={bearer.client_id}"
        f"&client_secret={bearer.client_secret}"
    )
    with urllib.request.urlopen(url + gates.TOKEN_PATH, form.encode()) as answer:
        token: str = json.load(answer)["access_token"]
        return token


class TestFront:
    def test_tls_with_its_authority(
        self,
        rest_server: Rest,
        serve_front: ServeFront,
        authority: Authority,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        # In `requests`, and so in PyIceberg, these win over the authority that is configured.
        monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
        monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
        url = serve_front(rest_server.port, tls=authority.server).url
        assert url.startswith("https://")
        catalog = rest_catalog(url, ssl={"cabundle": str(authority.pem)})
        assert write_and_count(catalog, "tls") == 3
        with pytest.raises(Exception, match="certificate verify failed"):
            rest_catalog(url)
        assert authority.java_trust_store().stat().st_size > 0

    def test_headers_prefix_and_signature(self, rest_server: Rest, serve_front: ServeFront) -> None:
        needed_headers = gates.RequiredHeaders({"X-Tenant": "seven"})
        prefix = gates.Prefix("seven", warehouse="w")
        url = serve_front(rest_server.port, gates=[needed_headers, prefix]).url
        catalog = rest_catalog(url, warehouse="w", **{"header.X-Tenant": "seven"})
        assert write_and_count(catalog, "prefixed") == 3
        assert needed_headers.refused == 0
        assert status_of(f"{url}/v1/config") == 403
        assert status_of(f"{url}/v1/namespaces", {"X-Tenant": "seven"}) == 404

    def test_signed_requests_only(self, rest_server: Rest, serve_front: ServeFront) -> None:
        pytest.importorskip("boto3")
        signed = gates.Signed(access_key="key", region="us-east-1", service="execute-api")
        url = serve_front(rest_server.port, gates=[signed]).url
        properties = {
            "rest.sigv4-enabled": "true",
            "rest.signing-region": "us-east-1",
            "rest.signing-name": "execute-api",
            "client.access-key-id": "key",
            "client.secret-access-key": "secret",
        }
        assert write_and_count(rest_catalog(url, **properties), "signed") == 3
        assert signed.refused == 0
        assert status_of(f"{url}/v1/config") == 403

    def test_vended_credentials_open_the_files(
        self,
        rest_server_on_s3: Rest,
        serve_front: ServeFront,
        serve_temporary_s3: ServeTemporaryS3,
    ) -> None:
        temporary = serve_temporary_s3(lifetime_seconds=60)

        def vend() -> dict[str, str]:
            return {
                **temporary.store.file_io_properties,
                **temporary.sessions.new().file_io_properties,
            }

        vended = gates.Vended(vend)
        url = serve_front(rest_server_on_s3.port, gates=[vended]).url
        assert write_and_count(rest_catalog(url), "vended") == 3
        assert vended.vended >= 2
        assert "vended-credentials" in vended.delegations
        assert temporary.front.exchanges
        assert temporary.sessions.refused == 0

    def test_faults_in_their_order(self, rest_server: Rest, serve_front: ServeFront) -> None:
        proxy = serve_front(rest_server.port)
        for status in (500, 503, 429):
            proxy.faults.inject(faults.refuse(status, retry_after="1"))
        url = f"{proxy.url}/v1/config"
        assert [status_of(url) for _ in range(4)] == [500, 503, 429, 200]
        proxy.faults.inject(faults.reset())
        with pytest.raises(ConnectionResetError):
            status_of(url)
        proxy.faults.inject(faults.delay(0.5))
        started = time.monotonic()
        assert status_of(url) == 200
        assert time.monotonic() - started >= 0.5
        assert [exchange.status for exchange in proxy.exchanges] == [500, 503, 429, 200, 0, 200]

    def test_dropped_answer_was_applied(self, rest_server: Rest, serve_front: ServeFront) -> None:
        proxy = serve_front(rest_server.port)
        proxy.faults.inject(faults.drop_answer(), when=lambda request: request.method == "POST")
        namespace = b'{"namespace": ["dropped"], "properties": {}}'
        with closing(http.client.HTTPConnection(process.HOST, proxy.port)) as connection:
            connection.request("POST", "/v1/namespaces", namespace)
            with pytest.raises(ConnectionResetError):
                connection.getresponse()
        assert ("dropped",) in rest_catalog(rest_server.uri).list_namespaces()


class TestTemporaryCredentials:
    @pytest.mark.parametrize("source", ["container", "role"])
    def test_pyarrow_renews_them(
        self, source: str, serve_temporary_s3: ServeTemporaryS3, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The SDK asks for new ones five seconds before the end.
        lifetime_seconds = 6
        temporary = serve_temporary_s3(lifetime_seconds=lifetime_seconds)
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        where = {
            "endpoint_override": temporary.store.endpoint,
            "region": temporary.store.region,
        }
        if source == "container":
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", temporary.credentials_uri)
            monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
            files = pyarrow.fs.S3FileSystem(**where)
        else:
            monkeypatch.setenv("AWS_ENDPOINT_URL_STS", temporary.service_url)
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
            files = pyarrow.fs.S3FileSystem(
                role_arn=ROLE_ARN, session_name="calve", load_frequency=5, **where
            )
        deadline = time.monotonic() + lifetime_seconds + 0.5
        while time.monotonic() < deadline:
            with files.open_output_stream(f"{temporary.store.bucket}/{source}") as stream:
                stream.write(b"x")
            time.sleep(0.2)  # Longer than one session is what is shown.
        assert temporary.sessions.issued >= 2
        assert (temporary.sessions.expired, temporary.sessions.refused) == (0, 0)

    def test_expired_ones_are_refused(self, serve_temporary_s3: ServeTemporaryS3) -> None:
        temporary = serve_temporary_s3(lifetime_seconds=60)
        session = temporary.sessions.new()
        files = pyarrow.fs.S3FileSystem(
            access_key=session.keys.access_key,
            secret_key=session.keys.secret_key,
            session_token=session.token,
            endpoint_override=temporary.store.endpoint,
            region=temporary.store.region,
        )
        with files.open_output_stream(f"{temporary.store.bucket}/before") as stream:
            stream.write(b"x")
        temporary.sessions.end_all()
        with pytest.raises(OSError, match="ExpiredToken"):
            files.open_output_stream(f"{temporary.store.bucket}/after")
        # An answer to HEAD has no body that could name the reason; it is the same on AWS.
        with pytest.raises(OSError, match="HTTP status 400"):
            files.open_input_file(f"{temporary.store.bucket}/before")
        with pytest.raises(OSError, match="ACCESS_DENIED"):
            temporary.store.file_system().create_dir("other")


class TestProcess:
    def test_stop_ends_it_and_removes_its_directory(self) -> None:
        server = process.start("sleeper", sleeper, ready=lambda _: True)
        children = psutil.Process(server.supervisor_pid).children
        wait_until(lambda: bool(children()))
        (child,) = children()
        server.stop()
        # One that has ended stays listed until the system's first process has noticed.
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
        assert not server.directory.exists()

    def test_one_that_ends_early_tells_why(self) -> None:
        command = [sys.executable, "-c", "raise SystemExit('no such luck')"]
        with pytest.raises(process.ServerFailed, match="no such luck"):
            process.start(
                "broken", lambda _: process.Launch(command), ready=process.accepts_connections
            )

    def test_a_taken_port_is_tried_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server((process.HOST, 0)) as taken:
            ports = iter([taken.getsockname()[1], process.free_port()])
            monkeypatch.setattr(process, "free_port", lambda: next(ports))
            listen = (
                "import http.server as h; h.test(port=int(__import__('sys').argv[1]), bind='{}')"
            )
            with process.start(
                "listener",
                lambda port: process.Launch(
                    [sys.executable, "-c", listen.format(process.HOST), str(port)]
                ),
                ready=lambda port: (
                    port != taken.getsockname()[1] and process.accepts_connections(port)
                ),
            ) as server:
                assert server.port != taken.getsockname()[1]

    @pytest.mark.parametrize("killed", ["run", "run and supervisors"])
    def test_nothing_survives_a_killed_run(self, killed: str, tmp_path: Path) -> None:
        ready = tmp_path / "ready"
        (tmp_path / "test_hang.py").write_text(SERVERS_THAT_RUN.format(ready=str(ready)))
        run = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest", "-p", "tests.servers.fixtures"),
                *("--import-mode=importlib", f"--rootdir={tmp_path}", str(tmp_path)),
            ],
            cwd=ROOT,
            env={**os.environ, "CI": "true"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        wait_until(lambda: ready.exists() or run.poll() is not None, seconds=120)
        if run.poll() is not None:
            lacking((run.communicate()[0] or b"").decode()[-2000:])
        supervisors = psutil.Process(run.pid).children()
        servers = [server for each in supervisors for server in each.children(recursive=True)]
        directories = [Path(server.cwd()) for server in servers if server.cwd() != str(ROOT)]
        assert len(supervisors) == 4
        assert len(servers) >= 4
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        if killed == "run and supervisors":
            for each in supervisors:
                each.kill()
        _, alive = psutil.wait_procs([*supervisors, *servers], timeout=20)
        assert alive == []
        process.sweep_once.cache_clear()
        process.sweep_once()
        assert [directory for directory in directories if directory.exists()] == []

    def test_what_is_not_ours_is_not_touched(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(process, "servers_cache", lambda: tmp_path)
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
            records = tmp_path / "running"
            records.mkdir()
            other_time = psutil.Process(stranger.pid).create_time() - 100
            (records / "1-1.json").write_text(
                f'{{"owner": {{"pid": 1, "started": 1}}, "directory": "{tmp_path}", '
                f'"processes": [{{"pid": {stranger.pid}, "started": {other_time}}}]}}'
            )
            process.sweep_once.cache_clear()
            process.sweep_once()
            assert stranger.poll() is None
            assert tmp_path.exists()
            assert list(records.iterdir()) == []
            stranger.kill()


def sleeper(_port: int) -> process.Launch:
    return process.Launch([sys.executable, "-c", "import time; time.sleep(600)"])


def wait_until(condition: Any, *, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
