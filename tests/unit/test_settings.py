"""Settings: four sources in order, each value with its origin, every mistake named."""

from __future__ import annotations

import copy
import pickle
import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from calve.errors import CalveError, InvalidSettings, NotFound
from calve.settings import LoadedSettings, Properties, Secret, Settings, hidden_texts, load_settings
from calve.settings.keys import KEYS
from calve.settings.reference import MEANINGS
from calve.settings.render import rows, template

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
        ("[wal\n", "is not valid TOML"),
        ("[catalog]\nname = 'a-b'", "catalog.name"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_key_and_file(load: Load, text: str, said: str) -> None:
    assert said in refusal(lambda: load(text))


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
        "[catalog.properties]\ntoken = 'hush'\n[storage]\nsecret_access_key = 's3cret'"
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


def test_every_secret_can_come_from_a_file(load: Load, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from-file\n")
    (tmp_path / "uri").write_text("postgresql://u:pw@h/d\n")
    text = (
        "[catalog]\nuri_file = 'uri'\n[catalog.properties]\ntoken_file = 'secret'\n"
        "[storage]\nsecret_access_key_file = 'secret'"
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
