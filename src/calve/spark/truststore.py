"""A CA of the user's own for Spark: Java reads no PEM files, so its own trust store is extended."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from calve.errors import InvalidSettings, MissingPart, NotFound
from calve.paths import make_private
from calve.settings import Settings
from calve.spark.java import find_java

CA_BUNDLE: Final = "ssl.cabundle"
# Not a secret: it protects nothing, and every Java has the same.
STORE_PASSWORD: Final = "changeit"  # noqa: S105

_CERTIFICATE: Final = re.compile(
    r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL
)


def trust_options(settings: Settings, directory: Path) -> list[str]:
    """The Java options with which Spark trusts the CA that the catalog's properties name."""
    bundle = settings.catalog.properties.get(CA_BUNDLE)
    if not bundle:
        return []
    store = _extended_store(Path(bundle), directory)
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        f"-Djavax.net.ssl.trustStorePassword={STORE_PASSWORD}",
    ]


def _extended_store(bundle: Path, directory: Path) -> Path:
    certificates = _certificates(bundle)
    digest = hashlib.sha256("".join(certificates).encode()).hexdigest()[:16]
    store = directory / f"truststore-{digest}"
    if not store.exists():
        make_private(directory)
        with tempfile.TemporaryDirectory(dir=directory) as work:
            made = _made_store(certificates, Path(work))
            made.replace(store)
    return store


def _certificates(bundle: Path) -> list[str]:
    try:
        text = bundle.read_text("ascii")
    except FileNotFoundError as error:
        raise NotFound(
            f"catalog.properties.{CA_BUNDLE}: there is no file {bundle}", hint="name the CA's file"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"catalog.properties.{CA_BUNDLE}: {error}") from error
    found = _CERTIFICATE.findall(text)
    if not found:
        raise InvalidSettings(
            f"catalog.properties.{CA_BUNDLE}: {bundle} holds no certificate",
            hint="name a PEM file that begins with -----BEGIN CERTIFICATE-----",
        )
    return found


def _made_store(certificates: list[str], work: Path) -> Path:
    home = find_java().executable.resolve().parent.parent
    keytool, defaults = home / "bin" / "keytool", home / "lib" / "security" / "cacerts"
    if not keytool.exists() or not defaults.exists():
        raise MissingPart(
            f"the Java in {home} has no keytool or no cacerts",
            hint="install a complete Java 17 or newer; it is needed to trust a CA of your own",
        )
    store = work / "store"
    shutil.copyfile(defaults, store)
    for number, certificate in enumerate(certificates):
        file = work / f"{number}.pem"
        file.write_text(certificate)
        run = subprocess.run(
            [
                *(keytool, "-importcert", "-noprompt", "-alias", f"calve-{number}"),
                *("-file", file, "-keystore", store, "-storepass", STORE_PASSWORD),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            raise InvalidSettings(
                f"catalog.properties.{CA_BUNDLE}: Java refuses a certificate: {run.stdout.strip()}"
            )
    return store
