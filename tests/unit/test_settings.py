"""Settings: four sources in order, each value with its origin, every mistake named."""

from __future__ import annotations

import copy
import json
import pickle
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from calve.errors import CalveError, Denied, InvalidSettings, NotFound
from calve.settings import (
    MASK,
    CatalogSettings,
    LoadedSettings,
    Properties,
    Secret,
    SecretUrl,
    Settings,
    complete,
    component_levels,
    hidden_texts,
    hide_secrets,
    load_settings,
    mask_texts,
    mask_url,
)
from calve.settings.keys import KEYS
from calve.settings.reference import MEANINGS
from calve.settings.render import rows, template
from tests.commands import run_command

Load = Callable[..., LoadedSettings]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(
        text: str | None = None,
        *,
        name: str = "calve.toml",
        env: dict[str, str] | None = None,
        **flags: object,
    ) -> LoadedSettings:
        if text is not None:
            (tmp_path / name).write_text(text)
        named = {flag.replace("__", "."): value for flag, value in flags.items()}
        return load_settings(flags=named, environ=env or {}, directory=tmp_path)

    return load


def refusal(load: Callable[[], object]) -> str:
    with pytest.raises(CalveError) as refused:
        load()
    return str(refused.value)


def test_no_file_is_needed(load: Load, tmp_path: Path) -> None:
    settings = load().settings
    assert settings.data == tmp_path / "calve-data"
    assert settings.storage.dsn == f"file://{tmp_path}/calve-data"
    assert settings.catalog.uri is not None
    assert settings.catalog.uri.reveal() == f"sqlite:///{tmp_path}/calve-data/_calve/catalog.db"
    assert settings.pipeline.rows_max == 50_000
    assert settings.wal.sync_mode == "always"


def test_flags_win_over_environment_over_file_over_defaults(load: Load) -> None:
    file = '[wal]\nsync_mode = "none"\nsegment_bytes_max = 1\nhot_window_seconds = 1'
    env = {"CALVE_WAL__SYNC_MODE": "periodic", "CALVE_WAL__SEGMENT_BYTES_MAX": "2"}
    loaded = load(file, env=env, wal__sync_mode="always")
    wal = loaded.settings.wal
    assert (wal.sync_mode, wal.segment_bytes_max, wal.hot_window_seconds) == ("always", 2, 1)
    assert loaded.origins["wal.sync_mode"] == "--set wal.sync_mode"
    assert loaded.origins["wal.segment_bytes_max"] == "CALVE_WAL__SEGMENT_BYTES_MAX"
    assert loaded.origins["wal.hot_window_seconds"] == "calve.toml"
    assert loaded.origins["wal.disk_bytes_max"] == "default"


