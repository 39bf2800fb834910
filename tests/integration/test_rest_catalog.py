"""A REST catalog: logins of every kind, TLS, vended keys, and a server or network that misbehaves."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitStateUnknownException

from calve.errors import CalveError, Denied, InvalidSettings, NotFound, Unavailable
from calve.lake import Lake
from calve.settings import RetrySettings, Settings
from calve.tables.catalogs.rest import nested, retry_policy, seconds_of_use
from tests.servers import faults
from tests.servers.faults import Fault
from tests.servers.fixtures import ServeFront, ServeTemporaryS3
from tests.servers.front import Front, Request
from tests.servers.gates import Bearer, Prefix, RequiredHeaders, Signed, Vended
from tests.servers.rest import Rest
from tests.servers.s3 import S3
from tests.servers.tls import Authority

USERS = pa.schema([("id", pa.int64())])
ROW = pa.table({"id": [1]}, schema=USERS)
MakeSettings = Callable[..., Settings]


@pytest.fixture
def name() -> str:
    """The server's catalog is shared by the whole run."""
    return f"t_{uuid4().hex}"


@pytest.fixture
def rest_settings(make_settings: MakeSettings) -> MakeSettings:
    def make(uri: str, **flags: object) -> Settings:
        quick = {"retry__initial_delay_ms": 10, "retry__max_delay_ms": 100}
        properties = flags.pop("properties", {})
        assert isinstance(properties, dict)
        flat = {f"catalog__properties__{key}": value for key, value in properties.items()}
        return make_settings(catalog__type="rest", catalog__uri=uri, **(quick | flags | flat))

    return make


def use(settings: Settings, name: str) -> None:
    with Lake(settings) as lake:
        lake.catalog.create_table(name, USERS).append(ROW)
        assert lake.catalog.load_table(name).scan().to_arrow().num_rows == 1


def test_a_server_chooses_the_place_of_tables_unless_the_user_does(
    rest_server: Rest, rest_settings: MakeSettings, name: str
) -> None:
    settings = rest_settings(rest_server.uri)
    assert settings.storage.dsn is None
    with Lake(settings) as lake:
        assert lake.catalog.create_table(name, USERS).location().startswith(rest_server.warehouse)
    place = f"{rest_server.warehouse.rstrip('/')}/mine"
    with Lake(rest_settings(rest_server.uri, storage__dsn=place)) as lake:
        assert lake.catalog.create_table(f"{name}_two", USERS).location() == f"{place}/{name}_two"


def test_a_bearer_token(
    rest_server: Rest, serve_front: ServeFront, rest_settings: MakeSettings, name: str
) -> None:
    front = serve_front(rest_server.port, gates=[Bearer(known=frozenset({"good"}))])
    use(rest_settings(front.url, properties={"token": "good"}), name)
    for bad in ({"token": "wrong-canary"}, {}):
        with pytest.raises(Denied) as denied:
            use(rest_settings(front.url, properties=bad), name)
        assert "canary" not in str(denied.value)


def test_client_credentials(
    rest_server: Rest, serve_front: ServeFront, rest_settings: MakeSettings, name: str
) -> None:
    bearer = Bearer()
    front = serve_front(rest_server.port, gates=[bearer])
    use(rest_settings(front.url, properties={"credential": bearer.credential}), name)
    assert bearer.issued == 1
    with pytest.raises(Denied, match="refused the client"):
        use(rest_settings(front.url, properties={"credential": "calve:wrong"}), name)


