"""S3 logins: keys, profile, role; temporary ones are renewed while work goes on."""

from __future__ import annotations

import contextlib
import pickle
import socket
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from calve.errors import Denied, Unavailable
from calve.lake import Lake
from calve.settings import Settings
from calve.tables.translate import translating
from tests.servers.fixtures import ServeTemporaryS3
from tests.servers.s3 import S3
from tests.servers.sessions import ROLE_ARN, TemporaryS3

USERS = pa.schema([("id", pa.int64())])
MakeSettings = Callable[..., Settings]
LIFETIME_SECONDS = 2

pytestmark = pytest.mark.usefixtures("no_aws_login")


@pytest.fixture
def s3_settings(make_settings: MakeSettings) -> MakeSettings:
    def make(store: S3, **flags: object) -> Settings:
        return make_settings(
            storage__dsn=f"s3://{store.bucket}/{uuid4().hex}",
            storage__endpoint=store.endpoint,
            storage__region=store.region,
            storage__path_style=True,
            retry__max_attempts=2,
            **flags,
        )

    return make


def work_past_the_lifetime(settings: Settings, temporary: TemporaryS3) -> None:
    with Lake(settings) as lake:
        table = lake.catalog.create_table("users", USERS)
        end = time.monotonic() + 3 * LIFETIME_SECONDS
        appended = 0
        while time.monotonic() < end:
            table.append(pa.table({"id": [appended]}, schema=USERS))
            appended += 1
        assert lake.catalog.load_table("users").scan().to_arrow().num_rows == appended
    assert temporary.sessions.issued >= 3
    assert temporary.sessions.expired == 0


def test_a_role_is_assumed_and_its_credentials_are_renewed(
    serve_temporary_s3: ServeTemporaryS3, s3_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = serve_temporary_s3(lifetime_seconds=LIFETIME_SECONDS)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", temporary.service_url)
    settings = s3_settings(
        temporary.store,
        storage__role_arn=ROLE_ARN,
        storage__access_key_id="base",
        storage__secret_access_key="base-secret",
    )
    work_past_the_lifetime(settings, temporary)
    assert set(temporary.service.actions) == {"AssumeRole"}


def test_a_profile_with_a_process_of_its_own_is_renewed(
    serve_temporary_s3: ServeTemporaryS3, s3_settings: MakeSettings, tmp_path: Path
) -> None:
    temporary = serve_temporary_s3(lifetime_seconds=LIFETIME_SECONDS)
    script = tmp_path / "login.py"
    script.write_text(
        "import json, urllib.request\n"
        f"answer = json.load(urllib.request.urlopen({temporary.credentials_uri!r}))\n"
        "answer['SessionToken'] = answer.pop('Token')\n"
        "print(json.dumps({'Version': 1, **answer}))\n"
    )
    (tmp_path / "config").write_text(f"[profile lake]\ncredential_process = python3 {script}\n")
    work_past_the_lifetime(s3_settings(temporary.store, storage__profile="lake"), temporary)


def test_a_plain_profile(s3_server: S3, s3_settings: MakeSettings, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        f"[lake]\naws_access_key_id = {s3_server.keys.access_key}\n"
        f"aws_secret_access_key = {s3_server.keys.secret_key}\n"
    )
    with Lake(s3_settings(s3_server, storage__profile="lake")) as lake:
        table = lake.catalog.create_table("users", USERS)
        table.append(pa.table({"id": [1]}, schema=USERS))
        again = pickle.loads(pickle.dumps(table.io))
        assert again.new_input(table.metadata_location).exists()
    with pytest.raises(Denied, match="nobody"):
        use(s3_settings(s3_server, storage__profile="nobody"))


def test_what_the_machine_offers_is_used(
    s3_server: S3, s3_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.keys.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.keys.secret_key)
    use(s3_settings(s3_server))


def test_expired_credentials_that_nobody_renews_are_denied(
    serve_temporary_s3: ServeTemporaryS3, s3_settings: MakeSettings
) -> None:
    temporary = serve_temporary_s3(lifetime_seconds=3600)
    session = temporary.sessions.new()
    temporary.sessions.end_all()
    settings = s3_settings(
        temporary.store,
        storage__access_key_id=session.keys.access_key,
        storage__secret_access_key=session.keys.secret_key,
        **{"storage__properties__s3.session-token": session.token},
    )
    with pytest.raises(Denied):
        use(settings)


def test_a_login_that_nobody_answers_ends_within_bounds(
    s3_server: S3, s3_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calve.tables.aws._LOGIN_SECONDS_MAX", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{silent.getsockname()[1]}")
        settings = s3_settings(
            s3_server,
            storage__role_arn=ROLE_ARN,
            storage__access_key_id="base",
            storage__secret_access_key="base-secret",
        )
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1") as caught:
            use(settings)
        silent.setblocking(False)
        asked = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
                asked += 1
    assert caught.value.hint
    assert 0 < asked <= 4, "the waits are bounded, but there are too many of them"


def use(settings: Settings) -> None:
    with Lake(settings) as lake, translating():
        lake.catalog.create_table("users", USERS).append(pa.table({"id": [1]}, schema=USERS))
