"""A report of a machine's state for those who help: plain files in a zip, secrets masked."""

from __future__ import annotations

import importlib.metadata
import platform
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import msgspec

from calve import __version__
from calve.doctor import Check
from calve.errors import Denied
from calve.paths import DataLayout
from calve.settings import LoadedSettings, hidden_texts, mask_texts
from calve.settings.render import rows

_LOG_BYTES_MAX: Final = 1_000_000


def write_bundle(path: Path, loaded: LoadedSettings, checks: Sequence[Check]) -> None:
    hidden = hidden_texts(loaded.settings)
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
            for name, text in _files(loaded, checks).items():
                bundle.writestr(name, mask_texts(text, hidden))
    except OSError as error:
        raise Denied(f"{path} cannot be written: {error.strerror}") from error


def _files(loaded: LoadedSettings, checks: Sequence[Check]) -> dict[str, str]:
    settings = {key: {"value": value, "origin": origin} for key, value, origin in rows(loaded)}
    files = {
        "doctor.json": _json([asdict(check) for check in checks]),
        "settings.json": _json(settings),
        "machine.json": _json(_machine()),
        "packages.txt": "\n".join(_packages()) + "\n",
    }
    log = DataLayout(loaded.settings.data).spark_log
    if log.is_file():
        files["spark.log"] = log.read_bytes()[-_LOG_BYTES_MAX:].decode("utf-8", "replace")
    return files


def _machine() -> dict[str, str]:
    return {
        "calve": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
    }


def _packages() -> list[str]:
    found = importlib.metadata.distributions()
    return sorted(f"{each.metadata['Name']}=={each.version}" for each in found)


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