@pytest.mark.parametrize(
    ("lifetime_seconds", "traffic_seconds"),
    [(2, 5), pytest.param(5, 60, marks=pytest.mark.torture)],
)
def test_short_lived_tokens_are_renewed_before_they_expire(
    rest_server: Rest,
    serve_front: ServeFront,
    rest_settings: MakeSettings,
    name: str,
    lifetime_seconds: int,
    traffic_seconds: int,
) -> None:
    bearer = Bearer(lifetime_seconds=lifetime_seconds)
    front = serve_front(rest_server.port, gates=[bearer])
    end = time.monotonic() + traffic_seconds
    with Lake(rest_settings(front.url, properties={"credential": bearer.credential})) as lake:
        lake.catalog.create_table(name, USERS)

        def traffic(writer: int) -> int:
            operations = 0
            while time.monotonic() < end:
                table = lake.catalog.load_table(name)
                if writer == 0 and operations % 20 == 0:
                    table.append(ROW)
                operations += 1
            return operations

        with ThreadPoolExecutor(4) as pool:
            operations = sum(pool.map(traffic, range(4)))
    print(f"{operations} operations, {bearer.issued} tokens, {bearer.refused} refused")
    assert bearer.refused == 0
    assert bearer.issued >= traffic_seconds / lifetime_seconds
    assert operations > 50


def test_a_token_is_used_to_its_end_when_renewing_fails(
    rest_server: Rest, serve_front: ServeFront, rest_settings: MakeSettings, name: str
) -> None:
    front = serve_front(rest_server.port, gates=[bearer := Bearer(lifetime_seconds=4)])
    with Lake(rest_settings(front.url, properties={"credential": bearer.credential})) as lake:
        lake.catalog.create_table(name, USERS)
        front.faults.inject(
            faults.refuse(503), when=lambda r: "oauth" in r.path, times=faults.FOREVER
        )
        end = time.monotonic() + 3.5
        while time.monotonic() < end:
            lake.catalog.load_table(name)
        assert front.faults.taken > 0
        front.forget()
        lake.catalog.load_table(name)
    assert bearer.refused == 0


def test_a_token_that_was_revoked_is_renewed_once_and_the_request_repeated(
    rest_server: Rest, serve_front: ServeFront, rest_settings: MakeSettings, name: str
) -> None:
    bearer = Bearer()
    front = serve_front(rest_server.port, gates=[bearer])
    with Lake(rest_settings(front.url, properties={"credential": bearer.credential})) as lake:
        lake.catalog.create_table(name, USERS)
        bearer.revoke_all()
        lake.catalog.load_table(name)
    assert (bearer.issued, bearer.refused) == (2, 1)


@pytest.mark.parametrize(
    ("lifetime", "use_seconds"), [(3600, 3540), (100, 60), (5, 3), (None, 600)]
)
def test_how_long_a_token_is_used(lifetime: int | None, use_seconds: float) -> None:
    assert seconds_of_use(lifetime) == use_seconds


def test_headers_prefix_and_warehouse(
    rest_server: Rest, serve_front: ServeFront, rest_settings: MakeSettings, name: str
) -> None:
    gates = [RequiredHeaders({"X-Team": "data"}), Prefix("p1", warehouse="main")]
    front = serve_front(rest_server.port, gates=gates)
    use(rest_settings(front.url, properties={"header.X-Team": "data", "warehouse": "main"}), name)
    assert any(exchange.target.startswith("/v1/p1/") for exchange in front.exchanges)
    with pytest.raises(Denied):
        use(rest_settings(front.url, properties={"warehouse": "main"}), name)
    with pytest.raises(CalveError):
        use(
            rest_settings(front.url, properties={"header.X-Team": "data", "warehouse": "other"}),
            name,
        )


def test_tls_with_a_ca_of_ones_own_and_a_wrong_one(
    rest_server: Rest,
    serve_front: ServeFront,
    rest_settings: MakeSettings,
    authority: Authority,
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
) -> None:
    front = serve_front(rest_server.port, tls=authority.server)
    use(rest_settings(front.url, properties={"ssl.cabundle": str(authority.pem)}), name)
    other = Authority(tmp_path_factory.mktemp("other"))
    for properties in ({"ssl.cabundle": str(other.pem)}, {}):
        with pytest.raises(Denied, match="certificate is not trusted"):
            use(rest_settings(front.url, properties=properties), name)