def test_yaml_says_the_same(load: Load) -> None:
    loaded = load(
        "wal:\n  sync_mode: periodic\nspark:\n  conf:\n    spark.executor.memory: 2g\n",
        name="calve.yaml",
    )
    assert loaded.settings.wal.sync_mode == "periodic"
    assert dict(loaded.settings.spark.conf) == {"spark.executor.memory": "2g"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[wal]\nsync_mod = "none"', "calve.toml: wal.sync_mod: unknown key; did you mean wal.sync_mode?"),
        ('sync_mode = "none"', "did you mean wal.sync_mode?"),
        ("[wall]\nx = 1", "wall: unknown key; did you mean wal?"),
        ("[catlog]\ntype = 'sql'", "did you mean catalog?"),
        ('[ingest]\nhttp_port = "8080"', "ingest.http_port: must be a whole number, not '8080'"),
        ("[ingest]\nhttp_port = 70000", "ingest.http_port: must be a whole number <= 65535, not 70000"),
        ("[ingest]\nauto_create = 1", "ingest.auto_create: must be true or false, not 1"),
        ("[wal]\nsegment_bytes_max = true", "wal.segment_bytes_max: must be a whole number"),
        ("[wal]\nsegment_bytes_max = 0", "must be a whole number >= 1, not 0"),
        ("[catalog]\ntype = 'hive'", "catalog.type: 'hive' is not one of sql, memory, rest, glue"),
        ("[catalog.properties]\nx = [1]", "catalog.properties.x: must be a text, a number or true or false"),
        ("catalog = 3", "catalog: is a section; write [catalog] and its keys"),
        ("data = 3", "data: must be a path, not a number"),
        ("data = ''", "data: must be a path"),
        ("[storage]\ndsn = 'ftp://x'", "'ftp://x' is not a store"),
        ("[storage]\ndsn = 'file://relative'", "is not a store"),
        ("[storage]\ndsn = 'file:///a%20b'", "which Iceberg's libraries read as parts of a URL"),
        ("[storage]\nsecret_access_key = 3", "storage.secret_access_key: must be a text"),
        ("[catalog.pool]\nmin_connections = 11", "11 is more than catalog.pool.max_connections, 10"),
        ("[storage]\ndsn = 's3://'", "storage.dsn: 's3://' names no bucket"),
        ("[spark]\nmaster = 'locl[2]'", "spark.master: 'locl[2]' is no place where Spark runs"),
        ("[spark]\nmaster = 'local[abc]'", "is no place where Spark runs"),
        ("[spark]\nmaster = 'local[0]'", "is no place where Spark runs"),
        ("[spark]\nmaster = ''", "is no place where Spark runs"),
        ("[storage]\ndsn = 's3:///x'", "storage.dsn: 's3:///x' names no bucket"),
        ("[storage]\naccess_key_id = 'k'", "storage.access_key_id: needs storage.secret_access_key"),
        ("[storage]\nsecret_access_key = 'k'", "storage.secret_access_key: needs storage.access_key_id"),
        ("[pipeline]\ntoken = 'calve_a\\nb'", "pipeline.token holds no token"),
        ("[catalog]\ntype = 'rest'", "catalog.uri: a REST catalog needs the address"),
        ("[catalog.properties]\nrest.client.socket-timeout-ms = 'abc'", "socket-timeout-ms: must be a whole number of ms, not 'abc'"),
        ("[catalog.properties]\nrest.client.connection-timeout-ms = 0", "must be a whole number of ms, not '0'"),
        ("[log]\nlevels = 'nonsense'", "log.levels: 'nonsense' is not a component and a level"),
        ("[log]\nlevels = 'calve=loud'", "log.levels: 'calve=loud'"),
        ("data = '~nosuchuser/x'", "data: '~nosuchuser/x' names a home directory that is not known"),
        ("[catalog]\nuri_file = '~nosuchuser/x'", "catalog.uri_file: '~nosuchuser/x' names a home"),
        ("[wal\n", "is not valid TOML"),
        ("[catalog]\nname = 'a-b'", "catalog.name"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_key_and_file(load: Load, text: str, said: str) -> None:
    assert said in refusal(lambda: load(text))


@pytest.mark.parametrize(
    "master",
    [
        "local", "local[*]", "local[2]", "local[2, 3]", "local[*,3]", "local-cluster[2, 1, 1024]",
        "spark://host:7077", "spark://one:7077,two:7077", "k8s://https://host:443", "yarn",
    ],
)  # fmt: skip
def test_every_place_where_spark_runs_can_be_named(load: Load, master: str) -> None:
    assert load(f"[spark]\nmaster = '{master}'").settings.spark.master == master


def test_all_mistakes_come_at_once(load: Load) -> None:
    said = refusal(lambda: load("[wal]\na = 1\nsync_mode = 'x'", env={"CALVE_NO__SUCH": "1"}))
    assert all(
        part in said for part in ("wal.a", "wal.sync_mode", "CALVE_NO__SUCH: no.such: unknown key")
    )


def test_text_from_the_environment_is_read_by_the_keys_type(load: Load) -> None:
    env = {
        "CALVE_INGEST__AUTO_CREATE": "false",
        "CALVE_INGEST__HTTP_PORT": "0",
        "CALVE_RETRY__BACKOFF_MULTIPLIER": "1.5",
        "CALVE_STORAGE__REGION": "123",
        "CALVE_CATALOG__PROPERTIES": '{"s3.endpoint": "x", "n": 1, "b": true}',
        "CALVE_SPARK__CONF__SPARK__EXECUTOR__MEMORY": "2g",
    }
    settings = load(env=env).settings
    assert settings.ingest.auto_create is False
    assert settings.ingest.http_port == 0
    assert settings.retry.backoff_multiplier == 1.5
    assert settings.storage.region == "123"
    assert dict(settings.catalog.properties) == {"s3.endpoint": "x", "n": "1", "b": "true"}
    assert dict(settings.spark.conf) == {"spark.executor.memory": "2g"}


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("CALVE_INGEST__HTTP_PORT", "eighty", "must be a whole number, not 'eighty'"),
        ("CALVE_INGEST__AUTO_CREATE", "perhaps", "must be true or false, not 'perhaps'"),
        ("CALVE_CATALOG__PROPERTIES", "a=b", "must be a JSON object of names and values"),
        ("CALVE_WAL__SYNC_MOD", "x", "did you mean wal.sync_mode?"),
    ],
)
def test_a_bad_variable_is_named(load: Load, variable: str, value: str, said: str) -> None:
    text = refusal(lambda: load(env={variable: value}))
    assert variable in text
    assert said in text


