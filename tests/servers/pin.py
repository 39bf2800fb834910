"""Writes `jars.toml`: resolves the servers' dependencies and pins what was found by hash.

    python -m tests.servers.pin

For whoever changes a version below. Needs the network and some minutes; read the difference
before committing it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from tests.servers.jars import RETRIEVE_PATTERN, ServerJar, run_ivy, sha256

_JETTY: Final = "12.1.1"
_ICEBERG: Final = "1.11.0"
_HADOOP: Final = "3.4.1"
_TARGET: Final = Path(__file__).with_name("jars.toml")


@dataclass(frozen=True, slots=True)
class Root:
    organisation: str
    module: str
    version: str
    classifiers: tuple[str, ...] = ("",)
    transitive: bool = True


@dataclass(frozen=True, slots=True)
class Tree:
    roots: tuple[Root, ...]
    excluded_organisations: tuple[str, ...] = ()


TREES: Final = {
    "s3proxy": Tree(
        roots=(Root("org.gaul", "s3proxy", "4.1.0"),),
        # Clients of other stores, which the file system back end never loads.
        excluded_organisations=(
            *("com.azure", "com.google.cloud", "com.google.protobuf", "io.grpc"),
            *("com.github.openstack4j.core", "com.github.openstack4j.core.connectors"),
            *("com.squareup.okhttp3", "org.apache.sshd", "io.prometheus", "com.github.fge"),
        ),
    ),
    "rest-catalog": Tree(
        roots=(
            Root("org.apache.iceberg", "iceberg-core", _ICEBERG, classifiers=("", "tests")),
            Root("org.apache.iceberg", "iceberg-aws", _ICEBERG),
            Root("org.apache.iceberg", "iceberg-aws-bundle", _ICEBERG),
            Root("org.eclipse.jetty.ee10", "jetty-ee10-servlet", _JETTY),
            Root("org.eclipse.jetty", "jetty-xml", _JETTY),
            Root("org.eclipse.jetty.compression", "jetty-compression-server", _JETTY),
            Root("org.eclipse.jetty.compression", "jetty-compression-gzip", _JETTY),
            Root("org.xerial", "sqlite-jdbc", "3.50.3.0"),
            Root("org.postgresql", "postgresql", "42.7.7"),
            Root("org.slf4j", "slf4j-simple", "2.0.17"),
            Root("org.apache.hadoop", "hadoop-client-api", _HADOOP, transitive=False),
            Root("org.apache.hadoop", "hadoop-client-runtime", _HADOOP),
        ),
    ),
}


def main() -> None:
    text = "# Written by `python -m tests.servers.pin`.\n"
    for server, tree in TREES.items():
        lines = "".join(f"  {_inline(jar)},\n" for jar in resolve(tree))
        text += f"\n[{server}]\njars = [\n{lines}]\n"
    _TARGET.write_text(text, "utf-8")


def resolve(tree: Tree) -> list[ServerJar]:
    with tempfile.TemporaryDirectory() as work:
        order, cache, jars = Path(work, "ivy.xml"), Path(work, "ivy"), Path(work, "jars")
        order.write_text(_order(tree))
        run_ivy(
            [
                *("-ivy", str(order), "-cache", str(cache), "-confs", "default"),
                *("-retrieve", str(jars / RETRIEVE_PATTERN)),
            ]
        )
        found = list(_artifacts(cache / "calve-pin-default.xml"))
    names = [jar.file_name for jar in found]
    assert len(set(names)) == len(names), "two jars of one file name would hide each other"
    return sorted(found, key=lambda jar: (jar.organisation, jar.file_name))


def _order(tree: Tree) -> str:
    roots = "".join(map(_dependency, tree.roots))
    excludes = "".join(f'<exclude org="{name}"/>' for name in tree.excluded_organisations)
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="calve" module="pin"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{roots}{excludes}</dependencies></ivy-module>"
    )


def _dependency(root: Root) -> str:
    artifacts = "".join(
        f'<artifact name="{root.module}" type="jar" ext="jar"'
        + (f' m:classifier="{classifier}"/>' if classifier else "/>")
        for classifier in root.classifiers
    )
    return (
        f'<dependency org="{root.organisation}" name="{root.module}" rev="{root.version}"'
        f' transitive="{str(root.transitive).lower()}" conf="default->master,runtime">'
        f"{artifacts}</dependency>"
    )


def _artifacts(report: Path) -> Iterator[ServerJar]:
    for module in ET.parse(report).getroot().iter("module"):
        for revision in module.iter("revision"):
            if revision.get("evicted") is None:
                yield from (
                    _jar(module, revision, artifact) for artifact in revision.iter("artifact")
                )


def _jar(module: ET.Element, revision: ET.Element, artifact: ET.Element) -> ServerJar:
    assert artifact.attrib["name"] == module.attrib["name"]
    assert artifact.attrib["ext"] == "jar"
    return ServerJar(
        organisation=module.attrib["organisation"],
        module=module.attrib["name"],
        version=revision.attrib["name"],
        sha256=sha256(Path(artifact.attrib["location"])),
        classifier=artifact.get("extra-1.m.classifier", ""),
    )


def _inline(jar: ServerJar) -> str:
    fields: Sequence[str] = ("organisation", "module", "version", "classifier", "sha256")
    pairs = [f'{name} = "{getattr(jar, name)}"' for name in fields if getattr(jar, name)]
    return "{ " + ", ".join(pairs) + " }"


if __name__ == "__main__":
    main()