def test_requests_are_signed(
    rest_server: Rest,
    serve_front: ServeFront,
    rest_settings: MakeSettings,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "signer")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    signed = Signed(access_key="signer", region="eu-west-1", service="glue")
    front = serve_front(rest_server.port, gates=[signed])
    properties = {
        "rest.sigv4-enabled": "true",
        "rest.signing-region": "eu-west-1",
        "rest.signing-name": "glue",
    }
    use(rest_settings(front.url, properties=properties), name)
    assert signed.refused == 0


def test_vended_credentials_open_the_files(
    rest_server_on_s3: Rest,
    serve_front: ServeFront,
    serve_temporary_s3: ServeTemporaryS3,
    rest_settings: MakeSettings,
    name: str,
) -> None:
    """The settings hold no key at all; the store takes only session tokens that the catalog gave."""
    temporary = serve_temporary_s3(lifetime_seconds=60)
    vended = Vended(lambda: temporary.sessions.new().file_io_properties)
    front = serve_front(rest_server_on_s3.port, gates=[vended])
    settings = rest_settings(
        front.url,
        storage__endpoint=temporary.store.endpoint,
        storage__region="us-east-1",
        storage__path_style=True,
    )
    use(settings, name)
    assert vended.vended
    assert set(vended.delegations) == {"vended-credentials"}
    assert (temporary.sessions.refused, temporary.sessions.expired) == (0, 0)


def is_load(request: Request) -> bool:
    return request.method == "GET" and "/tables/" in request.path


def is_commit(request: Request) -> bool:
    return request.method == "POST" and "/tables/" in request.path


@pytest.fixture
def faulty(
    rest_server: Rest, serve_front: ServeFront, rest_settings: MakeSettings, name: str
) -> tuple[Front, Lake]:
    front = serve_front(rest_server.port)
    timeouts = {"rest.client.connection-timeout-ms": "500", "rest.client.socket-timeout-ms": "700"}
    lake = Lake(rest_settings(front.url, properties=timeouts))
    lake.catalog.create_table(name, USERS)
    return front, lake


@pytest.mark.parametrize(
    "fault",
    [
        faults.refuse(500),
        faults.refuse(503),
        faults.refuse(429, retry_after="0"),
        faults.reset(),
        faults.drop_answer(),
        faults.delay(1.5),
    ],
    ids=lambda fault: str(fault.status or fault),
)
def test_a_read_gets_over_what_passes(faulty: tuple[Front, Lake], name: str, fault: Fault) -> None:
    front, lake = faulty
    front.faults.inject(fault, when=is_load, times=2)
    assert lake.catalog.load_table(name).name()
    assert front.faults.taken == 2


def test_a_commit_is_repeated_when_the_server_says_that_it_did_nothing(
    faulty: tuple[Front, Lake], name: str
) -> None:
    front, lake = faulty
    front.faults.inject(faults.refuse(429, retry_after="0"), when=is_commit, times=2)
    lake.catalog.load_table(name).append(ROW)
    assert front.faults.taken == 2
    assert lake.catalog.load_table(name).scan().to_arrow().num_rows == 1


@pytest.mark.parametrize(
    "fault",
    [
        faults.refuse(500),
        faults.refuse(503),
        faults.drop_answer(),
        faults.delay(1.5),
        faults.deny_after(500),
        faults.deny_after(502),
        faults.deny_after(503),
        faults.deny_after(504),
    ],
    ids=lambda fault: f"{fault.status or ''}{'-after' if fault.after else ''}",
)
def test_a_commit_of_unknown_outcome_is_not_repeated(
    faulty: tuple[Front, Lake], name: str, fault: Fault
) -> None:
    front, lake = faulty
    front.faults.inject(fault, when=is_commit)
    table = lake.catalog.load_table(name)
    with pytest.raises(CommitStateUnknownException):
        table.append(ROW)
    commits = [
        exchange
        for exchange in front.exchanges
        if exchange.method == "POST" and name in exchange.target
    ]
    assert len(commits) <= 1
    assert lake.catalog.load_table(name).scan().to_arrow().num_rows in (0, 1)


