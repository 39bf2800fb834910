"""The servers that are made of jars: fetched once per user, verified each time they are used.

`jars.toml` pins every jar of every server by its SHA-256; `pin.py` writes that file. A server
appears in the cache under its own name only when it is whole.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

import msgspec

from calve.errors import Corruption, Unavailable
from calve.spark.jars import spark_home
from calve.spark.java import find_java
from tests.servers.process import servers_cache

_PINS: Final = Path(__file__).with_name("jars.toml")
_FETCH_SECONDS_MAX: Final = 240
_REPORT_LINES: Final = 3
_HINT: Final = (
    "check the network; behind a mirror, name its Ivy settings in CALVE_TEST_IVY_SETTINGS"
)
_MAVEN: Final = "http://ant.apache.org/ivy/maven"
RETRIEVE_PATTERN: Final = "[artifact]-[revision](-[classifier]).[ext]"

# The versions are pinned, so neither a POM nor a listing of versions has anything to tell; asking
# for them takes six times as long. The content is checked by its SHA-256, which is stronger than
# the checksum files.
_IVY_SETTINGS: Final = """\
<ivysettings>
  <settings defaultResolver="public"/>
  <property name="ivy.checksums" value=""/>
  <resolvers>
    <ibiblio name="public" m2compatible="true" usepoms="false" useMavenMetadata="false"/>
  </resolvers>
</ivysettings>
"""


class ServerJar(msgspec.Struct, frozen=True, omit_defaults=True):
    organisation: str
    module: str
    version: str
    sha256: str
    classifier: str = ""

    @property
    def file_name(self) -> str:
        tail = f"-{self.classifier}" if self.classifier else ""
        return f"{self.module}-{self.version}{tail}.jar"


@functools.cache
def pinned(server: str) -> tuple[ServerJar, ...]:
    servers = tomllib.loads(_PINS.read_text("utf-8"))
    return msgspec.convert(servers[server]["jars"], tuple[ServerJar, ...])


@functools.cache
def class_path(server: str) -> str:
    """The server's jars, installed if this is the first use, as Java wants them named."""
    jars = pinned(server)
    home = _home(server, jars)
    with _only_installer(server):
        if not home.is_dir():
            _install(jars, home)
    for jar in jars:
        _check(home / jar.file_name, jar)
    return os.pathsep.join(str(home / jar.file_name) for jar in jars)


def _home(server: str, jars: Sequence[ServerJar]) -> Path:
    """Named for the pins too, so that a changed list is another installation."""
    digest = hashlib.sha256("".join(jar.sha256 for jar in jars).encode()).hexdigest()
    return servers_cache() / f"{server}-{digest[:12]}"


@contextmanager
def _only_installer(server: str) -> Iterator[None]:
    """Of two test runs that start at once, the second waits and finds the work done."""
    servers_cache().mkdir(parents=True, exist_ok=True)
    with (servers_cache() / f"{server}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(jars: Sequence[ServerJar], home: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=home.parent) as work:
        fetched = Path(work, "jars")
        fetch(jars, Path(work), fetched)
        for jar in jars:
            _check(fetched / jar.file_name, jar)
        fetched.rename(home)


def fetch(jars: Sequence[ServerJar], work: Path, target: Path) -> None:
    """Download all the jars in one run of the Ivy that comes inside PySpark."""
    order, settings = work / "ivy.xml", work / "settings.xml"
    order.write_bytes(_ivy_order(jars))
    settings.write_text(_IVY_SETTINGS)
    run_ivy(
        [
            *("-settings", str(_mirror_settings() or settings), "-ivy", str(order)),
            *("-cache", str(work / "ivy"), "-confs", "default"),
            *("-retrieve", str(target / RETRIEVE_PATTERN)),
        ]
    )


def _mirror_settings() -> Path | None:
    """Whoever reaches packages through a mirror only names an Ivy settings file here."""
    named = os.environ.get("CALVE_TEST_IVY_SETTINGS")
    return Path(named) if named else None


def _ivy_order(jars: Sequence[ServerJar]) -> bytes:
    module = ET.Element("ivy-module", {"version": "2.0", "xmlns:m": _MAVEN})
    ET.SubElement(module, "info", {"organisation": "calve", "module": "test-servers"})
    configurations = ET.SubElement(module, "configurations")
    ET.SubElement(configurations, "conf", {"name": "default"})
    dependencies = ET.SubElement(module, "dependencies")
    modules = dict.fromkeys((jar.organisation, jar.module, jar.version) for jar in jars)
    for organisation, name, version in modules:
        place = {"org": organisation, "name": name, "rev": version}
        how = {"transitive": "false", "conf": "default->*"}
        dependency = ET.SubElement(dependencies, "dependency", place | how)
        for jar in jars:
            if (jar.organisation, jar.module, jar.version) == (organisation, name, version):
                ET.SubElement(dependency, "artifact", _artifact(jar))
    return ET.tostring(module)


def _artifact(jar: ServerJar) -> dict[str, str]:
    plain = {"name": jar.module, "type": "jar", "ext": "jar"}
    return plain | ({"m:classifier": jar.classifier} if jar.classifier else {})


def run_ivy(arguments: Sequence[str]) -> None:
    ivy = next(spark_home().glob("jars/ivy-*.jar"))
    command = [str(find_java().executable), "-jar", str(ivy), *arguments]
    try:
        run = subprocess.run(
            command,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_FETCH_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable("a test server could not be fetched in time", hint=_HINT) from error
    if run.returncode or "UNRESOLVED DEPENDENCIES" in run.stdout:
        lines = [line.strip(": \t") for line in (run.stdout + run.stderr).splitlines()]
        telling = [line for line in lines if "not found" in line or "rror" in line]
        report = "\n".join(f"  {line[:200]}" for line in telling[-_REPORT_LINES:])
        raise Unavailable(f"a test server could not be fetched:\n{report}", hint=_HINT)


def _check(path: Path, jar: ServerJar) -> None:
    if not path.is_file():
        raise Corruption(f"{path} is missing", hint=f"remove {path.parent}")
    if (actual := sha256(path)) != jar.sha256:
        raise Corruption(
            f"{path} is not the jar that was pinned: its SHA-256 is {actual}",
            hint=f"remove {path.parent}; it is fetched again",
        )


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
