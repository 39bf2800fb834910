"""Spark's jars: fetched once, whole or not at all, and checked each time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from calve.errors import Corruption, Denied, MissingPart, Unavailable
from calve.settings import load_settings
from calve.spark import jars as jars_module
from calve.spark.jars import Jar, JarCache, needed_jars

IVY_SETTINGS = """
<ivysettings>
  <settings defaultResolver="here"/>
  <resolvers>
    <filesystem name="here"><artifact pattern="{source}/[module]-[revision].[ext]"/></filesystem>
  </resolvers>
</ivysettings>
"""


def embedded_jars() -> list[Jar]:
    return needed_jars({"sqlite"})


@pytest.fixture(scope="module")
def filled() -> Path:
    """The user's own cache, which `make setup` has filled."""
    cache = load_settings(environ={}).settings.cache
    assert cache is not None
    return cache / "jars"


@pytest.fixture
def mirror(filled: Path, tmp_path: Path) -> Path:
    """A package source on this disk with the real jars, and the Ivy settings that name it."""
    source = tmp_path / "mirror"
    source.mkdir()
    for jar in embedded_jars():
        (source / jar.file_name).symlink_to(filled / jar.file_name)
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(IVY_SETTINGS.format(source=source))
    return settings


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[JarCache]:
    cache = JarCache(tmp_path / "cache")
    yield cache
    # Whatever happened, nothing half made is left.
    names = {jar.file_name for jar in embedded_jars()}
    assert {path.name for path in cache.directory.glob("*")} | {
        p.name for p in cache.directory.glob(".*")
    } <= names


def small() -> Jar:
    return min(embedded_jars(), key=lambda jar: jar.bytes)


def test_a_jar_is_fetched_checked_and_put_in_place(cache: JarCache, mirror: Path) -> None:
    seen: list[int] = []
    path = cache.fetch(small(), ivy_settings=mirror, progress=seen.append)
    assert path == cache.path(small())
    assert path.stat().st_size == small().bytes
    assert cache.is_whole(small())


def test_a_download_that_is_not_the_pinned_one_is_refused(cache: JarCache, mirror: Path) -> None:
    served = mirror.parent / "mirror" / small().file_name
    served.unlink()
    served.write_bytes(b"something else")
    with pytest.raises(Corruption) as refused:
        cache.fetch(small(), ivy_settings=mirror, progress=lambda _: None)
    assert small().file_name in str(refused.value)
    assert small().sha256 in str(refused.value)
    assert not cache.path(small()).exists()


def test_a_source_without_the_jar_is_unavailable(cache: JarCache, mirror: Path) -> None:
    (mirror.parent / "mirror" / small().file_name).unlink()
    with pytest.raises(Unavailable) as refused:
        cache.fetch(small(), ivy_settings=mirror, progress=lambda _: None)
    assert "calve setup" in str(refused.value)


def test_a_fetch_that_is_killed_leaves_nothing_that_counts(
    tmp_path: Path, mirror: Path, filled: Path
) -> None:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom calve.spark import jars\n"
        "real = jars._check\n"
        "def killed(path, jar):\n    real(path, jar)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "jars._check = killed\n"
        "jar = min(jars.needed_jars({'sqlite'}), key=lambda jar: jar.bytes)\n"
        "jars.JarCache(Path(sys.argv[1])).fetch(jar, ivy_settings=Path(sys.argv[2]), progress=print)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, tmp_path, mirror], check=False, timeout=120)
    assert run.returncode == -9
    cache = JarCache(tmp_path)
    assert small() in cache.missing(embedded_jars())
    cache.fetch(small(), ivy_settings=mirror, progress=lambda _: None)
    assert cache.is_whole(small())
    shutil.rmtree(cache.directory)


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "grown"])
def test_a_damaged_jar_is_named_and_fetched_again(
    cache: JarCache, mirror: Path, filled: Path, damage: str
) -> None:
    content = bytearray((filled / small().file_name).read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    cache.directory.mkdir(parents=True)
    cache.path(small()).write_bytes(
        {
            "flipped": bytes(content),
            "cut": bytes(content[:-1]),
            "empty": b"",
            "grown": bytes(content) + b"x",
        }[damage]
    )
    for jar in embedded_jars():
        if jar != small():
            cache.path(jar).symlink_to(filled / jar.file_name)
    with pytest.raises(Corruption) as refused:
        cache.verified_paths(embedded_jars())
    assert str(cache.path(small())) in str(refused.value)
    assert cache.missing(embedded_jars()) == [small()]
    cache.fetch(small(), ivy_settings=mirror, progress=lambda _: None)
    assert cache.missing(embedded_jars()) == []


def test_missing_jars_say_what_to_run(cache: JarCache) -> None:
    with pytest.raises(MissingPart, match="has not been fetched"):
        cache.verified_paths(embedded_jars())


def test_a_cache_that_cannot_be_written_is_denied(mirror: Path) -> None:
    # Nobody, not even root, can make a directory there.
    with pytest.raises(Denied, match="cannot be written"):
        JarCache(Path("/sys/calve")).fetch(small(), ivy_settings=mirror, progress=lambda _: None)


def test_a_fetch_that_hangs_is_ended(
    cache: JarCache, mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars_module, "_FETCH_SECONDS_MAX", 0.1)
    with pytest.raises(Unavailable):
        cache.fetch(small(), ivy_settings=mirror, progress=lambda _: None)