def test_a_server_that_stays_broken_is_reported_within_bounds(
    faulty: tuple[Front, Lake], name: str
) -> None:
    front, lake = faulty
    for fault in (faults.refuse(503), faults.reset(), faults.delay(1.5)):
        front.forget()
        front.faults.inject(fault, when=is_load, times=faults.FOREVER)
        started = time.monotonic()
        with pytest.raises(Unavailable) as unavailable:
            lake.catalog.load_table(name)
        assert time.monotonic() - started < 30
        assert unavailable.value.hint
        assert front.faults.taken == 5


def test_an_address_is_needed(make_settings: MakeSettings) -> None:
    with pytest.raises(InvalidSettings, match=r"catalog\.uri"):
        Lake(make_settings(catalog__type="rest"))


def test_a_server_that_is_no_catalog_is_refused(rest_settings: MakeSettings, s3_server: S3) -> None:
    with pytest.raises(CalveError) as refused:
        Lake(rest_settings(s3_server.endpoint))
    assert not isinstance(refused.value, NotFound) or refused.value.hint


def test_properties_are_nested_where_pyiceberg_wants_it() -> None:
    flat = {"ssl.cabundle": "ca", "ssl.client.cert": "c", "header.X-A": "1", "uri": "u"}
    assert nested(flat) == {
        "ssl": {"cabundle": "ca", "client": {"cert": "c"}},
        "header.X-A": "1",
        "uri": "u",
    }


def test_a_servers_wish_to_wait_is_bounded_and_waits_grow_by_the_multiplier(
    faulty: tuple[Front, Lake], name: str
) -> None:
    front, lake = faulty
    front.faults.inject(faults.refuse(503, retry_after="3600"), when=is_load)
    started = time.monotonic()
    lake.catalog.load_table(name)
    assert time.monotonic() - started < 5
    policy = retry_policy(
        RetrySettings(initial_delay_ms=100, backoff_multiplier=3.0, max_delay_ms=500)
    )
    waits = []
    for _ in range(4):
        policy = policy.increment("GET", "/", error=OSError("broken"))
        waits.append(policy.get_backoff_time())
    for wait, longest in zip(waits, (0.1, 0.3, 0.5, 0.5), strict=True):
        assert longest / 2 <= wait <= longest


def test_a_ca_that_is_not_there_is_named(rest_settings: MakeSettings) -> None:
    with pytest.raises(NotFound, match=r"ssl\.cabundle: there is no file /nowhere/ca\.pem"):
        Lake(rest_settings("https://127.0.0.1:1", properties={"ssl.cabundle": "/nowhere/ca.pem"}))


def test_signing_uses_the_keys_of_the_settings_and_says_when_there_are_none(
    rest_server: Rest,
    serve_front: ServeFront,
    rest_settings: MakeSettings,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    front = serve_front(
        rest_server.port, gates=[Signed(access_key="mine", region="eu-west-1", service="glue")]
    )
    properties = {
        "rest.sigv4-enabled": "true",
        "rest.signing-region": "eu-west-1",
        "rest.signing-name": "glue",
    }
    with pytest.raises(Denied, match="no AWS credentials"):
        Lake(rest_settings(front.url, properties=properties))
    keys = {"storage__access_key_id": "mine", "storage__secret_access_key": "secret"}
    settings = rest_settings(front.url, properties=properties, **keys)
    use(settings, name)
    with Lake(settings) as lake:
        assert pickle.loads(pickle.dumps(lake.catalog.load_table(name).io))


def test_a_write_is_repeated_only_where_nothing_was_done() -> None:
    policy = retry_policy(RetrySettings())
    assert [code for code in (429, 500, 502, 503, 504) if policy.is_retry("POST", code)] == [
        429,
    ]
    assert [code for code in (404, 429, 500, 502, 503, 504) if policy.is_retry("GET", code)] == [
        429,
        500,
        502,
        503,
        504,
    ]
