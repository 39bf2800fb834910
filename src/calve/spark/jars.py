"""The jars that Spark needs: fetched once per user, verified each time they are used.

A jar appears in the cache under its own name only when it is whole and its SHA-256 is the pinned
one; a download that was cut off leaves nothing there.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import importlib.util
import os
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

import msgspec

from calve.errors import Corruption, Denied, MissingPart, Unavailable
from calve.spark.java import find_java

_POLL_SECONDS: Final = 0.1
_FETCH_SECONDS_MAX: Final = 900
_REPORT_LINES: Final = 12

Progress = Callable[[int], None]


class Jar(msgspec.Struct, frozen=True):
    organisation: str
    module: str
    version: str
    bytes: int
    sha256: str
    needed_by: str | None = None

    @property
    def file_name(self) -> str:
        return f"{self.module}-{self.version}.jar"


def pinned_jars() -> list[Jar]:
    text = (importlib.resources.files("calve.spark") / "jars.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text)["jar"], list[Jar])


def needed_jars(kinds: AbstractSet[str]) -> list[Jar]:
    """The jars for lakes of these kinds of catalog and store."""
    return [jar for jar in pinned_jars() if jar.needed_by is None or jar.needed_by in kinds]


class JarCache:
    """The directory of one user in which the jars lie."""

    def __init__(self, cache: Path) -> None:
        self.directory = cache / "jars"

    def path(self, jar: Jar) -> Path:
        return self.directory / jar.file_name

    def verified_paths(self, jars: Iterable[Jar]) -> list[Path]:
        """The jars' files, after their content was checked."""
        return [self._verified(jar) for jar in jars]

    def is_whole(self, jar: Jar) -> bool:
        path = self.path(jar)
        return path.is_file() and _sha256(path) == jar.sha256

    def missing(self, jars: Iterable[Jar]) -> list[Jar]:
        """What has to be fetched: jars that are not there, or not as they were pinned."""
        return [jar for jar in jars if not self.is_whole(jar)]

    def fetch(self, jar: Jar, *, ivy_settings: Path | None = None, progress: Progress) -> Path:
        """Download a jar with the Ivy that comes inside PySpark; `progress` is told the bytes."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            # Beside its final place, so that the move is a rename; Ivy's own cache goes with it.
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=self.directory) as work:
                fetched = _run_ivy(jar, Path(work), ivy_settings, progress)
                _check(fetched, jar)
                fetched.replace(self.path(jar))
        except PermissionError as error:
            raise Denied(
                f"the cache {self.directory} cannot be written",
                hint="change its permissions, or name another directory as `cache`",
            ) from error
        return self.path(jar)

    def _verified(self, jar: Jar) -> Path:
        path = self.path(jar)
        if not path.is_file():
            raise MissingPart(f"{jar.file_name} has not been fetched", hint="run `calve setup`")
        _check(path, jar)
        return path


def spark_home() -> Path:
    """Where PySpark is installed, found without loading it."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise MissingPart(
            "Spark is not installed with this Calve", hint="run `pip install 'calve[spark]'`"
        )
    return Path(found.origin).parent


def _run_ivy(jar: Jar, work: Path, ivy_settings: Path | None, progress: Progress) -> Path:
    target = work / jar.file_name
    ivy = next(spark_home().glob("jars/ivy-*.jar"), None)
    if ivy is None:
        raise Corruption("PySpark's own Ivy is missing", hint="reinstall `calve[spark]`")
    command = [
        *(str(find_java().executable), "-jar", str(ivy), "-cache", str(work / "ivy")),
        *("-dependency", jar.organisation, jar.module, jar.version, "-confs", "default"),
        *("-notransitive", "-retrieve", str(work / "[artifact]-[revision].[ext]")),
        *(("-settings", str(ivy_settings)) if ivy_settings else ()),
    ]
    report = work / "report.txt"
    with (
        report.open("w") as output,
        subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        ) as process,
    ):
        _wait(process, work, progress)
    if process.returncode or not target.is_file():
        raise Unavailable(
            f"{jar.file_name} could not be fetched:\n{_last_lines(report)}",
            hint="check the network; behind a mirror, name an Ivy settings file in "
            '[spark.conf] "spark.jars.ivySettings"; then run `calve setup` again',
        )
    return target


def _wait(process: subprocess.Popen[bytes], work: Path, progress: Progress) -> None:
    """Wait until the process ends, telling how much it has written; it never outlives us."""
    try:
        for _ in range(int(_FETCH_SECONDS_MAX / _POLL_SECONDS)):
            try:
                process.wait(_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                progress(_bytes_of_largest(work / "ivy"))
            else:
                return
    finally:
        if process.poll() is None:
            process.kill()


def _bytes_of_largest(directory: Path) -> int:
    sizes = [0]
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(root, name)).st_size)  # noqa: PTH116, PTH118
            except FileNotFoundError:
                continue  # Ivy renames its partial files.
    return max(sizes)


def _last_lines(report: Path) -> str:
    lines = [line.strip() for line in report.read_text("utf-8", "replace").splitlines()]
    telling = [line for line in lines if "::::" not in line and line.strip(".: ")]
    return "\n".join(f"  {line[:200]}" for line in telling[-_REPORT_LINES:])


def _check(path: Path, jar: Jar) -> None:
    actual = _sha256(path)
    if actual != jar.sha256:
        raise Corruption(
            f"{path} is not the jar that was pinned: its SHA-256 is {actual}, "
            f"expected {jar.sha256}",
            hint="run `calve setup`, which fetches it again; if that does not help, the source "
            "of your packages serves something else",
            context={"file": str(path)},
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
