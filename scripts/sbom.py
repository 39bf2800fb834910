"""Writes what an installation of Calve is made of: `.build/calve.cdx.json`, in CycloneDX 1.6.

From requirements.lock and Spark's pinned jars, with the licences that installed packages state.
What every installation has is required, what only some of its parts have optional; what is used to
develop Calve is not in it. The same inputs give the same file. Nothing is looked up anywhere.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

ROOT: Final = Path(__file__).resolve().parent.parent
LOCK: Final = ROOT / "requirements.lock"
PROJECT: Final = ROOT / "pyproject.toml"
JARS: Final = ROOT / "src" / "calve" / "spark" / "jars.toml"
TARGET: Final = ROOT / ".build" / "calve.cdx.json"
OWN: Final = "calve (pyproject.toml)"
_PINNED: Final = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^ ;\\]+)")
_VIA: Final = re.compile(r"^    #(?: via)? +(\S.*)$")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Pinned:
    """A package of the lock file, and what asks for it."""

    name: str
    version: str
    via: frozenset[str]


def main() -> int:
    packages = shipped(pinned(LOCK.read_text("utf-8")))
    made = bom(packages, base_names(), jars())
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(JsonV1Dot6(made).output_as_string(indent=1) + "\n", encoding="utf-8")
    print(f"sbom: {len(made.components)} components in {TARGET.relative_to(ROOT)}")
    return 0


def pinned(lock: str) -> list[Pinned]:
    found: list[tuple[str, str, set[str]]] = []
    for line in lock.splitlines():
        if match := _PINNED.match(line):
            found.append((canonical(match[1]), match[2], set()))
        elif found and (asked := _VIA.match(line)):
            found[-1][2].add(asked[1].strip())
    return [Pinned(name, version, frozenset(via)) for name, version, via in found]


def shipped(packages: list[Pinned]) -> list[Pinned]:
    """Those that Calve or something shipped asks for."""
    reached = {OWN}
    while more := {each.name for each in packages if each.via & reached} - reached:
        reached |= more
    return [each for each in packages if each.name in reached]


def required(packages: list[Pinned], base: set[str]) -> set[str]:
    """What every installation has: what the base asks for, and so on."""
    reached = set(base)
    while more := {each.name for each in packages if each.via & reached} - reached:
        reached |= more
    return reached


def base_names() -> set[str]:
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    matches = (_NAME.match(each) for each in project["dependencies"])
    return {canonical(match[0]) for match in matches if match}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def jars() -> list[dict[str, str]]:
    found: list[dict[str, str]] = tomllib.loads(JARS.read_text("utf-8"))["jar"]
    return found


def bom(packages: list[Pinned], base: set[str], pinned_jars: list[dict[str, str]]) -> Bom:
    always = required(packages, base)
    components = [
        *(python_component(each, is_required=each.name in always) for each in packages),
        *map(jar_component, pinned_jars),
    ]
    own = Component(
        name="calve",
        version=metadata.version("calve"),
        type=ComponentType.APPLICATION,
        purl=PackageURL("pypi", name="calve", version=metadata.version("calve")),
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
        bom_ref="calve",
    )
    content = "\n".join(sorted(str(each.purl) for each in components))
    made = Bom(
        components=components,
        metadata=BomMetaData(component=own, timestamp=datetime(1980, 1, 1, tzinfo=UTC)),
        serial_number=uuid5(NAMESPACE_URL, content),
    )
    # A package may be there twice, in a version for older Pythons and one for newer.
    for package, component in zip(packages, components, strict=False):
        for asking, each in zip(packages, components, strict=False):
            if asking.name in package.via:
                made.register_dependency(each, [component])
        if OWN in package.via:
            made.register_dependency(own, [component])
    made.register_dependency(own, components[len(packages) :])
    return made


def python_component(package: Pinned, *, is_required: bool) -> Component:
    return Component(
        name=package.name,
        version=package.version,
        type=ComponentType.LIBRARY,
        scope=ComponentScope.REQUIRED if is_required else ComponentScope.OPTIONAL,
        purl=PackageURL("pypi", name=package.name, version=package.version),
        licenses=[LicenseFactory().make_from_string(each) for each in licence_of(package.name)],
        bom_ref=f"pypi/{package.name}@{package.version}",
    )


def licence_of(name: str) -> Iterator[str]:
    """As the installed package states it in one line; a whole text is nobody's name."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return  # for other systems than this one
    stated = next((about[key] for key in ("License-Expression", "License") if key in about), "")
    if stated and "\n" not in stated and len(stated) < 100:
        yield stated


def jar_component(jar: dict[str, str]) -> Component:
    return Component(
        group=jar["organisation"],
        name=jar["module"],
        version=jar["version"],
        type=ComponentType.LIBRARY,
        scope=ComponentScope.OPTIONAL,
        purl=PackageURL("maven", jar["organisation"], jar["module"], jar["version"]),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=jar["sha256"])],
        bom_ref=f"maven/{jar['organisation']}/{jar['module']}@{jar['version']}",
    )


if __name__ == "__main__":
    sys.exit(main())