def test_properties_of_all_sources_are_merged(load: Load) -> None:
    file = '[catalog.properties]\na = "file"\nb.c = "file"\n[spark.conf]\nspark.x.y = 1'
    loaded = load(file, env={"CALVE_CATALOG__PROPERTIES": '{"a": "env"}'})
    assert dict(loaded.settings.catalog.properties) == {"a": "env", "b.c": "file"}
    assert loaded.origins["catalog.properties.a"] == "CALVE_CATALOG__PROPERTIES"
    assert dict(loaded.settings.spark.conf) == {"spark.x.y": "1"}


def test_a_relative_path_starts_at_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "calve.toml").write_text('data = "lake"')
    loaded = load_settings(config=Path("etc/calve.toml"), environ={}, directory=tmp_path)
    assert loaded.settings.data == tmp_path / "etc" / "lake"
    flagged = load_settings(flags={"data": "lake"}, environ={}, directory=tmp_path)
    assert flagged.settings.data == tmp_path / "lake"


def test_the_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("[log]\nlevel = 'error'")
    loaded = load_settings(environ={"CALVE_CONFIG": "other.toml"}, directory=tmp_path)
    assert loaded.settings.log.level == "error"


def test_a_named_file_must_exist_and_two_are_one_too_many(load: Load, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"missing\.toml"):
        load_settings(config=Path("missing.toml"), environ={}, directory=tmp_path)
    (tmp_path / "calve.yaml").touch()
    with pytest.raises(InvalidSettings, match="both"):
        load("")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"data = '\xc3\x28'"])
def test_a_file_that_is_no_text_is_refused(load: Load, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "calve.toml").write_bytes(content)
    assert "cannot be read" in refusal(load)


def test_a_directory_is_no_configuration(load: Load, tmp_path: Path) -> None:
    (tmp_path / "calve.toml").mkdir()
    assert "cannot be read" in refusal(load)


@pytest.mark.parametrize("text", ["- a\n- b", "just text", "a: [", "a: b: c"])
def test_yaml_that_is_no_tree_is_refused(load: Load, text: str) -> None:
    assert "calve.yaml" in refusal(lambda: load(text, name="calve.yaml"))


def test_settings_are_frozen_and_survive_copying(load: Load) -> None:
    settings = load(
        "[catalog.properties]\ntoken = 'hush'\n"
        "[storage]\naccess_key_id = 'key'\nsecret_access_key = 's3cret'"
    ).settings
    with pytest.raises(AttributeError):
        settings.wal.sync_mode = "none"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(settings)) == settings == copy.deepcopy(settings)
    assert hash(settings) == hash(pickle.loads(pickle.dumps(settings)))


SECRETS = """
[catalog]
uri = "postgresql://calve:hunter2@db/calve"
[catalog.properties]
token = "tok-123"
"s3.secret-access-key" = "aws-456"
"oauth2-server-uri" = "http://auth"
[storage]
access_key_id = "AKIA"
secret_access_key = "sec-789"
[state]
dsn = "postgresql://calve:swordfish@db/state"
"""
HIDDEN = {"hunter2", "tok-123", "aws-456", "sec-789", "swordfish"}


