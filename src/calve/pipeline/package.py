"""What Spark's executors need to run tasks, as one archive: Calve and the packages it stands on.

Found from what is installed here, native libraries too, so that executors must have the same kind
of machine and the same Python, in its first two numbers. Spark itself they have.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final
from zipfile import ZIP_DEFLATED, ZipFile

import msgspec

from calve import errors
from calve.errors import InvalidRequest

_OWN: Final = "calve"
_PARTS: Final = frozenset({"aws"})
# What a task never loads, or what Spark brings along.
_LEFT_OUT: Final = re.compile(r"click|duckdb.*|sqlglot|pyspark|py4j|pandas", re.ASCII)
_DIRECTORIES_LEFT_OUT: Final = frozenset({"__pycache__", "tests", "include"})
_REQUIREMENT: Final = re.compile(
    r"\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?[^;]*(?:;(.*))?", re.ASCII
)
_EXTRA: Final = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""", re.ASCII)


class Package(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    bytes: int
    python: str
    packages: dict[str, str]  # and their versions


def build_package(path: Path) -> Package:
    """Write the archive; InvalidRequest if it cannot be written there.

    Another file is replaced; what is none, such as a device, never.
    """
    if not path.name or (path.exists() and not path.is_file()):
        raise InvalidRequest(
            f"{str(path)!r} is not a file", hint="name one with --output, such as executors.zip"
        )
    found = _needed()
    draft = path.with_name(f"{path.name}.tmp")
    try:
        with ZipFile(draft, "w", ZIP_DEFLATED, compresslevel=1) as archive:
            for file, name in _own_files():
                archive.write(file, name)
            for each in (found[name] for name in found if name != _OWN):
                for file, name in _files(each):
                    archive.write(file, name)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise InvalidRequest(
            f"{path} cannot be written: {error.strerror}", hint="name another place with --output"
        ) from error
    return Package(
        path=str(path.resolve()),
        bytes=path.stat().st_size,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        packages={name: each.version for name, each in sorted(found.items())},
    )


def _needed() -> dict[str, Distribution]:
    """Calve's own distribution and all that it requires, as far as it is installed."""
    found: dict[str, Distribution] = {}
    waiting = [(_OWN, _PARTS)]
    while waiting:
        name, extras = waiting.pop()
        key = _normal(name)
        if _LEFT_OUT.fullmatch(key) or (key in found and not extras):
            continue
        try:
            found[key] = distribution(name)
        except PackageNotFoundError:
            continue  # for another machine, or a part that is not installed
        waiting += [each for each in _requirements(found[key], extras) if each[0] not in found]
    return found


def _requirements(
    found: Distribution, extras: frozenset[str]
) -> Iterator[tuple[str, frozenset[str]]]:
    for line in found.requires or ():
        parsed = _REQUIREMENT.match(line)
        assert parsed is not None
        name, inner, condition = parsed.groups()
        wanted_by = _EXTRA.findall(condition or "")
        if not wanted_by or extras.intersection(map(_normal, wanted_by)):
            yield (
                _normal(name),
                frozenset(_normal(each) for each in (inner or "").split(",") if each),
            )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _own_files() -> Iterator[tuple[Path, str]]:
    """Calve as it runs here, which may be a checkout."""
    root = Path(errors.__file__).parent
    for file in sorted(root.rglob("*")):
        name = file.relative_to(root.parent)
        if file.is_file() and not _DIRECTORIES_LEFT_OUT.intersection(name.parts):
            yield file, name.as_posix()


def _files(found: Distribution) -> Iterator[tuple[Path, str]]:
    for name in found.files or ():
        # Programs lie outside.
        if ".." in name.parts or _DIRECTORIES_LEFT_OUT.intersection(name.parts):
            continue
        file = Path(str(found.locate_file(name)))
        if file.is_file():
            yield file, name.as_posix()
