"""Settings from defaults, a file, the environment and flags, in that order, each with its origin.

Every problem is reported at once, with the key's full name, where it was written, and the nearest
valid key. Nothing else in Calve reads the environment or a configuration file.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from calve.errors import Denied, InvalidSettings, NotFound
from calve.paths import DataLayout, directory_url
from calve.settings.check import contradictions
from calve.settings.keys import KEYS, SECTIONS, Key, find_key, nearest_key, value_of
from calve.settings.secret import Properties, Secret, SecretUrl, looks_secret, mask_url
from calve.settings.tree import Section, Settings

CONFIG_NAMES: Final = ("calve.toml", "calve.yaml", "calve.yml")
DEFAULT: Final = "default"

_PREFIX: Final = "CALVE_"
_CONFIG_VARIABLE: Final = "CALVE_CONFIG"
# What tells a command where to work, and is no setting.
_NO_SETTINGS: Final = frozenset({_CONFIG_VARIABLE, "CALVE_SERVER", "CALVE_TOKEN"})
_FILE_SUFFIX: Final = "_file"
_POSTGRES: Final = re.compile(r"^postgres(?:ql)?(?:\+\w+)?://")
_SQLITE_FILE: Final = re.compile(r"^(sqlite(?:\+\w+)?:///)(?!:memory:|file:)([^/?][^?]*)")
_QUOTED: Final = re.compile(r"""(['"]).{2,}\1""")
_WORDS: Final = {
    "`int | null`": "a whole number",
    "`str | null`": "a text",
    "`int`": "a whole number",
    "`float`": "a number",
    "`bool`": "true or false",
    "`str`": "a text",
}

_S = TypeVar("_S", bound=Section)


class LoadedSettings(NamedTuple):
    """The settings, where each of them came from, and the file that was read, if any."""

    settings: Settings
    origins: Mapping[str, str]
    file: Path | None


class _Given(NamedTuple):
    """A value as somebody wrote it."""

    key: Key
    name: str
    value: object
    origin: str
    base: Path


class _BadValue(Exception):
    pass


def load_settings(
    *,
    config: Path | None = None,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> LoadedSettings:
    """Read the settings that hold in `directory` (the current one).

    `flags` are full key names with their values and win over everything else. `config` names the
    file; without it `calve.toml` or `calve.yaml` in the directory is read if there is one.
    """
    environ = os.environ if environ is None else environ
    directory = directory or _current_directory()
    file = _config_file(config, environ, directory)
    problems: list[str] = []
    given: dict[str, _Given] = {}
    for source in (
        _flatten(read_document(file), "", file, problems) if file else (),
        _from_environment(environ, directory, problems),
        _from_flags(flags or {}, directory, problems),
    ):
        given.update((item.name, item) for item in source)

    values: dict[str, object] = {key.name: key.default for key in KEYS.values()}
    origins = dict.fromkeys(KEYS, DEFAULT)
    for item in given.values():
        try:
            _set(values, item)
            origins[item.name] = item.origin
        except _BadValue as error:
            problems.append(f"{item.origin}: {item.name}: {error}")
    if not problems:
        _derive(values, origins, environ, directory)
        problems.extend(contradictions(values))
    _refuse(problems)
    return LoadedSettings(_build(Settings, values, ""), origins, file)


def environment_token() -> Secret | None:
    """The token that commands show to a service, as CALVE_TOKEN."""
    text = os.environ.get("CALVE_TOKEN", "").strip()
    return Secret(text) if text else None


def environment_server() -> str | None:
    """The service that commands ask, as CALVE_SERVER."""
    return os.environ.get("CALVE_SERVER") or None


def complete(settings: Settings) -> Settings:
    """Settings that were made by hand, with what follows from them filled in and checked."""
    values = {name: value_of(settings, name) for name in KEYS}
    origins = {name: DEFAULT if values[name] == KEYS[name].default else "given" for name in KEYS}
    directory = _current_directory()
    try:
        values["data"] = _path(str(settings.data), directory)
        for name, value in values.items():
            if isinstance(value, SecretUrl):
                values[name] = SecretUrl(_url(value.reveal(), directory))
    except _BadValue as error:
        raise InvalidSettings(f"the settings are not valid: {error}") from error
    _derive(values, origins, os.environ, directory)
    _refuse(list(contradictions(values)))
    return _build(Settings, values, "")


def _refuse(problems: list[str]) -> None:
    if problems:
        raise InvalidSettings(
            "\n".join(
                ["the settings are not valid", *(f"  {mask_url(line)}" for line in problems)]
            ),
            hint="`calve config show` lists every key with its value and origin",
        )


def _current_directory() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        raise NotFound(
            f"the current directory cannot be found: {error.strerror}",
            hint="it was deleted or moved, or is not yours to read; change to another one",
        ) from error


def _config_file(config: Path | None, environ: Mapping[str, str], directory: Path) -> Path | None:
    named = config or environ.get(_CONFIG_VARIABLE)
    if named:
        path = directory / named
        if not _is_there(path):
            raise NotFound(
                f"there is no configuration file {path}",
                hint="`calve config init` writes one; without any, the defaults hold",
            )
        return path
    found = [directory / name for name in CONFIG_NAMES if _is_there(directory / name)]
    if len(found) > 1:
        raise InvalidSettings(
            f"both {found[0].name} and {found[1].name} are in {directory}",
            hint="keep one, or name the one that counts with --config",
        )
    return found[0] if found else None


def _is_there(file: Path) -> bool:
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError as error:
        raise Denied(
            f"{file} cannot be looked for: {error.strerror}",
            hint="check the permissions of its directory, or name another file with --config",
        ) from error
    except OSError as error:
        raise InvalidSettings(f"{file} cannot be read: {error.strerror}") from error
    return True


def read_document(file: Path) -> dict[str, object]:
    """A TOML or YAML file as nested mappings."""
    try:
        # Some editors begin a file with a mark that is no part of the text.
        text = file.read_text("utf-8-sig")
    except PermissionError as error:
        raise Denied(f"{file} cannot be read", hint=f"check its permissions: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{file} cannot be read: {error}") from error
    return _parse_yaml(file, text) if file.suffix in {".yaml", ".yml"} else _parse_toml(file, text)


def _parse_toml(file: Path, text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettings(f"{file} is not valid TOML: {error}") from error


def _parse_yaml(file: Path, text: str) -> dict[str, object]:
    # Only those who write YAML pay for loading its parser.
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key that stands twice; YAML's own takes the last and says nothing."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if twice := next((key for key in keys if keys.count(key) > 1), None):
                raise yaml.MarkedYAMLError(None, None, f"{twice} is there twice", node.start_mark)
            return super().construct_mapping(node, deep)

    try:
        document = yaml.load(text, Loader)  # noqa: S506
    except yaml.YAMLError as error:
        # Not its own words, which quote the line: a secret may stand there.
        raise InvalidSettings(f"{file} is not valid YAML: {_yaml_problem(error)}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise InvalidSettings(f"{file} must hold sections with keys, as calve.toml does")
    return document


def _yaml_problem(error: Any) -> str:
    mark = getattr(error, "problem_mark", None)
    place = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
    problem = getattr(error, "problem", None) or type(error).__name__
    return f"{_QUOTED.sub('…', problem)}{place}"


def _flatten(
    table: Mapping[str, object], prefix: str, file: Path, problems: list[str]
) -> Iterator[_Given]:
    for part, value in table.items():
        name = f"{prefix}{part}"
        below = name in SECTIONS or ((key := find_key(name)) is not None and key.is_open)
        if below and isinstance(value, Mapping):
            yield from _flatten(value, f"{name}.", file, problems)
        elif name in SECTIONS:
            problems.append(f"{file.name}: {name}: is a section; write [{name}] and its keys")
        else:
            yield from _given(name, value, file.name, file.parent, problems)


def _from_environment(
    environ: Mapping[str, str], directory: Path, problems: list[str]
) -> Iterator[_Given]:
    for variable, text in sorted(environ.items()):
        if not variable.startswith(_PREFIX) or variable in _NO_SETTINGS:
            continue
        name = variable.removeprefix(_PREFIX).lower().replace("__", ".")
        yield from _from_text(name, text, variable, directory, problems)


def _from_flags(
    flags: Mapping[str, object], directory: Path, problems: list[str]
) -> Iterator[_Given]:
    for name, value in flags.items():
        origin = "--data" if name == "data" else f"--set {name}"
        if isinstance(value, str):
            yield from _from_text(name, value, origin, directory, problems)
        else:
            yield from _given(name, value, origin, directory, problems)


def _from_text(
    name: str, text: str, origin: str, directory: Path, problems: list[str]
) -> Iterator[_Given]:
    """A value given as text: numbers and truth values are read from it, an open key takes JSON."""
    key = KEYS.get(name)
    if key is None:
        yield from _given(name, text, origin, directory, problems)
    elif not key.is_open:
        yield from _given(name, _read_text(key, text), origin, directory, problems)
    else:
        try:
            table = msgspec.json.decode(text, type=dict[str, str | int | float | bool])
        except msgspec.DecodeError:
            problems.append(f"{origin}: {name}: must be a JSON object of names and values")
            return
        for part, value in table.items():
            yield from _given(f"{name}.{part}", value, origin, directory, problems)


def _read_text(key: Key, text: str) -> object:
    for kind in (int, float, bool):
        if key.holds(kind) or kind in get_args(key.kind):
            try:
                return msgspec.convert(text.strip(), kind, strict=False)
            except msgspec.ValidationError:
                continue
    return text


def _given(
    name: str, value: object, origin: str, base: Path, problems: list[str]
) -> Iterator[_Given]:
    """The value under its key; for `<secret>_file`, the content of that file under the secret's."""
    key = find_key(name)
    target = name.removesuffix(_FILE_SUFFIX)
    if target != name and (secret := _secret_key(target)):
        try:
            text = _path(str(value), base).read_text("utf-8-sig").strip()
            yield _Given(secret, target, text, f"{origin}: {name}", base)
        except (OSError, UnicodeDecodeError, _BadValue) as error:
            problems.append(f"{origin}: {name}: {error}")
    elif key is None:
        meant = nearest_key(name)
        problems.append(
            f"{origin}: {name}: unknown key" + (f"; did you mean {meant}?" if meant else "")
        )
    else:
        yield _Given(key, name, value, origin, base)


def _secret_key(name: str) -> Key | None:
    key = find_key(name)
    if key is None:
        return None
    return key if key.is_secret or (key.is_open and looks_secret(name)) else None


def _set(values: dict[str, object], item: _Given) -> None:
    if not item.key.is_open:
        values[item.name] = _convert(item)
        return
    held = values[item.key.name]
    assert isinstance(held, Properties)
    part = item.name.removeprefix(item.key.name).removeprefix(".")
    values[item.key.name] = Properties({**held, part: _property(item.value, part)})


def _property(value: object, part: str) -> str:
    if not part:
        raise _BadValue("is a table of names and values")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise _BadValue(f"must be a text, a number or true or false, not {_kind(value)}")


def _convert(item: _Given) -> object:
    key, value = item.key, item.value
    if key.holds(Path):
        if not isinstance(value, str | Path) or not str(value):
            raise _BadValue(f"must be a path, not {_kind(value)}")
        return _path(str(value), item.base)
    if key.is_secret:
        if not isinstance(value, str):
            raise _BadValue("must be a text")
        return SecretUrl(_url(value, item.base)) if key.holds(SecretUrl) else Secret(value)
    if get_origin(key.kind) is Literal and value not in get_args(key.kind):
        choices = ", ".join(str(choice) for choice in get_args(key.kind))
        raise _BadValue(f"{value!r} is not one of {choices}")
    try:
        return msgspec.convert(value, key.kind)
    except msgspec.ValidationError as error:
        raise _BadValue(f"must be {_expected(error)}, not {value!r}") from error


def _path(text: str, base: Path) -> Path:
    try:
        return Path(os.path.abspath(base / Path(text).expanduser()))
    except RuntimeError as error:
        raise _BadValue(f"{text!r} names a home directory that is not known") from error


def _url(text: str, base: Path) -> str:
    """The URL of a database under one name for each kind, and a file's with its whole path."""
    if file := _SQLITE_FILE.match(text):
        return f"{file[1]}{_path(file[2], base)}{text[file.end() :]}"
    return _POSTGRES.sub("postgresql://", text)


def _expected(error: msgspec.ValidationError) -> str:
    """What was expected, in a user's words instead of Python's."""
    text = str(error).partition(", got")[0].removeprefix("Expected ")
    for python, words in _WORDS.items():
        text = text.replace(python, words)
    return text


def _kind(value: object) -> str:
    return {dict: "a table", list: "a list", bool: "a truth value", int: "a number"}.get(
        type(value), f"{value!r}"
    )


def _derive(
    values: dict[str, object],
    origins: dict[str, str],
    environ: Mapping[str, str],
    directory: Path,
) -> None:
    """Fill in what follows from other settings."""
    data = Path(os.path.abspath(directory / str(values["data"])))
    layout = DataLayout(data)
    derived: dict[str, object] = {
        "data": data,
        "wal.path": layout.wal,
        "state.dsn": SecretUrl(f"sqlite:///{layout.state}"),
    }
    if origins["cache"] == DEFAULT:
        derived["cache"] = _user_cache(environ) / "calve"
    # A REST catalog's server chooses where tables lie, unless the user does.
    if values["catalog.type"] != "rest":
        derived["storage.dsn"] = directory_url(data)
    if values["catalog.type"] == "sql":
        derived["catalog.uri"] = SecretUrl(f"sqlite:///{layout.catalog}")
    for name, value in derived.items():
        if origins[name] == DEFAULT:
            values[name] = value
            if name not in {"data", "cache"}:
                origins[name] = f"{DEFAULT}, from data"


def _user_cache(environ: Mapping[str, str]) -> Path:
    """The platform's place for what can be fetched again."""
    named = environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named) and sys.platform != "darwin":
        return Path(named)
    try:
        home = Path.home()
    except RuntimeError as error:
        raise InvalidSettings(
            "cache: this user has no home directory to keep it in",
            hint="set HOME, or name a directory as `cache`",
        ) from error
    return home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"


def _build(section: type[_S], values: Mapping[str, object], prefix: str) -> _S:
    fields: dict[str, object] = {}
    for field in msgspec.structs.fields(section):
        name = prefix + field.name
        below = isinstance(field.type, type) and issubclass(field.type, Section)
        fields[field.name] = _build(field.type, values, f"{name}.") if below else values[name]
    return section(**fields)