def test_no_secret_is_shown_and_all_of_them_are_known(load: Load) -> None:
    loaded = load(SECRETS)
    shown = repr(loaded.settings) + str(rows(loaded)) + repr(loaded)
    assert not [secret for secret in HIDDEN if secret in shown]
    assert "postgresql://calve:******@db/calve" in shown
    assert "http://auth" in shown
    assert "AKIA" in shown
    assert set(hidden_texts(loaded.settings)) == HIDDEN
    secret = loaded.settings.storage.secret_access_key
    assert secret is not None
    assert secret.reveal() == "sec-789"


@pytest.mark.parametrize(
    ("uri", "secret"),
    [
        ("postgresql://h/db?user=u&password=hunter2", "hunter2"),
        ("postgresql://u:p/w0rd@h/db", "p/w0rd"),
        ("postgresql://u:p@ssw@h/db", "p@ssw"),
        ("postgresql://u:p%40ss%2Fx@h/db?sslmode=require", "p%40ss%2Fx"),
        ("postgresql://:only@h/db", "only"),
        ("etcd://h:2379/?token=t0ken&ttl=5", "t0ken"),
    ],
)
def test_a_password_is_masked_wherever_a_url_holds_it(load: Load, uri: str, secret: str) -> None:
    loaded = load(state__dsn=uri)
    assert secret not in str(rows(loaded)) + repr(loaded.settings)
    assert secret in hidden_texts(loaded.settings)
    assert "h" in str(loaded.settings.state.dsn)
    assert secret not in mask_url(f"cannot reach {uri}, giving up")


@pytest.mark.parametrize(
    ("key", "address"),
    [
        ("storage.dsn", "s3://AK:hunter2@bucket/x"),
        ("storage.dsn", "ss3://AK:hunter2@bucket/x"),
        ("storage.dsn", "AK:hunter2@bucket/x"),
        ("storage.endpoint", "http://u:hunter2@store:9000"),
        ("catalog.uri", "u:hunter2@h/db"),
        ("catalog.uri", "postgresql//u:hunter2@h/db?next=http://x"),
        ("state.dsn", "postgresql:/u:hunter2@h/db"),
        ("pipeline.logs", "grpc+tls://u:hunter2@h:8815"),
        ("pipeline.logs", "grpc://h:8815,grpc://u:hunter2@h:8816"),
        ("pipeline.rows_max", "http://u:hunter2@h"),
    ],
)
def test_a_password_in_an_address_is_masked_in_whichever_setting(
    load: Load, key: str, address: str
) -> None:
    try:
        loaded = load(**{key: address})
    except InvalidSettings as refused:
        told = str(refused)
    else:
        told = str(rows(loaded))
        assert "hunter2" in hidden_texts(loaded.settings)
    assert "hunter2" not in told
    assert f":{MASK}@" in told


@pytest.mark.parametrize("key", ["state.dsn", "catalog.uri"])
@pytest.mark.parametrize("address", ["postgresql://u@h:5432/db", "u@h:5432/db", "sqlite:////a:b@c"])
def test_an_address_without_a_password_is_shown_whole(load: Load, key: str, address: str) -> None:
    assert address in str(rows(load(**{key: address})))


@pytest.mark.parametrize(
    "secret", ['pa"ss"word', "back\\slash9", "pässwörd9", "per%cent/9", "with space"]
)
def test_a_secret_is_masked_in_every_form_it_is_written_in(secret: str) -> None:
    forms = [
        secret,
        json.dumps(secret),
        json.dumps(secret, ensure_ascii=False),
        quote(secret, safe=""),
    ]
    for form in forms:
        assert mask_texts(f"x {form} y", [secret]) in (f"x {MASK} y", f'x "{MASK}" y')
        assert mask_texts(f"x {form} y", [quote(secret, safe="")]) in (
            f"x {MASK} y",
            f'x "{MASK}" y',
        )


