"""A certificate authority of one's own, for a laptop or a test: `calve tls init`.

It signs a certificate for the service and, if wanted, one for each client. Keys are readable by
their owner alone from the moment that their files are there.
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from calve.errors import Conflict, Denied, InvalidRequest
from calve.paths import make_private

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes

    from calve.clock import Clock

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_AUTHORITY_DAYS: Final = 3650
_SKEW: Final = timedelta(hours=1)  # of clocks that read the certificate
_NAME_MAX: Final = 64  # of a common name
_CLIENT: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@-]{0,62}[A-Za-z0-9])?", re.ASCII)
_LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST: Final = re.compile(
    rf"(?=.{{1,253}}\Z)(?:\*\.)?(?:{_LABEL}\.)*(?![0-9]+\Z){_LABEL}", re.ASCII
)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What lies in a directory once it was filled; a client's are there if one was asked for."""

    directory: Path

    @property
    def ca(self) -> Path:
        return self.directory / "ca.pem"

    @property
    def ca_key(self) -> Path:
        return self.directory / "ca.key"

    @property
    def server(self) -> tuple[Path, Path]:
        return self._pair("server")

    def client(self, name: str) -> tuple[Path, Path]:
        return self._pair(f"client-{name}")

    def _pair(self, name: str) -> tuple[Path, Path]:
        return self.directory / f"{name}.pem", self.directory / f"{name}.key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """For which names and addresses the service's certificate is, and for whom a client's.

    With `client_only` the service keeps the one that it has.
    """

    hosts: Sequence[str]
    client: str | None
    days: int
    client_only: bool = False


class Authority:
    """Signs with a key that lies beside its certificate."""

    def __init__(
        self,
        certificate: x509.Certificate,
        key: CertificateIssuerPrivateKeyTypes,
        clock: Clock,
    ) -> None:
        self.certificate = certificate
        self._key = key
        self._clock = clock

    @classmethod
    def made(cls, files: TlsFiles, clock: Clock) -> Authority:
        """A new one, in its files."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _named(f"Calve local CA {x509.random_serial_number() % 10**8:08d}")
        certificate = (
            _builder(name, name, key.public_key(), clock.now(), _AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        _write(files.ca_key, _pem(key), 0o600)
        _write(files.ca, certificate.public_bytes(Encoding.PEM), 0o644)
        return cls(certificate, key, clock)

    @classmethod
    def read(cls, files: TlsFiles, clock: Clock) -> Authority:
        """The one whose files are there."""
        try:
            certificate = x509.load_pem_x509_certificate(files.ca.read_bytes())
            key = load_pem_private_key(files.ca_key.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise InvalidRequest(
                f"{files.ca} and {files.ca_key} are no authority and its key: {error}",
                hint="bring them back, or make new ones with --new-ca, which clients must learn",
            ) from error
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return cls(certificate, key, clock)

    def issue_server(self, pair: tuple[Path, Path], hosts: Sequence[str], days: int) -> datetime:
        """A certificate for these names and addresses; until when it holds."""
        names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
        return self._issue(pair, hosts[0], days, ExtendedKeyUsageOID.SERVER_AUTH, names)

    def issue_client(self, pair: tuple[Path, Path], name: str, days: int) -> datetime:
        """A certificate that says who a client is; until when it holds."""
        return self._issue(pair, name, days, ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def _issue(
        self,
        pair: tuple[Path, Path],
        name: str,
        days: int,
        purpose: x509.ObjectIdentifier,
        names: x509.SubjectAlternativeName | None,
    ) -> datetime:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _named(name[:_NAME_MAX])
        issuer = self.certificate.subject
        builder = (
            _builder(subject, issuer, key.public_key(), self._clock.now(), days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        )
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        chain = [certificate, self.certificate]
        _write(pair[1], _pem(key), 0o600)
        _write(pair[0], b"".join(each.public_bytes(Encoding.PEM) for each in chain), 0o644)
        return certificate.not_valid_after_utc


class Made(NamedTuple):
    """Until when what was made holds, and whether a certificate of the service was among it."""

    until: datetime
    has_server: bool


def init_tls(files: TlsFiles, wanted: Wanted, *, replace: bool, new_ca: bool, clock: Clock) -> Made:
    """Fill the directory, with what is wanted of it.

    Conflict, and nothing written, if that would replace a file.

    With `replace`, the authority that is there signs the new certificates, unless `new_ca`.
    """
    for host in wanted.hosts:
        _alternative(host)
    pair = files.client(_client_name(wanted.client)) if wanted.client is not None else None
    is_served = any(file.exists() for file in files.server)
    has_server = new_ca or not (wanted.client_only and is_served)
    written = [files.ca, files.ca_key, *files.server] if has_server else []
    there = [file for file in [*written, *(pair or ())] if file.exists()]
    if there and not replace:
        raise Conflict(
            f"{there[0]} is there already",
            hint="--yes replaces the certificates and keeps the authority that signs them, so that "
            "clients trust the new ones; or name another --directory",
        )
    try:
        make_private(files.directory)
        keeps = files.ca.exists() and files.ca_key.exists() and not new_ca
        reads = keeps or not has_server  # another authority's clients would not be trusted
        authority = Authority.read(files, clock) if reads else Authority.made(files, clock)
        untils = []
        if has_server:
            untils.append(authority.issue_server(files.server, wanted.hosts, wanted.days))
        if wanted.client is not None and pair is not None:
            untils.append(authority.issue_client(pair, wanted.client, wanted.days))
    except OSError as error:
        raise Denied(
            f"{files.directory} cannot be written: {error.strerror}",
            hint="change its permissions, or name another --directory",
        ) from error
    return Made(untils[0], has_server)


def _client_name(name: str) -> str:
    """It is in a certificate, and in the names of files."""
    if not _CLIENT.fullmatch(name):
        raise InvalidRequest(
            f"{name[:100]!r} is no name for a client",
            hint="use 1 to 64 letters, digits and . _ @ -; it begins and ends with a letter or a "
            "digit",
        )
    return name


def _alternative(host: str) -> x509.GeneralName:
    name = host.strip("[]")
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        encoded = name.encode("idna").decode("ascii")
    except UnicodeError:
        encoded = ""
    if not _HOST.fullmatch(encoded):
        raise InvalidRequest(
            f"{host!r} is neither a name nor an address", hint="write lake.example.com or 10.0.0.7"
        )
    return x509.DNSName(encoded)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(file: Path, content: bytes, mode: int) -> None:
    """In one step: whoever reads it meanwhile has the old one or the new one whole."""
    unfinished = file.with_name(f".{file.name}.new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as output:
        output.write(content)
        output.flush()
        os.fsync(output.fileno())
    unfinished.replace(file)


def names_for(host: str, more: Iterable[str]) -> list[str]:
    """What a certificate must carry: loopback, where the service listens, and what was given."""
    own = [] if host.strip("[]") in {"0.0.0.0", "::", ""} else [host.strip("[]")]  # noqa: S104
    return list(dict.fromkeys([*more, *own, *LOOPBACK]))
