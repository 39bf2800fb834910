"""TLS of an HTTP server: whoever connects is shown the certificate of that moment."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calve.ingest.certificate import Certificate


class RenewedContext(ssl.SSLContext):
    """A context to begin servers with; each connection is made with the newest one instead."""

    current: ssl.SSLContext

    @classmethod
    def of(cls, certificate: Certificate) -> RenewedContext:
        made = cls(ssl.PROTOCOL_TLS_SERVER)
        made.current = certificate.context()
        return made

    def wrap_bio(self, *args: Any, **named: Any) -> ssl.SSLObject:
        """What event loops call for each connection."""
        return self.current.wrap_bio(*args, **named)