def test_every_secret_can_come_from_a_file(load: Load, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from-file\n")
    (tmp_path / "uri").write_text("postgresql://u:pw@h/d\n")
    text = (
        "[catalog]\nuri_file = 'uri'\n[catalog.properties]\ntoken_file = 'secret'\n"
        "[storage]\naccess_key_id = 'key'\nsecret_access_key_file = 'secret'"
    )
    loaded = load(text)
    assert loaded.settings.storage.secret_access_key == Secret("from-file")
    assert loaded.settings.catalog.uri is not None
    assert loaded.settings.catalog.uri.reveal() == "postgresql://u:pw@h/d"
    assert dict(loaded.settings.catalog.properties) == {"token": "from-file"}
    assert (
        loaded.origins["storage.secret_access_key"] == "calve.toml: storage.secret_access_key_file"
    )
    assert "No such file" in refusal(lambda: load(text.replace("'uri'", "'nowhere'")))


def test_a_file_for_what_is_no_secret_is_an_unknown_key(load: Load) -> None:
    assert "wal.sync_mode_file: unknown key" in refusal(lambda: load("[wal]\nsync_mode_file = 'x'"))


def test_every_setting_has_a_meaning_and_the_template_holds_the_defaults(load: Load) -> None:
    assert set(MEANINGS) == set(KEYS)
    lines = template().splitlines()
    assert not tomllib.loads(template()).keys() - {
        "catalog",
        *(name.split(".")[0] for name in KEYS),
    }
    uncommented = [
        line.removeprefix("# ") if " = " in line and "…" not in line and "{" not in line else line
        for line in lines
    ]
    loaded = load("\n".join(line for line in uncommented if not line.startswith("#")))
    plain = load_settings(environ={}, directory=loaded.settings.data.parent).settings
    assert isinstance(plain, Settings)
    assert loaded.settings == plain
    given = {name for name, origin in loaded.origins.items() if origin == "calve.toml"}
    assert given == {
        name for name, key in KEYS.items() if key.default is not None and not key.is_open
    }


def test_properties_behave_as_a_mapping_that_cannot_change() -> None:
    held = Properties({"a": "1", "password": "hush"})
    assert held == {"a": "1", "password": "hush"}
    assert repr(held) == "Properties({'a': '1', 'password': '******'})"
    with pytest.raises(TypeError):
        held["a"] = "2"  # type: ignore[index]
    assert msgspec.structs.fields(Settings)


def test_a_file_that_some_editors_mark_is_read(load: Load, tmp_path: Path) -> None:
    (tmp_path / "calve.toml").write_bytes(b"\xef\xbb\xbf[log]\nlevel = 'error'")
    assert load().settings.log.level == "error"


@pytest.mark.parametrize(
    "text", ["data: a\nlog: {}\ndata: b", "log:\n  level: info\n  level: error"]
)
def test_a_key_that_yaml_holds_twice_is_refused(load: Load, text: str) -> None:
    said = refusal(lambda: load(text, name="calve.yaml"))
    assert "is there twice" in said
    assert "line" in said


def test_the_home_directory_of_a_secrets_file_is_the_users(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "token").write_text("from-home")
    monkeypatch.setenv("HOME", str(home))
    loaded = load("[catalog.properties]\ntoken_file = '~/token'")
    assert dict(loaded.settings.catalog.properties) == {"token": "from-home"}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("sqlite:///rel.db", "sqlite:///{etc}/rel.db"),
        ("sqlite:///a/../b.db?timeout=5", "sqlite:///{etc}/b.db?timeout=5"),
        ("sqlite:////abs/x.db", "sqlite:////abs/x.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("sqlite://", "sqlite://"),
        ("postgres://u:p@h/d", "postgresql://u:p@h/d"),
        ("postgresql+psycopg2://u:p@h/d", "postgresql://u:p@h/d"),
        ("postgresql://u:p@h/d", "postgresql://u:p@h/d"),
    ],
)
def test_a_database_is_named_in_one_way(tmp_path: Path, written: str, meant: str) -> None:
    etc = tmp_path / "etc"
    etc.mkdir()
    (etc / "calve.toml").write_text(f'[catalog]\nuri = "{written}"')
    loaded = load_settings(config=Path("etc/calve.toml"), environ={}, directory=tmp_path)
    assert loaded.settings.catalog.uri == SecretUrl(meant.format(etc=etc))


def test_a_current_directory_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "the current directory cannot be found" in refusal(lambda: load_settings(environ={}))


