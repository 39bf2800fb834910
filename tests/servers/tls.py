"""Certificates for proxies on loopback, from an authority that nobody else trusts."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import Final

import trustme

from calve.spark.java import find_java
from tests.servers.process import HOST

TRUST_STORE_PASSWORD: Final = "changeit"


class Authority:
    """A certificate authority, its public certificate as files for Python and for Java."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = trustme.CA()
        self._certificate = self._authority.issue_cert(HOST, "localhost")
        self.pem = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.pem))

    @property
    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._certificate.configure_cert(context)
        return context

    @property
    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.pem))

    def server_files(self) -> tuple[Path, Path]:
        """The certificate and its key, for servers that read them themselves."""
        certificate, key = self._directory / "server.pem", self._directory / "server.key"
        for number, blob in enumerate(self._certificate.cert_chain_pems):
            blob.write_to_path(str(certificate), append=number > 0)
        self._certificate.private_key_pem.write_to_path(str(key))
        return certificate, key

    def renew(self) -> bytes:
        """Have the authority sign another one, and replace the files; the certificate, as DER."""
        self._certificate = self._authority.issue_cert(HOST, "localhost")
        made = [self._directory / f".{name}.new" for name in ("server.pem", "server.key")]
        for number, blob in enumerate(self._certificate.cert_chain_pems):
            blob.write_to_path(str(made[0]), append=number > 0)
        self._certificate.private_key_pem.write_to_path(str(made[1]))
        for file in made:
            file.replace(self._directory / file.name[1:].removesuffix(".new"))
        return ssl.PEM_cert_to_DER_cert(self._certificate.cert_chain_pems[0].bytes().decode())

    def client_files(self, name: str) -> tuple[Path, Path]:
        """A certificate that says who a client is, and its key."""
        issued = self._authority.issue_cert(f"{name}@example.com", common_name=name)
        certificate, key = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(str(certificate))
        issued.private_key_pem.write_to_path(str(key))
        return certificate, key

    def java_trust_store(self) -> Path:
        store = self._directory / "trust.p12"
        if not store.exists():
            keytool = find_java().executable.with_name("keytool")
            subprocess.run(
                [
                    *(keytool, "-importcert", "-noprompt", "-alias", "tests", "-file", self.pem),
                    *("-keystore", store, "-storetype", "PKCS12"),
                    *("-storepass", TRUST_STORE_PASSWORD),
                ],
                check=True,
                capture_output=True,
                timeout=60,
            )
        return store
