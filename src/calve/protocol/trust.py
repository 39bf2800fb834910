"""Which certificates are trusted when a service is called over TLS."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from calve.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator


def trusted_with(more: Path | None) -> bytes | None:
    """This machine's authorities, and those of a file of one's own; None if there is no such.

    A service whose certificate is in the file is trusted too, whoever signed it.
    """
    return trusted_beside(authorities_in(more))


def authorities_in(file: Path | None) -> bytes | None:
    """What a file of one's own holds, to be carried to where it is trusted."""
    if file is None:
        return None
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidRequest(
            f"{file} cannot be read: {error.strerror}", hint="check ingest.tls_cert"
        ) from error


def trusted_beside(own: bytes | None) -> bytes | None:
    """The authorities of the machine that this runs on, and `own`; None if there are none such."""
    return None if own is None else b"\n".join([*_of_this_machine(), own])


def _of_this_machine() -> Iterator[bytes]:
    file = Path(ssl.get_default_verify_paths().cafile or "")  # a directory if there is none
    if file.is_file():
        yield file.read_bytes()


def context_with(roots: bytes | None) -> ssl.SSLContext:
    """For HTTP: trusts `roots`, or without them this machine's."""
    if roots is None:
        return ssl.create_default_context()
    context = ssl.create_default_context(cadata=roots.decode("ascii", errors="ignore"))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
