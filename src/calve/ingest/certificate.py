"""The certificate that all doors of a process show, checked before any of them opens."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, NamedTuple

from calve.errors import InvalidSettings

if TYPE_CHECKING:
    from pathlib import Path

    from calve.settings.tree import IngestSettings


class Certificate(NamedTuple):
    """The files, and what is in them; both in PEM."""

    cert_file: Path
    key_file: Path
    cert: bytes
    key: bytes


def certificate_of(settings: IngestSettings) -> Certificate | None:
    """None without TLS; InvalidSettings if the files are not a certificate and its key."""
    cert, key = settings.tls_cert, settings.tls_key
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise InvalidSettings("ingest.tls_cert and ingest.tls_key come together", hint="set both")
    found = Certificate(cert, key, _read(cert), _read(key))
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise InvalidSettings(
            f"{cert} and {key} are no certificate and its key: {error}",
            hint="ingest.tls_cert and ingest.tls_key are files in PEM, the key without a password",
        ) from error
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidSettings(
            f"{path} cannot be read: {error.strerror}", hint="check ingest.tls_cert and tls_key"
        ) from error
