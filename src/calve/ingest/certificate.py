"""The certificate that all doors of a process show, checked before any of them opens.

Whoever renews it replaces its files; the doors are then given what the files hold.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final, NamedTuple

from calve.errors import InvalidSettings
from calve.protocol.trust import load_pair

if TYPE_CHECKING:
    from pathlib import Path

    from calve.settings.tree import IngestSettings

# Of TLS 1.2, those with which a stolen key opens nothing that was said before; 1.3 has no others.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"


class Certificate(NamedTuple):
    """What is in the files, in PEM; `client_ca` signs the certificates that clients must show."""

    cert: bytes
    key: bytes
    client_ca: bytes | None = None

    def context(self) -> ssl.SSLContext:
        """For doors whose TLS is Python's; ssl.SSLError or ValueError if it cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(_CIPHERS)
        load_pair(context, self.cert, self.key)
        if self.client_ca is not None:
            context.load_verify_locations(cadata=self.client_ca.decode("ascii", errors="ignore"))
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def certificate_of(settings: IngestSettings) -> Certificate | None:
    """None without TLS; InvalidSettings if the files are not a certificate and its key."""
    cert, key, client_ca = settings.tls_cert, settings.tls_key, settings.tls_client_ca
    if cert is None and key is None:
        if client_ca is not None:
            raise InvalidSettings(
                "ingest.tls_client_ca asks for certificates of clients, and the service has none",
                hint="set ingest.tls_cert and ingest.tls_key, too",
            )
        return None
    if cert is None or key is None:
        raise InvalidSettings("ingest.tls_cert and ingest.tls_key come together", hint="set both")
    found = Certificate(_read(cert), _read(key), None if client_ca is None else _read(client_ca))
    try:
        found._replace(client_ca=None).context()
    except (ssl.SSLError, ValueError) as error:
        raise InvalidSettings(
            f"{cert} and {key} are no certificate and its key: {error}",
            hint="ingest.tls_cert and ingest.tls_key are files in PEM, the key without a password",
        ) from error
    try:
        found.context()
    except (ssl.SSLError, ValueError) as error:
        raise InvalidSettings(
            f"{client_ca} holds no certificate: {error}",
            hint="ingest.tls_client_ca is a file in PEM, of whoever signs clients' certificates",
        ) from error
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidSettings(
            f"{path} cannot be read: {error.strerror}",
            hint="check ingest.tls_cert, tls_key and tls_client_ca",
        ) from error
