"""Which certificates are trusted, and shown, when a service is called over TLS."""

from __future__ import annotations

import os
import ssl
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from calve.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLIENT: Final = "ingest.tls_client_cert and ingest.tls_client_key"


class Identity(NamedTuple):
    """A certificate that says who a client is, and its key; in PEM."""

    cert: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Identity(…)"


def identity_of(cert: bytes | None, key: bytes | None) -> Identity | None:
    """None without either; InvalidRequest with one of the two."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise InvalidRequest("a client's certificate and its key come together", hint="give both")
    return Identity(cert, key)


def identity_in(cert: Path | str | None, key: Path | str | None) -> Identity | None:
    """What the files hold, where this runs."""
    return identity_of(
        *(None if file is None else _read(Path(file), _CLIENT) for file in (cert, key))
    )


def flight_arguments(roots: bytes | None, identity: Identity | None) -> dict[str, Any]:
    """For a Flight client of Arrow."""
    shown = {"cert_chain": identity.cert, "private_key": identity.key} if identity else {}
    return {**({"tls_root_certs": roots} if roots else {}), **shown}


def trusted_with(more: Path | None) -> bytes | None:
    """This machine's authorities, and those of a file of one's own; None if there is no such.

    A service whose certificate is in the file is trusted too, whoever signed it.
    """
    return trusted_beside(authorities_in(more))


def authorities_in(file: Path | None) -> bytes | None:
    """What a file of one's own holds, to be carried to where it is trusted."""
    return None if file is None else _read(file, "ingest.tls_ca, or ingest.tls_cert")


def _read(file: Path, settings: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidRequest(
            f"{file} cannot be read: {error.strerror}", hint=f"check {settings}"
        ) from error


def trusted_beside(own: bytes | None) -> bytes | None:
    """The authorities of the machine that this runs on, and `own`; None if there are none such."""
    return None if own is None else b"\n".join([*_of_this_machine(), own])


def _of_this_machine() -> Iterator[bytes]:
    file = Path(ssl.get_default_verify_paths().cafile or "")  # a directory if there is none
    if file.is_file():
        yield file.read_bytes()


def context_with(roots: bytes | None, identity: Identity | None = None) -> ssl.SSLContext:
    """For HTTP: trusts `roots`, or without them this machine's."""
    if roots is None:
        context = ssl.create_default_context()
    else:
        context = ssl.create_default_context(cadata=roots.decode("ascii", errors="ignore"))
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if identity is not None:
        try:
            load_pair(context, identity.cert, identity.key)
        except (ssl.SSLError, ValueError) as error:
            raise InvalidRequest(
                f"a client's certificate and its key do not fit: {error}", hint=f"check {_CLIENT}"
            ) from error
    return context


def load_pair(context: ssl.SSLContext, cert: bytes, key: bytes) -> None:
    """Have a context show a certificate; ssl.SSLError or ValueError if the key is not its own."""
    with _file_of(cert) as cert_file, _file_of(key) as key_file:
        context.load_cert_chain(cert_file, key_file, password="")


@contextmanager
def _file_of(content: bytes) -> Iterator[str]:
    """A path that holds the bytes for a moment: OpenSSL reads files, and ours may have changed."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("calve-tls"), "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name