def test_a_file_that_cannot_be_looked_for_is_named(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 300) / "calve.toml"
    assert "too long" in refusal(lambda: load_settings(config=long, environ={}))


def test_a_directory_that_may_not_be_read_is_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may read everything, so the system's answer is given by hand.
    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(Denied, match=r"calve\.toml cannot be looked for"):
        load_settings(environ={}, directory=tmp_path)


def test_without_a_home_directory_the_cache_must_be_named(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    said = refusal(load)
    assert "cache: this user has no home directory" in said
    assert "set HOME" in said
    assert load(cache="/var/cache/calve").settings.cache == Path("/var/cache/calve")


def test_settings_made_by_hand_are_completed(tmp_path: Path) -> None:
    made = complete(Settings(data=tmp_path / "lake"))
    flags = {"data": str(tmp_path / "lake")}
    assert made == load_settings(flags=flags, directory=tmp_path).settings
    assert complete(made) == made


def test_settings_made_by_hand_are_checked(tmp_path: Path) -> None:
    def uri(text: str) -> CatalogSettings:
        return CatalogSettings(uri=SecretUrl(text))

    assert "needs the address" in refusal(
        lambda: complete(Settings(catalog=CatalogSettings(type="rest")))
    )
    assert "home directory" in refusal(lambda: complete(Settings(data=Path("~nosuchuser/x"))))
    made = complete(Settings(data=tmp_path, catalog=uri("postgres://u:p@h/d")))
    assert made.catalog.uri == SecretUrl("postgresql://u:p@h/d")


def test_levels_are_read_per_component() -> None:
    assert component_levels(" calve.tables = debug, pyiceberg=info,") == {
        "calve.tables": 10,
        "pyiceberg": 20,
    }


@pytest.mark.parametrize("password", ["two words", "what?then", "at@home?x", "a#b"])
def test_a_password_that_nobody_encoded_is_masked_with_the_pieces_it_is_torn_into(
    load: Load, password: str
) -> None:
    uri = f"postgresql://u:{password}@h/db"
    loaded = load(state__dsn=uri)
    assert password not in str(rows(loaded)) + repr(loaded.settings)
    hidden = hidden_texts(loaded.settings)
    assert {password, *re.split(r"[@? #]", password)} <= set(hidden)


@pytest.mark.parametrize(
    "key",
    ["fs.azure.account.key", "adls.account-key", "adls.connection-string", "s3.sse.key", "my.pwd"],
)
def test_other_stores_names_for_secrets_are_known(load: Load, key: str) -> None:
    loaded = load(f'[storage.properties]\n"{key}" = "hunter2"')
    assert "hunter2" not in str(rows(loaded))
    assert hidden_texts(loaded.settings) == ["hunter2"]


def test_a_password_in_a_property_that_is_an_address_is_known(load: Load) -> None:
    loaded = load('[storage.properties]\nproxy = "http://me:hunter2@proxy/"')
    assert "hunter2" not in str(rows(loaded))
    assert "hunter2" in hidden_texts(loaded.settings)


@pytest.mark.parametrize(
    "line", ["token: *hunter2", "token: 'hunter2", "token: !hunter2 x", "token: %hunter2"]
)
def test_yaml_that_is_broken_is_refused_without_its_lines(load: Load, line: str) -> None:
    text = f"catalog:\n  properties:\n    {line}\n"
    said = refusal(lambda: load(text, name="calve.yaml"))
    assert "hunter2" not in said
    assert "calve.yaml is not valid YAML" in said


def test_errors_of_our_own_processes_tell_no_secret(load: Load) -> None:
    hide_secrets(load(SECRETS).settings)
    error = CalveError("it said hunter2", hint="not sec-789", context={"fact": "tok-123"})
    assert not [secret for secret in HIDDEN if secret in repr(error.args) + str(error)]
    assert error.context["fact"] == MASK
    hide_secrets(load("").settings)
    assert str(CalveError("it said hunter2")) == "it said hunter2"


def test_a_file_that_calve_writes_is_its_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(["calve", "config", "init"], monkeypatch, capsys).code == 0
    assert (tmp_path / "calve.toml").stat().st_mode & 0o777 == 0o600
