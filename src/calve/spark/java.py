"""Finds a Java that can run Spark. Needs nothing but the standard library: setup asks it first."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from calve.errors import MissingPart

MAJOR_MIN: Final = 17

_INSTALL_HINT: Final = (
    "install Java 17 or newer: `sudo apt-get install openjdk-17-jre-headless` (Debian, Ubuntu), "
    "`sudo dnf install java-21-openjdk-headless` (Fedora), `brew install openjdk@17` (macOS); "
    "or point JAVA_HOME at one"
)
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True, slots=True)
class Java:
    executable: Path
    version: int


def find_java() -> Java:
    """The Java that Spark will use: of JAVA_HOME if that is set, else the first on the path."""
    executable = _executable()
    try:
        run = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingPart(f"{executable} does not run: {error}", hint=_INSTALL_HINT) from error
    found = _VERSION.search(run.stderr + run.stdout)
    if run.returncode or not found:
        raise MissingPart(f"{executable} is not a working Java", hint=_INSTALL_HINT)
    java = Java(executable, int(found[1]))
    if java.version < MAJOR_MIN:
        raise MissingPart(
            f"Java {java.version} ({executable}) is too old, Spark needs {MAJOR_MIN} or newer",
            hint=_INSTALL_HINT,
        )
    return java


def _executable() -> Path:
    if home := os.environ.get("JAVA_HOME"):
        executable = Path(home, "bin", "java")
        if not executable.exists():
            raise MissingPart(
                f"JAVA_HOME is {home}, which has no bin/java",
                hint=f"unset JAVA_HOME, or {_INSTALL_HINT}",
            )
        return executable
    if found := shutil.which("java"):
        return Path(found)
    raise MissingPart("there is no Java on this machine", hint=_INSTALL_HINT)
