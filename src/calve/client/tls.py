"""How a client calls over TLS, as the settings say: whom it trusts, and what it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calve.protocol.trust import Identity, identity_in, trusted_with

if TYPE_CHECKING:
    from calve.settings import Settings


def client_tls(settings: Settings) -> dict[str, Any]:
    """Arguments of a `Client`."""
    identity = client_identity(settings)
    shown = {"tls_client_cert": identity.cert, "tls_client_key": identity.key} if identity else {}
    return {"tls_root_certs": trusted_with(settings.ingest.trusted), **shown}


def client_identity(settings: Settings) -> Identity | None:
    return identity_in(settings.ingest.tls_client_cert, settings.ingest.tls_client_key)
